"""A target that answers from complete tables instead of compiling and running anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from targets.base import Configs, Lowered, Measurements, Space
from targets.errors import WorkloadError
from targets.table import Table
from targets.workload import Workload

Estimate = Callable[[Workload, Configs], tuple[NDArray[np.float64], tuple[str, ...]]]


class ReplayTarget:
    """Serves measurements from tables, one a workload.

    `estimate` passes on the closed-form estimates of the hardware the tables were made on;
    `hardware` describes it.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        name: str = "replay",
        hardware: dict[str, float] | None = None,
        estimate: Estimate | None = None,
    ) -> None:
        self.name = name
        self.tables = {table.workload.id: table for table in tables}
        self._hardware = dict(hardware or {})
        if estimate is not None:
            self.estimate = estimate

    @property
    def fingerprint(self) -> str:
        digests = "".join(sorted(table.digest for table in self.tables.values()))
        return hashlib.sha256(f"{self.name}{digests}".encode()).hexdigest()[:12]

    @property
    def workloads(self) -> dict[str, Workload]:
        """The replayed workloads by their table's name."""
        return {table.name: table.workload for table in self.tables.values()}

    def hardware_features(self) -> dict[str, float]:
        return self._hardware

    def space(self, workload: Workload) -> Space:
        return self._table(workload).space

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        table = self._table(workload)
        rows = table.at(configs)
        failures = table.failures[rows]
        return Lowered(
            workload=workload,
            configs=configs,
            failures=failures,
            reasons=np.where(failures == "", "", table.reasons[rows]),
            hidden=table.hidden[rows],
            hidden_names=table.hidden_names,
        )

    def measure(self, lowered: Lowered) -> Measurements:
        table = self._table(lowered.workload)
        rows = table.at(lowered.configs)
        status = table.status[rows]
        return Measurements(
            status=status,
            reason=np.where(status == "valid", "", table.reasons[rows]),
            cycles=table.cycles[rows],
            seconds=table.seconds[rows],
            counters={},
        )

    def _table(self, workload: Workload) -> Table:
        try:
            return self.tables[workload.id]
        except KeyError:
            known = ", ".join(sorted(self.workloads)) or "none"
            raise WorkloadError(
                f"no table for {workload}; tables at hand: {known}; pass the file that has it"
            ) from None
