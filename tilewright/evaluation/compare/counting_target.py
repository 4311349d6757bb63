"""Counts what a tuner lets a target do: every config compiled, also those never measured."""

from __future__ import annotations

from tilewright.targets.base import Configs, Lowered, Measurements, Space, Target
from tilewright.targets.replay import MeasurementTable
from tilewright.targets.workload import Workload


class Metered:
    """Stands in for a target: `compiled` counts configs, `seconds` is what the stack that left the
    table took to compile and measure them, 0 if the table does not say."""

    def __init__(self, target: Target, table: MeasurementTable) -> None:
        self._target = target
        self._table = table
        self.name = target.name
        self.fingerprint = target.fingerprint
        self.deterministic = target.deterministic
        self.capabilities = target.capabilities
        self.compiled = 0
        self.seconds = 0.0

    def hardware_features(self) -> dict[str, float]:
        return self._target.hardware_features()

    def space(self, workload: Workload) -> Space:
        return self._target.space(workload)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        self.compiled += len(configs)
        if self._table.spent is not None:
            self.seconds += float(self._table.spent.compiling[self._table.at(configs)].sum())
        return self._target.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        if self._table.spent is not None:
            rows = self._table.at(lowered.configs)
            self.seconds += float(self._table.spent.measuring[rows].sum())
        return self._target.measure(lowered)
