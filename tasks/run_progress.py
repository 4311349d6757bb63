"""Progress of a run in Prefect: a progress bar, log lines, and a remark if nothing was computed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from tilewright.reports.number_format import count_text
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
"""Stage that is never cached, because it checks that stored results are still valid."""


class RunProgress:
    """Thread-safe listener that collects the events of a run for its progress bar and its remark.

    The remark is a sentence for the run's summary. It says that nothing was computed, because all
    results were already stored.
    """

    def __init__(self) -> None:
        self._began: Counter[str] = Counter()
        self._reused: Counter[str] = Counter()
        self._trials: dict[str, int] = {}
        self._shown: Progress | None = None

    def record_events(self, listen: Listener) -> Listener:
        """Return a listener that records each event and then passes it on.

        Args:
            listen: function that receives all events.
        """

        def hear(event: Event) -> None:
            self._hear(event)
            listen(event)

        return hear

    def show(self, trials: int) -> None:
        """Start a progress bar of the flow run.

        Args:
            trials: number of trials at which the bar is complete.
        """
        self._shown = Progress("trials", trials, f"of {count_text(trials, 'trial')}")

    def end(self) -> None:
        """Complete the progress bar, even if the run made fewer trials than allowed."""
        if self._shown is not None:
            self._shown.end()

    def remark(self, summary: Summary) -> str:
        """Return a sentence for the summary if a finished run computed nothing.

        Args:
            summary: summary of the run.

        Returns:
            The sentence; "" if any stage was executed or any trial was measured.
        """
        rows = summary["workloads"]
        trials = sum(row["trials"] for row in rows)
        done = self._began - self._reused
        del done[_ALWAYS]
        if done or sum(row["reused_trials"] for row in rows) < trials:
            return ""
        stages = self._reused.total()
        return (
            f"Nothing changed: all {count_text(trials, 'trial')} were recorded before, and "
            f"{count_text(stages, 'stage')} came from the cache. The chosen schedules were "
            "measured again and give the same latency."
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
"""Minimum interval in seconds between two updates. Each update is a request to the server."""


class Progress:
    """A Prefect progress artifact of the current flow run or task, which any thread may update.

    Args:
        key: key of the artifact in Prefect.
        of: number of items at which the bar is complete.
        what: description of the artifact.
    """

    def __init__(self, key: str, of: int, what: str) -> None:
        self.of = max(of, 1)
        made = create_progress_artifact(0.0, key=key, description=what)
        assert isinstance(made, UUID)  # it is a coroutine only in asynchronous code
        self._id, self._told, self._turn = made, time.monotonic(), threading.Lock()

    def show(self, done: int) -> None:
        """Report the number of finished items.

        The server is updated at most every few seconds; other calls do nothing.

        Args:
            done: number of finished items.
        """
        with self._turn:
            if time.monotonic() - self._told < PROGRESS_SECONDS:
                return
            self._told = time.monotonic()
        self._tell(done)

    def end(self) -> None:
        """Complete the progress bar, even if fewer items are finished than planned."""
        self._tell(self.of)

    def _tell(self, done: int) -> None:
        update_progress_artifact(self._id, progress=round(100 * min(done / self.of, 1.0), 1))


def log_events(listen: Listener) -> Listener:
    """Return a listener that logs important events to the flow run, and passes on all events.

    Args:
        listen: function that receives all events.
    """

    def hear(event: Event) -> None:
        text = line(event)
        if text and FlowRunContext.get() is not None:
            get_run_logger().info(text)
        listen(event)

    return hear


def line(event: Event) -> str:
    """Return a log line about a note, a finished round or a tuned workload; "" for other events."""
    if isinstance(event, Note):
        return event.text
    if isinstance(event, RoundDone):
        best = cycles_of(event.best)
        return (
            f"round {event.round}: {count_text(event.trials, 'trial')}, best {best} cycles, "
            f"{event.valid_share:.0%} valid"
        )
    if isinstance(event, WorkloadTuned):
        return outcome_line(event.outcome.summary())
    return ""
