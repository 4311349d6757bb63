"""Answers from complete tables, as a target that compiles and runs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Configs, Lowered, Measurements, Space
from tilewright.targets.capabilities import Costs, Estimates, HasCosts
from tilewright.targets.measurement_table import MeasurementTable
from tilewright.targets.workload import Workload


class ReplayTarget:
    """Serves measurements from tables, one a workload.

    `estimates` are those of the hardware the tables were made on; `hardware` describes it, and
    `costs` says what trials on it cost where the tables do not. It has no other capability: what a
    table does not hold, it does not know.
    """

    deterministic = True

    def __init__(
        self,
        tables: Sequence[MeasurementTable],
        *,
        name: str = "replay",
        hardware: dict[str, float] | None = None,
        estimates: Estimates | None = None,
        costs: HasCosts | None = None,
    ) -> None:
        self.name = name
        self.tables = {table.workload.id: table for table in tables}
        self._hardware = dict(hardware or {})
        recorded = all(table.spent is not None for table in tables)
        offered = {
            Estimates: estimates,
            HasCosts: _RecordedCosts(self.tables) if recorded else costs,
        }
        self.capabilities = {kind: each for kind, each in offered.items() if each is not None}

    @property
    def fingerprint(self) -> str:
        """Of the name and the tables' content."""
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
            hidden=table.hidden.rows(rows),
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
        )

    def _table(self, workload: Workload) -> MeasurementTable:
        try:
            return self.tables[workload.id]
        except KeyError:
            known = ", ".join(sorted(self.workloads)) or "none"
            raise WorkloadError(
                f"no table for {workload}; tables at hand: {known}; pass the file that has it"
            ) from None


@dataclass(frozen=True)
class _RecordedCosts:
    """Means of what making the tables took."""

    tables: Mapping[str, MeasurementTable]

    def costs(self, workload: Workload) -> Costs:
        table = self.tables[workload.id]
        assert table.spent is not None
        return table.spent.mean(table.failures == "")
