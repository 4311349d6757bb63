"""Holds complete tables of what every config of a space does on some hardware, and a target that
answers from them without compiling or running anything.

Tuners are judged against the true optimum by them, and replayed in seconds.
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
    """A table that cannot be read as one."""


@dataclass(frozen=True)
class Spent:
    """What making each row of a table took, in seconds, arrays of shape (rows,): compiling it, and
    measuring it, 0 where it did not compile."""

    compiling: NDArray[np.float64]
    measuring: NDArray[np.float64]

    def mean(self, compiled: NDArray[np.bool_]) -> Costs:
        """On average, given which rows compiled, shape (rows,)."""
        measuring = self.measuring[compiled].mean() if compiled.any() else 0.0
        return Costs(float(self.compiling.mean()), float(measuring))


@dataclass(frozen=True)
class MeasurementTable:
    """One row a config of `space`, ascending by `flat` index. `failures` names why a config did not
    compile ("" if it did), `cycles` is -1 and `seconds` NaN where the status is not `valid`;
    `hidden` is what compiling revealed, NaN where it failed. `spent` is known of tables that a real
    stack left."""

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
        """Which configs are, shape (rows,)."""
        return np.asarray(self.status == "valid", np.bool_)

    @property
    def latency(self) -> NDArray[np.float64]:
        """In cycles, or in seconds where the hardware counts none, shape (rows,); infinite where a
        config is not valid."""
        return np.where(self.valid, latency_of(self.cycles, self.seconds), np.inf)

    @property
    def optimum(self) -> Latency:
        """The fastest valid config's. Raises `TableError` if none is valid."""
        if not self.valid.any():
            raise TableError(f"no config of {self.name} is valid: leave it out, it has no optimum")
        row = int(np.argmin(self.latency))
        return Latency(float(self.seconds[row]), int(self.cycles[row]))

    @cached_property
    def digest(self) -> str:
        """Content hash of all that a tuner can see of it."""
        hasher = hashlib.sha256("\0".join([self.workload.id, *self.hidden.names]).encode())
        for numbers in (self.flat, self.cycles, self.seconds, self.hidden.matrix):
            hasher.update(np.ascontiguousarray(numbers).tobytes())
        if self.spent is not None:
            hasher.update(self.spent.compiling.tobytes() + self.spent.measuring.tobytes())
        for words in (self.status, self.failures, self.reasons):
            hasher.update("\0".join(words).encode())
        return hasher.hexdigest()[:16]

    def at(self, configs: Configs) -> NDArray[np.int64]:
        """Row of each config, shape (n,); configs (n, knobs). Raises `TableError` if one is not
        listed."""
        flat = self.space.ravel(configs)
        if self.space.listed is None:
            return flat
        rows = np.minimum(np.searchsorted(self.flat, flat), len(self.flat) - 1)
        if len(flat) and not np.array_equal(self.flat[rows], flat):
            raise TableError(f"table {self.name} does not list every config that was asked for")
        return np.asarray(rows, dtype=np.int64)


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
