"""Measurement tables of schedule spaces, and a target that answers from such tables.

The target neither compiles nor runs anything. Tuning runs on it take only seconds, and if a table
is complete, the distance of a tuner from the true optimum is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.targets.base import Configs, Lowered, Measurements, Space, latency_of
from tilewright.targets.capabilities import Costs, Estimates, HasCosts, Latency
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload


class TableError(TilewrightError):
    """Raised if a measurement table cannot be used, for example because its columns are invalid."""


@dataclass(frozen=True)
class Spent:
    """Recorded time that compiling and measuring took, per config of a table, in seconds.

    Attributes:
        compiling: time to compile each config, shape (rows,).
        measuring: time to measure each config, shape (rows,); 0 if it did not compile.
    """

    compiling: NDArray[np.float64]
    measuring: NDArray[np.float64]

    def mean(self, compiled: NDArray[np.bool_]) -> Costs:
        """Return the average costs per config.

        Args:
            compiled: mask of the rows that compiled, shape (rows,). The average time to measure is
                computed from these rows only.
        """
        measuring = self.measuring[compiled].mean() if compiled.any() else 0.0
        return Costs(float(self.compiling.mean()), float(measuring))


@dataclass(frozen=True)
class MeasurementTable:
    """Measurements of a schedule space, one row per config, in ascending order of the flat index.

    Attributes:
        name: name of the table.
        workload: the workload.
        space: the schedule space.
        flat: flat index of each config.
        status: status of each config, as in `Measurements`.
        failures: class of each compilation failure; empty if the config compiled.
        reasons: explanation of each status that is not `valid`.
        cycles: latency in cycles; -1 if the config is not valid or the target does not count
            cycles.
        seconds: latency in seconds; NaN if the config is not valid.
        hidden: hidden features; NaN if the config failed to compile.
        spent: time that each row took, for tables that were recorded with a real compiler and
            device.
    """

    name: str
    workload: Workload
    space: Space
    flat: NDArray[np.int64]
    status: NDArray[np.object_]
    failures: NDArray[np.object_]
    reasons: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    hidden: Features
    spent: Spent | None = None

    def __len__(self) -> int:
        return len(self.flat)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of the valid configs, shape (rows,)."""
        return np.asarray(self.status == "valid", np.bool_)

    @property
    def latency(self) -> NDArray[np.float64]:
        """Latency of each config in cycles, or in seconds if the hardware counts no cycles.

        The shape is (rows,). Configs that are not valid have an infinite latency.
        """
        return np.where(self.valid, latency_of(self.cycles, self.seconds), np.inf)

    @property
    def optimum(self) -> Latency:
        """Latency of the fastest valid config.

        Its cycles are -1 if the target does not count cycles.

        Raises:
            TableError: no config is valid.
        """
        if not self.valid.any():
            raise TableError(
                f"no config of {self.name} is valid, so it has no optimum; leave out this table"
            )
        row = int(np.argmin(self.latency))
        return Latency(float(self.seconds[row]), int(self.cycles[row]))

    @cached_property
    def digest(self) -> str:
        """Content hash of everything that a tuner can observe."""
        hasher = hashlib.sha256("\0".join([self.workload.id, *self.hidden.names]).encode())
        for numbers in (self.flat, self.cycles, self.seconds, self.hidden.matrix):
            hasher.update(np.ascontiguousarray(numbers).tobytes())
        if self.spent is not None:
            hasher.update(self.spent.compiling.tobytes() + self.spent.measuring.tobytes())
        for words in (self.status, self.failures, self.reasons):
            hasher.update("\0".join(words).encode())
        return hasher.hexdigest()[:16]

    def rows_of_configs(self, configs: Configs) -> NDArray[np.int64]:
        """Return the row index of each config.

        Args:
            configs: knob indices, shape (n, knobs).

        Returns:
            Row indices, shape (n,).

        Raises:
            TableError: the table does not contain a config.
        """
        flat = self.space.ravel(configs)
        if self.space.listed is None:
            return flat
        rows = np.minimum(np.searchsorted(self.flat, flat), len(self.flat) - 1)
        if len(flat) and not np.array_equal(self.flat[rows], flat):
            raise TableError(
                f"the table {self.name} does not contain every config that was requested"
            )
        return np.asarray(rows, dtype=np.int64)


class ReplayTarget:
    """Target that answers from measurement tables, one per workload.

    Its only optional capabilities are `Estimates` and `HasCosts`.

    Args:
        tables: the measurement tables.
        name: name of the target.
        hardware: hardware features of the machine on which the tables were recorded.
        estimates: estimates for that machine.
        costs: costs of trials on that machine. They are ignored if every table recorded the costs
            of its configs.
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
        self.capabilities = {
            kind: implementation
            for kind, implementation in offered.items()
            if implementation is not None
        }

    @property
    def fingerprint(self) -> str:
        """Digest of the name and of the content of the tables."""
        digests = "".join(sorted(table.digest for table in self.tables.values()))
        return hashlib.sha256(f"{self.name}{digests}".encode()).hexdigest()[:12]

    @property
    def workloads(self) -> dict[str, Workload]:
        """Workloads of the tables, by table name."""
        return {table.name: table.workload for table in self.tables.values()}

    def hardware_features(self) -> dict[str, float]:
        """Return the hardware features of the machine on which the tables were recorded."""
        return self._hardware

    def space(self, workload: Workload) -> Space:
        """Return the space of the recorded table."""
        return self._table(workload).space

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Return the recorded hidden features and failures of the configs."""
        table = self._table(workload)
        rows = table.rows_of_configs(configs)
        failures = table.failures[rows]
        return Lowered(
            workload=workload,
            configs=configs,
            failures=failures,
            reasons=np.where(failures == "", "", table.reasons[rows]),
            hidden=table.hidden.rows(rows),
        )

    def measure(self, lowered: Lowered) -> Measurements:
        """Return the recorded measurements of the configs."""
        table = self._table(lowered.workload)
        rows = table.rows_of_configs(lowered.configs)
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
            names = ", ".join(sorted(self.workloads)) or "none"
            raise WorkloadError(
                f"no table contains {workload}; the tables are {names}; add the file that "
                "contains it"
            ) from None


@dataclass(frozen=True)
class _RecordedCosts:
    """Average compile and measuring times per config, as recorded in measurement tables.

    Attributes:
        tables: measurement tables by workload ID.
    """

    tables: Mapping[str, MeasurementTable]

    def costs(self, workload: Workload) -> Costs:
        table = self.tables[workload.id]
        assert table.spent is not None
        return table.spent.mean(table.failures == "")
