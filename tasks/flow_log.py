"""Writes what happens in a run to the log of its flow run."""

from __future__ import annotations

from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from tilewright.reports.number_format import counted
from tilewright.reports.run_results import outcome_line
from tilewright.tuning.events import Event, Listener, Note, RoundDone, WorkloadTuned
from tilewright.tuning.gains import before
from tilewright.tuning.results import cycles_of


def logged(listen: Listener) -> Listener:
    """Logs what is worth a line, then passes it on."""

    def hear(event: Event) -> None:
        text = line(event)
        if text and FlowRunContext.get() is not None:
            get_run_logger().info(text)
        listen(event)

    return hear


def line(event: Event) -> str:
    """An event in a line of text; "" for those that are not logged."""
    if isinstance(event, Note):
        return event.text
    if isinstance(event, RoundDone):
        best = cycles_of(event.best)
        return (
            f"round {event.round}: {counted(event.trials, 'trial')}, best {best} cycles, "
            f"{event.valid_share:.0%} valid"
        )
    if isinstance(event, WorkloadTuned):
        row = event.outcome.summary()
        return outcome_line(row, before(row))
    return ""
