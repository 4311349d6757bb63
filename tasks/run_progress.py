"""Shows in Prefect how a run goes: a bar that moves while it measures, how much of it was reused,
and lines in the log of its flow run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from tilewright.reports.number_format import counted
from tilewright.reports.run_results import outcome_line
from tilewright.tuning.events import (
    Event,
    Listener,
    Note,
    RoundDone,
    StageBegan,
    StageReused,
    WorkloadTuned,
)
from tilewright.tuning.outputs import Summary
from tilewright.tuning.results import cycles_of

_ALWAYS = "time_again"
"""The stage that nothing can stand for: it looks whether what is kept still holds."""


class RunProgress:
    """Hears what happens in a run, from whichever thread."""

    def __init__(self) -> None:
        self._began: Counter[str] = Counter()
        self._reused: Counter[str] = Counter()
        self._trials: dict[str, int] = {}
        self._shown: Progress | None = None

    def hearing(self, listen: Listener) -> Listener:
        """Hears of each event before `listen` does."""

        def hear(event: Event) -> None:
            self._hear(event)
            listen(event)

        return hear

    def show(self, trials: int) -> None:
        """Move a progress artifact of the flow run from now on, over so many trials."""
        self._shown = Progress("trials", trials, f"of {counted(trials, 'trial')}")

    def end(self) -> None:
        """All trials are done, be they fewer than were allowed."""
        if self._shown is not None:
            self._shown.end()

    def remark(self, summary: Summary) -> str:
        """What to say of a run that had nothing to do, when all its workloads are tuned; empty of
        any other."""
        rows = summary["workloads"]
        trials = sum(row["trials"] for row in rows)
        done = self._began - self._reused
        del done[_ALWAYS]
        if done or sum(row["reused_trials"] for row in rows) < trials:
            return ""
        stages = self._reused.total()
        return (
            f"Nothing changed: all {counted(trials, 'trial')} were recorded already, "
            f"{counted(stages, 'stage')} in the cache. The chosen schedules were "
            "timed again, and hold."
        )

    def _hear(self, event: Event) -> None:
        if isinstance(event, StageBegan):
            self._began[event.name] += 1
        elif isinstance(event, StageReused):
            self._reused[event.name] += 1
        elif isinstance(event, RoundDone):
            self._trials[event.id] = event.trials
            if self._shown is not None:
                self._shown.show(sum(self._trials.values()))


PROGRESS_SECONDS = 2.0
"""Between two updates, a call of the server each."""


class Progress:
    """A progress artifact of the flow run, or of the task, that makes it; may be moved on by any
    thread."""

    def __init__(self, key: str, of: int, what: str) -> None:
        self.of = max(of, 1)
        made = create_progress_artifact(0.0, key=key, description=what)
        assert isinstance(made, UUID)  # as everywhere but in asynchronous code
        self._id, self._told, self._turn = made, time.monotonic(), threading.Lock()

    def show(self, done: int) -> None:
        """So many are done. Told to the server every few seconds."""
        with self._turn:
            if time.monotonic() - self._told < PROGRESS_SECONDS:
                return
            self._told = time.monotonic()
        self._tell(done)

    def end(self) -> None:
        """All there was to do is done, also where that was less than was allowed."""
        self._tell(self.of)

    def _tell(self, done: int) -> None:
        update_progress_artifact(self._id, progress=round(100 * min(done / self.of, 1.0), 1))


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
        return outcome_line(event.outcome.summary())
    return ""
