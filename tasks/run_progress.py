"""Tracks a tuning run: how far it is, and how much of it was reused."""

from __future__ import annotations

from collections import Counter

from tilewright.reports.number_format import counted
from tilewright.tasks.progress import Progress
from tilewright.tuning.events import Event, Listener, RoundDone, StageBegan, StageReused
from tilewright.tuning.outputs import Summary

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
