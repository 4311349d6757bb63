"""The contract between a tuner and a piece of hardware. Everything takes and returns batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from targets.workload import Workload

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

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        return np.array([len(knob.values) for knob in self.knobs], dtype=np.int64)

    @property
    def size(self) -> int:
        """How many configs there are."""
        return int(np.prod(self.cardinalities)) if self.listed is None else len(self.listed)

    def unravel(self, flat: NDArray[np.int64]) -> Configs:
        """Flat indices, shape (n,) → configs, shape (n, knobs)."""
        return np.stack(
            np.unravel_index(flat, tuple(self.cardinalities), order="F"), axis=1
        ).astype(np.int32)

    def ravel(self, configs: Configs) -> NDArray[np.int64]:
        """Configs, shape (n, knobs) → flat indices, shape (n,)."""
        indices = tuple(configs.T.astype(np.int64))
        flat = np.ravel_multi_index(indices, tuple(self.cardinalities), order="F")
        return np.asarray(flat, dtype=np.int64)

    def values(self, configs: Configs) -> NDArray[np.int64]:
        """The knobs' values of each config, shape (n, knobs)."""
        columns = [np.asarray(knob.values)[configs[:, k]] for k, knob in enumerate(self.knobs)]
        return np.stack(columns, axis=1).astype(np.int64)

    def describe(self, config: Sequence[int]) -> dict[str, int]:
        """One config as a mapping from knob name to value."""
        return {knob.name: knob.values[int(i)] for knob, i in zip(self.knobs, config, strict=True)}


@dataclass(frozen=True)
class Lowered:
    """A batch after compilation. Row r was compiled where `failures[r]` is empty.

    `hidden` has shape (configs, len(hidden_names)), float64, NaN where compiling failed: quantities
    that only compiling reveals, never anything that was measured.
    """

    workload: Workload
    configs: Configs
    failures: NDArray[np.object_]  # class of the failure, "" where compiled
    reasons: NDArray[np.object_]  # stage and cause in one sentence, "" where compiled
    hidden: NDArray[np.float64]
    hidden_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Shape (configs,): which rows have a program."""
        return np.asarray(self.failures == "", dtype=np.bool_)

    def rows(self, which: NDArray[Any]) -> Lowered:
        """The sub-batch of the given row indices or mask."""
        return replace(
            self,
            configs=self.configs[which],
            failures=self.failures[which],
            reasons=self.reasons[which],
            hidden=self.hidden[which],
        )


@dataclass(frozen=True)
class Measurements:
    """What running a batch gave, one entry a config.

    `cycles` is -1 and `seconds` NaN where the status is not `valid`; `seconds` is latency on the
    accelerator (cycles / clock), not the time the measurement took. `counters` holds further
    integers by name (instructions, bytes moved, busy cycles), -1 where unknown.
    """

    status: NDArray[np.object_]  # of Status
    reason: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    counters: dict[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.status)

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Shape (configs,): which rows ran and gave the right numbers."""
        return np.asarray(self.status == "valid", dtype=np.bool_)


class Target(Protocol):
    """A piece of hardware with the schedule space and compiler that belong to it.

    Implementations are deterministic: equal arguments give equal results. Every method takes and
    returns whole batches; a config that cannot be compiled or run is a typed row, no exception.
    """

    @property
    def name(self) -> str:
        """What a user calls it."""
        ...

    @property
    def fingerprint(self) -> str:
        """Content hash of what can change a measurement: hardware, space, compiler, simulator."""
        ...

    def hardware_features(self) -> dict[str, float]:
        """Numbers that describe the hardware to a model that has seen other hardware."""
        ...

    def space(self, workload: Workload) -> Space:
        """The schedules this target offers for a workload. Raises `WorkloadError` if none."""
        ...

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Compile a batch. Failures are rows with a class and a reason."""
        ...

    def measure(self, lowered: Lowered) -> Measurements:
        """Run a batch; rows that were not compiled come back as `compile_error`."""
        ...
