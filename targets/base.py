"""The contract between a tuner and a piece of hardware. Everything takes and returns batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from targets.workload import Workload

Status = Literal["valid", "compile_error", "run_error", "wrong_result", "timeout"]
STATUSES: tuple[Status, ...] = ("valid", "compile_error", "run_error", "wrong_result", "timeout")

Configs = NDArray[np.int32]
"""A batch of configurations, shape (configs, knobs): each entry is an index into its knob's values."""


@dataclass(frozen=True)
class Knob:
    """A named schedule decision with its finite, ordered values."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """The product of some knobs. The flat index counts the first knob fastest."""

    name: str
    knobs: tuple[Knob, ...]

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        return np.array([len(knob.values) for knob in self.knobs], dtype=np.int64)

    @property
    def size(self) -> int:
        return int(np.prod(self.cardinalities))

    def unravel(self, flat: NDArray[np.int64]) -> Configs:
        """Flat indices, shape (n,) → configs, shape (n, knobs)."""
        return np.stack(
            np.unravel_index(flat, tuple(self.cardinalities), order="F"), axis=1
        ).astype(np.int32)

    def ravel(self, configs: Configs) -> NDArray[np.int64]:
        """Configs, shape (n, knobs) → flat indices, shape (n,)."""
        indices = tuple(configs.T.astype(np.int64))
        return np.ravel_multi_index(indices, tuple(self.cardinalities), order="F").astype(np.int64)

    def values(self, configs: Configs) -> NDArray[np.int64]:
        """The knobs' values of each config, shape (n, knobs)."""
        columns = [np.asarray(knob.values)[configs[:, k]] for k, knob in enumerate(self.knobs)]
        return np.stack(columns, axis=1).astype(np.int64)

    def describe(self, config: Sequence[int]) -> dict[str, int]:
        """One config as a mapping from knob name to value."""
        return {knob.name: knob.values[int(i)] for knob, i in zip(self.knobs, config, strict=True)}


@dataclass(frozen=True)
class Lowered:
    """A batch after compilation. Row r has a program where `reasons[r]` is None.

    `hidden` has shape (configs, len(hidden_names)), float64, NaN where lowering failed: quantities
    that only compiling reveals. `programs` is the target's own representation.
    """

    workload: Workload
    space: Space
    configs: Configs
    failures: NDArray[np.str_]  # class of the failure, "" where lowered
    reasons: NDArray[np.str_]  # one sentence: stage and cause, "" where lowered
    hidden: NDArray[np.float64]
    hidden_names: tuple[str, ...]
    programs: Any = None

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Shape (configs,): which rows have a program."""
        return np.asarray(self.failures == "")

    def rows(self, which: NDArray[Any]) -> Lowered:
        """The sub-batch of the given row indices or mask."""
        raise NotImplementedError
