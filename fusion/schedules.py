"""The schedule of each workload that labelled networks have: each is tuned once, when it is first
asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from targets.built import Pick
from targets.capabilities import Blocks
from targets.workload import Workload
from tuning.picks import PickTable

Tune = Callable[[Sequence[Workload]], Sequence[Pick]]
"""A schedule of each workload."""


class Schedules:
    """Schedules that are known and those that `tune` finds. `tuned` counts the latter. What was
    once answered of a workload stays."""

    def __init__(self, blocks: Blocks, tune: Tune) -> None:
        self.tune = tune
        self.tuned = 0
        self._table = PickTable(blocks)
        self._found: dict[Workload, Pick] = {}

    def add(self, workload: Workload, pick: Pick) -> None:
        """A schedule that is known."""
        self._table.add(workload, pick)

    def known(self, workload: Workload) -> Pick | None:
        """The schedule of a workload, maybe one that was tuned for what the same schedules run;
        None if it has to be tuned."""
        found = self._found.get(workload) or self._table.likest(workload)
        if found is not None:
            self._found[workload] = found
        return found

    def missing(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Those that have to be tuned, each once."""
        return [each for each in dict.fromkeys(workloads) if self.known(each) is None]

    def of(self, workloads: Sequence[Workload]) -> list[Pick]:
        """A schedule of each. Raises what tuning raises."""
        missing = self.missing(workloads)
        if missing:
            self.tuned += len(missing)
            for workload, pick in zip(missing, self.tune(missing), strict=True):
                self._found[workload] = pick
        for workload in missing:
            self._table.add(workload, self._found[workload])
        return [self._found[workload] for workload in workloads]
