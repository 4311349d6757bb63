"""Finds the schedule of each workload of labelled networks; each is tuned once, when needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.core.errors import WorkloadError
from tilewright.targets.artifact_types import Pick
from tilewright.targets.capabilities import Blocks
from tilewright.targets.workload import Workload
from tilewright.tuning.schedule_lookup import PickTable

Tune = Callable[[Sequence[Workload]], Sequence[Pick | None]]
"""A schedule of each workload; None where none of those that were tried runs."""


class NoSchedule(WorkloadError):
    """A workload that no schedule runs, as far as was tried."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        super().__init__(
            f"{workload}: none of the schedules that were tried runs; tune with more --trials"
        )


class FusionSchedules:
    """Schedules that are known and those that `tune` finds. `tuned` counts the latter, `failed` are
    the workloads of which it found none. What was once answered of a workload stays."""

    def __init__(self, blocks: Blocks, tune: Tune) -> None:
        self.tune = tune
        self.tuned = 0
        self.failed: set[Workload] = set()
        self._table = PickTable(blocks)
        self._found: dict[Workload, Pick] = {}

    def add(self, workload: Workload, pick: Pick) -> None:
        """A schedule that is known."""
        self._table.add(workload, pick)

    def known(self, workload: Workload) -> Pick | None:
        """The schedule of a workload, maybe one that was tuned for what the same schedules run;
        None if it has to be tuned."""
        found = self._found.get(workload) or self._table.closest_match(workload)
        if found is not None:
            self._found[workload] = found
        return found

    def missing(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Those that have to be tuned, each once."""
        unknown = [each for each in dict.fromkeys(workloads) if self.known(each) is None]
        return [each for each in unknown if each not in self.failed]

    def of(self, workloads: Sequence[Workload]) -> list[Pick]:
        """A schedule of each. Raises `NoSchedule` where there is none, and what tuning raises."""
        missing = self.missing(workloads)
        if missing:
            self.tuned += len(missing)
            found = dict(zip(missing, self.tune(missing), strict=True))
            self.failed |= {workload for workload, pick in found.items() if pick is None}
            self._found |= {workload: pick for workload, pick in found.items() if pick is not None}
            for workload in missing:
                if workload in self._found:
                    self._table.add(workload, self._found[workload])
        for workload in workloads:
            if workload in self.failed:
                raise NoSchedule(workload)
        return [self._found[workload] for workload in workloads]
