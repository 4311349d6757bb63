"""The interface between a tuner and a target (a piece of hardware with its compiler).

All methods of the interface work on batches of configs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.core.renamed import warn_renamed
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

Status = Literal["valid", "compile_error", "run_error", "wrong_result", "timeout"]
STATUSES: tuple[Status, ...] = ("valid", "compile_error", "run_error", "wrong_result", "timeout")

Configs = NDArray[np.int32]
"""A batch of configs: int array of shape (configs, knobs). Each entry is an index into the values
of its knob."""


@dataclass(frozen=True)
class Knob:
    """A schedule decision with a finite, ordered list of values, for example the height of a tile.

    Attributes:
        name: name of the knob, unique within its space.
        values: the possible values; a config refers to a value by its index in this tuple.
    """

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """A schedule space: the Cartesian product of its knobs, or a listed part of that product.

    A config is a vector of knob indices. Its flat index is its number in the product; the first
    knob varies fastest.

    Attributes:
        name: name of the space.
        knobs: the knobs, in the order of a config's columns.
        listed: flat indices of the configs that exist, in ascending order, for example in an
            incomplete table of measurements. None means that all configs exist.
    """

    name: str
    knobs: tuple[Knob, ...]
    listed: tuple[int, ...] | None = None

    @cached_property
    def cardinalities(self) -> NDArray[np.int64]:
        """Number of values of each knob, shape (knobs,)."""
        return np.array([len(knob.values) for knob in self.knobs], dtype=np.int64)

    @property
    def size(self) -> int:
        """Number of configs in the space."""
        return int(np.prod(self.cardinalities)) if self.listed is None else len(self.listed)

    def unravel(self, flat: NDArray[np.int64]) -> Configs:
        """Convert flat indices to configs. The first knob varies fastest.

        Args:
            flat: numbers of configs in the product of the knobs, shape (n,).

        Returns:
            Knob indices, int32 array of shape (n, knobs).

        Raises:
            ValueError: a flat index is out of range.
        """
        indices = np.unravel_index(flat, tuple(self.cardinalities), order="F")
        return np.array(indices).T.astype(np.int32, order="C")

    def ravel(self, configs: Configs) -> NDArray[np.int64]:
        """Convert configs to flat indices. The first knob varies fastest.

        Args:
            configs: knob indices, shape (n, knobs).

        Returns:
            Numbers of the configs in the product of the knobs, shape (n,).

        Raises:
            ValueError: a knob index is out of range.
        """
        indices = tuple(configs.T.astype(np.int64))
        flat = np.ravel_multi_index(indices, tuple(self.cardinalities), order="F")
        return np.asarray(flat, dtype=np.int64)

    def values(self, configs: Configs) -> NDArray[np.int64]:
        """Return the knob values of each config.

        Args:
            configs: knob indices, shape (n, knobs).

        Returns:
            Knob values, shape (n, knobs).

        Raises:
            IndexError: a knob index is out of range.
        """
        table, begins = self._tables
        if ((configs < 0) | (configs >= self.cardinalities)).any():
            raise IndexError(
                f"a knob index of {self.name} is larger than the number of values of its knob"
            )
        return table.take(configs + begins)

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All knob values in one flat array, and the index of each knob's first value there."""
        every = [value for knob in self.knobs for value in knob.values]
        begins = np.cumsum([0, *map(len, (knob.values for knob in self.knobs))])[:-1]
        return np.array(every, dtype=np.int64), begins.astype(np.int32)

    def describe(self, config: Sequence[int]) -> dict[str, int]:
        """Return a single config as a mapping from knob name to knob value.

        Args:
            config: knob indices, one per knob.
        """
        return {knob.name: knob.values[int(i)] for knob, i in zip(self.knobs, config, strict=True)}


