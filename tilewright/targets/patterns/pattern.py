"""Defines the contract of a post-operation with shapes or tensors of its own.

It says its text, when it is legal, what is left of an image, and what it computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.anchor import Anchor, Sizes
from tilewright.targets.epilogue import EpilogueOp

Integers = NDArray[np.int64]


class Pattern(ABC):
    """A post-operation that is more than an element-wise step. Each kind is a frozen dataclass in a
    file of its own; `targets.patterns.registry` lists them.

    `name` is its key in files, `keys` are those of its sizes in a workload's text, and `called` is
    how a message names it. `is_behind` says where it stands: behind the element-wise steps, or
    before them. One that has steps of its own has them in a field `epilogue`.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    called: ClassVar[str]
    operators: ClassVar[tuple[str, ...]] = ("conv2d",)
    is_behind: ClassVar[bool] = False
    has_steps: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def parse(cls, sizes: Sizes) -> Self | None:
        """The one of a workload's text; None where it has none. Raises `WorkloadError`."""

    @abstractmethod
    def __str__(self) -> str:
        """As it stands in a workload's text."""

    @property
    @abstractmethod
    def title(self) -> str:
        """As it stands in a short name, behind a space."""

    @abstractmethod
    def check(self, anchor: Anchor, patterns: Sequence[Pattern]) -> None:
        """Raise `WorkloadError` where it does not fit a workload, which is an anchor with these
        patterns, itself among them."""

    @abstractmethod
    def computed(
        self, anchor: Anchor, total: Integers, tensors: Mapping[str, NDArray[Any]],
        acc_bits: int,
    ) -> Integers:  # fmt: skip
        """What it makes of accumulators (n, o, oh, ow), by plain integer arithmetic."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns that it leaves of so many."""
        return height, width

    def beside(self, anchor: Anchor) -> Anchor | None:
        """Return an operator of its own that it brings along; `steps` follow that."""
        return None

    @property
    def steps(self) -> tuple[EpilogueOp, ...]:
        """Element-wise steps of its own."""
        return cast("tuple[EpilogueOp, ...]", getattr(self, "epilogue", ()))

    def with_steps(self, steps: tuple[EpilogueOp, ...]) -> Self:
        """The same with other steps of its own, where it has any."""
        return cast(Self, replace(cast(Any, self), epilogue=steps)) if self.has_steps else self

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(cast(Any, self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises `KeyError` or `TypeError` if it was not written by `to_json`."""
        if not cls.has_steps:
            return cls(**values)
        steps = tuple(EpilogueOp(**step) for step in values["epilogue"])
        return cls(**{**values, "epilogue": steps})


def size_left(anchor: Anchor, patterns: Iterable[Pattern]) -> tuple[int, int]:
    """Return the rows and columns that patterns leave of the sums of an anchor."""
    size = anchor.sums_height, anchor.sums_width
    for pattern in patterns:
        size = pattern.size(*size)
    return size
