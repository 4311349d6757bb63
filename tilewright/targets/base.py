"""Defines the contract between a tuner and a piece of hardware. Everything takes and returns
batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

Status = Literal["valid", "compile_error", "run_error", "wrong_result", "timeout"]
STATUSES: tuple[Status, ...] = ("valid", "compile_error", "run_error", "wrong_result", "timeout")

Configs = NDArray[np.int32]
"""A batch of configurations, shape (configs, knobs); entries are indices into a knob's values."""


@dataclass(frozen=True)
class Knob:
    """A named schedule decision with its finite, ordered values."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """The product of some knobs, or the part of it that `listed` names by ascending flat index (an
    incomplete table, say). The flat index counts the first knob fastest."""

    name: str
    knobs: tuple[Knob, ...]
    listed: tuple[int, ...] | None = None

    @cached_property
    def cardinalities(self) -> NDArray[np.int64]:
        """How many values each knob has, shape (knobs,)."""
        return np.array([len(knob.values) for knob in self.knobs], dtype=np.int64)

    @property
    def size(self) -> int:
        """How many configs there are."""
        return int(np.prod(self.cardinalities)) if self.listed is None else len(self.listed)

    def unravel(self, flat: NDArray[np.int64]) -> Configs:
        """Flat indices, shape (n,) → configs, shape (n, knobs)."""
        indices = np.unravel_index(flat, tuple(self.cardinalities), order="F")
        return np.array(indices).T.astype(np.int32, order="C")

    def ravel(self, configs: Configs) -> NDArray[np.int64]:
        """Configs, shape (n, knobs) → flat indices, shape (n,)."""
        indices = tuple(configs.T.astype(np.int64))
        flat = np.ravel_multi_index(indices, tuple(self.cardinalities), order="F")
        return np.asarray(flat, dtype=np.int64)

    def values(self, configs: Configs) -> NDArray[np.int64]:
        """The knobs' values of each config, shape (n, knobs). Raises `IndexError`."""
        table, begins = self._tables
        if ((configs < 0) | (configs >= self.cardinalities)).any():
            raise IndexError(f"no knob of {self.name} has that many values")
        return table.take(configs + begins)

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All knobs' values behind each other, and where each knob's begin, shape (knobs,)."""
        every = [value for knob in self.knobs for value in knob.values]
        begins = np.cumsum([0, *map(len, (knob.values for knob in self.knobs))])[:-1]
        return np.array(every, dtype=np.int64), begins.astype(np.int32)

    def describe(self, config: Sequence[int]) -> dict[str, int]:
        """One config as a mapping from knob name to value."""
        return {knob.name: knob.values[int(i)] for knob, i in zip(self.knobs, config, strict=True)}


@dataclass(frozen=True)
class Ragged:
    """One array a row, all in one: row r is `values[offsets[r]:offsets[r + 1]]`. `values` has shape
    (total, …), `offsets` shape (rows + 1,)."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[NDArray[Any]]) -> Ragged:
        """From one array a row, at least one row. Shapes may differ in the first axis only."""
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return cls(np.concatenate(list(rows)), offsets)

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, Ragged | None]]) -> Ragged:
        """Rows of several parts behind each other; so many empty rows where a part is None."""
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
        """The rows of the given indices or mask, copied."""
        places = np.arange(len(self))[which]
        lengths = np.diff(self.offsets)[places]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.empty((int(offsets[-1]), *self.values.shape[1:]), self.values.dtype)
        for place, begin, end in zip(places, offsets[:-1], offsets[1:], strict=True):
            values[begin:end] = self[int(place)]
        return Ragged(values, offsets)


Programs = Mapping[str, Ragged]
"""What compiling made of a batch, opaque to everyone but its target: named parts (instructions,
micro-ops, a library's bytes), each with a row a config, empty where compiling failed. Plain arrays,
so that they can be kept and sent. A target that runs configs as they are needs none."""