@dataclass(frozen=True)
class Ragged:
    """Arrays of different lengths, one per row, stored in a single array.

    Row r is `values[offsets[r]:offsets[r + 1]]`.

    Attributes:
        values: all rows one after the other, shape (total, …).
        offsets: start of each row and the total length, shape (rows + 1,).
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Sequence[NDArray[Any]]) -> Ragged:
        """Build a ragged array from a list of arrays, one per row.

        Args:
            rows: at least one array. The shapes may differ only in the first axis.
        """
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return cls(np.concatenate(list(rows)), offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[tuple[int, Ragged | None]]) -> Ragged:
        """Concatenate the rows of several ragged arrays.

        Args:
            parts: pairs of a row count and a ragged array with that many rows. None stands for that
                many empty rows. At least one part must not be None.
        """
        lengths = [
            np.zeros(count, np.int64) if part is None else np.diff(part.offsets)
            for count, part in parts
        ]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
        return cls(np.concatenate([part.values for _, part in parts if part is not None]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def rows(self, which: NDArray[Any]) -> Ragged:
        """Return a copy with only some rows.

        Args:
            which: indices of the rows, shape (n,), or a boolean mask of shape (rows,).
        """
        places = np.arange(len(self))[which]
        lengths = np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.empty((int(offsets[-1]), *self.values.shape[1:]), self.values.dtype)
        for place, begin, end in zip(places, offsets[:-1], offsets[1:], strict=True):
            values[begin:end] = self[int(place)]
        return Ragged(values, offsets)


Programs = Mapping[str, Ragged]
"""Compiled programs of a batch of configs. Only the target that compiled them can interpret them.

Maps the name of a part (such as instructions, micro-ops or the bytes of a library) to an array with
one row per config. The row is empty if the config failed to compile. The values are plain arrays,
so that programs can be stored in files and sent to other processes. The mapping is empty for a
target that needs no compilation."""


@dataclass(frozen=True)
class Lowered:
    """A batch of configs after compilation.

    `measure` runs `programs` as they are; nothing is compiled twice.

    Attributes:
        workload: the workload that was compiled.
        configs: knob indices, shape (configs, knobs).
        failures: class of the failure of each config; empty if the config compiled.
        reasons: stage and cause of each failure in one sentence; empty if the config compiled.
        hidden: hidden features, one row per config: quantities that only compilation reveals, never
            measurements. NaN if the config failed to compile.
        programs: the compiled programs.
        space: name of the schedule space of the configs. It determines how data is laid out in
            memory, for example biases. Empty means the space of the target that the batch is passed
            to.
    """

    workload: Workload
    configs: Configs
    failures: NDArray[np.object_]  # class of each failure, "" if compiled
    reasons: NDArray[np.object_]  # stage and cause in one sentence, "" if compiled
    hidden: Features
    programs: Programs = field(default_factory=dict)
    space: str = ""

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Mask of the configs that compiled, shape (configs,)."""
        return np.asarray(self.failures == "", dtype=np.bool_)

    def rows(self, which: NDArray[Any]) -> Lowered:
        """Return a batch with only some of the configs, with their programs.

        Args:
            which: indices of the configs, shape (n,), or a boolean mask of shape (configs,).
        """
        return replace(
            self,
            configs=self.configs[which],
            failures=self.failures[which],
            reasons=self.reasons[which],
            hidden=self.hidden.rows(which),
            programs={name: part.rows(which) for name, part in self.programs.items()},
        )

    def before(self, others: Lowered) -> Lowered:
        """Return `followed_by(others)`. This method is a deprecated alias."""
        warn_renamed("Lowered.before", "Lowered.followed_by")
        return self.followed_by(others)

    def followed_by(self, others: Lowered) -> Lowered:
        """Return the concatenation of this batch and another one, with this batch first.

        Args:
            others: a batch that was lowered for the same workload on the same target.
        """
        parts = (self, others)
        columns = next((part.hidden.columns for part in parts if part.hidden.columns), ())
        hidden = [
            part.hidden.matrix
            if part.hidden.columns == columns
            else np.full((len(part), len(columns)), np.nan)
            for part in parts
        ]
        names = dict.fromkeys(name for part in parts for name in part.programs)
        return replace(
            self,
            configs=np.concatenate([part.configs for part in parts]),
            failures=np.concatenate([part.failures for part in parts]),
            reasons=np.concatenate([part.reasons for part in parts]),
            hidden=Features(np.concatenate(hidden), columns),
            programs={
                name: Ragged.concatenate([(len(part), part.programs.get(name)) for part in parts])
                for name in names
            },
        )


@dataclass(frozen=True)
class Measurements:
    """Results of running a batch, one entry per config; the arrays have shape (configs,).

    Attributes:
        status: outcome of each config, one of `STATUSES`.
        reason: explanation of each status that is not `valid`.
        cycles: latency in cycles; -1 if the status is not `valid` or the target does not count
            cycles.
        seconds: latency on the accelerator in seconds, not the time that measuring took; NaN if the
            status is not `valid`.
        counters: further integers by name, for example instructions or bytes moved; -1 if unknown.
        repeats: seconds of every repetition, on a target whose measurements vary. `seconds` is then
            their median.
    """

    status: NDArray[np.object_]  # values of `Status`
    reason: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    counters: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    repeats: Ragged | None = None

    def __len__(self) -> int:
        return len(self.status)

    @classmethod
    def nothing(cls, rows: int, status: Status = "compile_error", reason: str = "") -> Measurements:
        """Return `unmeasured(rows, status, reason)`. This method is a deprecated alias."""
        warn_renamed("Measurements.nothing", "Measurements.unmeasured")
        return cls.unmeasured(rows, status, reason)

    @classmethod
    def unmeasured(
        cls, rows: int, status: Status = "compile_error", reason: str = ""
    ) -> Measurements:
        """Return measurements for configs that were not measured, with unknown latencies.

        Args:
            rows: number of configs.
            status: status of all configs.
            reason: explanation of the status, the same for all configs.

        Returns:
            Measurements with -1 cycles and NaN seconds in every row.
        """
        return cls(
            np.full(rows, status, dtype=object), np.full(rows, reason, dtype=object),
            np.full(rows, -1, dtype=np.int64), np.full(rows, np.nan),
        )  # fmt: skip

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Mask of the configs that ran and computed correct results, shape (configs,)."""
        return np.asarray(self.status == "valid", dtype=np.bool_)

    @property
    def latency(self) -> NDArray[np.float64]:
        """The quantity that tuners minimise, shape (configs,); see `latency_of`."""
        return latency_of(self.cycles, self.seconds)

    def rows(self, which: NDArray[Any]) -> Measurements:
        """Return the measurements of only some of the configs.

        Args:
            which: indices of the configs, shape (n,), or a boolean mask of shape (configs,).
        """
        return Measurements(
            self.status[which], self.reason[which], self.cycles[which], self.seconds[which],
            {name: values[which] for name, values in self.counters.items()},
            None if self.repeats is None else self.repeats.rows(which),
        )  # fmt: skip


def latency_of(cycles: NDArray[np.int64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return latencies in cycles if the target counts cycles, otherwise in seconds.

    Cycles are preferred because they are exact.

    Args:
        cycles: cycles of each config, shape (rows,); -1 if unknown.
        seconds: seconds of each config, shape (rows,).

    Returns:
        Latencies, shape (rows,); NaN where a config is not valid.
    """
    if (cycles > 0).any():
        return np.where(cycles > 0, cycles.astype(np.float64), np.nan)
    return seconds


Capabilities = Mapping[type[Any], object]
"""Optional features of a target. Maps each supported protocol of `targets.capabilities` to the
object that implements it."""


class Target(Protocol):
    """A piece of hardware and its compiler.

    A target defines the schedule space, compiles schedules and measures them. Every method takes
    and returns whole batches. A config that cannot be compiled or run does not raise an exception;
    its row of the result says what failed.

    `space` and `lower` must be deterministic: equal arguments give equal results. `measure` must be
    deterministic only if the property `deterministic` is True.

    Optional abilities have protocols of their own in `targets.capabilities`. The test suite
    `targets.conformance` checks this contract.
    """

    @property
    def name(self) -> str:
        """The name that is shown to users."""

    @property
    def fingerprint(self) -> str:
        """Content hash of everything that can change a measurement.

        It covers the hardware, the schedule space, the compiler and the simulator.
        """

    @property
    def deterministic(self) -> bool:
        """True if measuring a config again gives the same numbers.

        If it does not, the results of measurements in earlier runs are not reused, neither from the
        trial store nor from the cache of stages. A run then ends by measuring its best configs
        again.
        """

    @property
    def capabilities(self) -> Capabilities:
        """The optional abilities of the target; empty if there are none."""

    def hardware_features(self) -> dict[str, float]:
        """Return numbers that describe the hardware, by name, such as a clock frequency.

        Models that are trained on several pieces of hardware use these numbers as features.
        """

    def space(self, workload: Workload) -> Space:
        """Return the schedule space of a workload.

        Args:
            workload: the workload.

        Raises:
            WorkloadError: the target cannot run the workload.
        """

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch of configs.

        Args:
            workload: the workload to compile.
            configs: knob indices, shape (n, knobs).

        Returns:
            The programs and the hidden features. A config that failed to compile has a failure
            class and a reason instead.
        """

    def measure(self, lowered: Lowered) -> Measurements:
        """Run the programs of a batch.

        Args:
            lowered: the batch, as `lower` returned it.

        Returns:
            One row per config. Configs that did not compile have the status `compile_error`.
        """