@dataclass(frozen=True)
class Lowered:
    """A batch after compilation. Row r was compiled where `failures[r]` is empty.

    `hidden` has a row a config, NaN where compiling failed: quantities that only compiling reveals,
    never anything that was measured. `measure` runs `programs`; nothing is compiled twice.

    `space` names the space of the configs, which decides how data lie in memory, biases for
    example. Empty means the space of whichever target is asked.
    """

    workload: Workload
    configs: Configs
    failures: NDArray[np.object_]  # class of the failure, "" where compiled
    reasons: NDArray[np.object_]  # stage and cause in one sentence, "" where compiled
    hidden: Features
    programs: Programs = field(default_factory=dict)
    space: str = ""

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Shape (configs,): which rows have a program."""
        return np.asarray(self.failures == "", dtype=np.bool_)

    def rows(self, which: NDArray[Any]) -> Lowered:
        """The sub-batch of the given row indices, shape (rows,), or mask, with its programs."""
        return replace(
            self,
            configs=self.configs[which],
            failures=self.failures[which],
            reasons=self.reasons[which],
            hidden=self.hidden.rows(which),
            programs={name: part.rows(which) for name, part in self.programs.items()},
        )

    def before(self, others: Lowered) -> Lowered:
        """Return these rows, then the rows of `others`, which were lowered for the same workload on
        the same target."""
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
                name: Ragged.joined([(len(part), part.programs.get(name)) for part in parts])
                for name in names
            },
        )


@dataclass(frozen=True)
class Measurements:
    """What running a batch gave, one entry a config, arrays of shape (configs,).

    `seconds` is latency on the accelerator, not the time the measurement took; NaN where the status
    is not `valid`. `cycles` is -1 there, and everywhere on a target that counts none. `counters`
    holds further integers by name (instructions, bytes moved), -1 where unknown. `repeats` are the
    seconds of every repetition, where a target has to repeat, and `seconds` is their median.
    """

    status: NDArray[np.object_]  # of Status
    reason: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    counters: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    repeats: Ragged | None = None

    def __len__(self) -> int:
        return len(self.status)

    @classmethod
    def nothing(cls, rows: int, status: Status = "compile_error", reason: str = "") -> Measurements:
        """As many rows that were not measured."""
        return cls(
            np.full(rows, status, dtype=object), np.full(rows, reason, dtype=object),
            np.full(rows, -1, dtype=np.int64), np.full(rows, np.nan),
        )  # fmt: skip

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Shape (configs,): which rows ran and gave the right numbers."""
        return np.asarray(self.status == "valid", dtype=np.bool_)

    @property
    def latency(self) -> NDArray[np.float64]:
        """What tuners minimise, shape (configs,): see `latency_of`."""
        return latency_of(self.cycles, self.seconds)

    def rows(self, which: NDArray[Any]) -> Measurements:
        """The rows of the given indices or mask."""
        return Measurements(
            self.status[which], self.reason[which], self.cycles[which], self.seconds[which],
            {name: values[which] for name, values in self.counters.items()},
            None if self.repeats is None else self.repeats.rows(which),
        )  # fmt: skip


def latency_of(cycles: NDArray[np.int64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Latency in the finest unit a target has: cycles where it counts them, which are exact, else
    seconds. Shapes (rows,); NaN where a row is not valid."""
    if (cycles > 0).any():
        return np.where(cycles > 0, cycles.astype(np.float64), np.nan)
    return seconds


Capabilities = Mapping[type[Any], object]
"""What a target can do beyond `Target`: by protocol of `targets.capabilities` what does it."""


class Target(Protocol):
    """A piece of hardware with the schedule space and compiler that belong to it.

    Every method takes and returns whole batches; a config that cannot be compiled or run is a typed
    row, no exception. `space` and `lower` are deterministic: equal arguments give equal results.
    Whether `measure` is, the target says. What only some targets can do is a protocol of its own
    (`targets.capabilities`). `targets.conformance` checks all of it.
    """

    @property
    def name(self) -> str:
        """What a user calls it."""

    @property
    def fingerprint(self) -> str:
        """Content hash of what can change a measurement: hardware, space, compiler, simulator."""

    @property
    def deterministic(self) -> bool:
        """Whether measuring a config again gives the same numbers. If not, what another run has
        measured is no substitute for measuring, a finished stage is not taken from a cache, and a
        run ends by validating its leaders."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond this; empty where it is nothing."""

    def hardware_features(self) -> dict[str, float]:
        """Numbers that describe the hardware to a model that has seen other hardware."""

    def space(self, workload: Workload) -> Space:
        """The schedules this target offers for a workload. Raises `WorkloadError` if none."""

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch, configs of shape (n, knobs). Failures are rows with a class and a
        reason."""

    def measure(self, lowered: Lowered) -> Measurements:
        """Run a batch's programs; rows that were not compiled come back as `compile_error`."""
