"""Interface of fused patterns: post-operations that have shapes or tensors of their own.

A pattern defines its text form, its validity checks, its output size, and its computation.
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
    """Abstract base class of a post-operation that is more than an element-wise step.

    Examples are a max-pool or an added shortcut. A workload consists of an anchor operator, such as
    a convolution, followed by element-wise steps and patterns. Each subclass is a frozen dataclass
    in its own module and is listed in `targets.patterns.PATTERNS`.

    Attributes:
        name: key of the pattern in JSON files.
        keys: keys of the pattern's sizes in the text of a workload.
        called: name of the pattern in messages to users.
        operators: anchor operators that the pattern can follow.
        is_behind: True if the pattern follows the element-wise steps of the workload, False if it
            precedes them.
        has_steps: whether the pattern has element-wise steps of its own, in a field `epilogue`.
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
        """Build the pattern from the sizes in a workload's text.

        Args:
            sizes: the sizes in the text, by key.

        Returns:
            The pattern, or None if the text does not contain this kind of pattern.

        Raises:
            WorkloadError: the sizes are incomplete.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Return the pattern's part of the workload text, which `parse` reads."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Text of the pattern in the short name of a workload."""

    @abstractmethod
    def check(self, anchor: Anchor, patterns: Sequence[Pattern]) -> None:
        """Check that the pattern fits its workload.

        Args:
            anchor: anchor operator of the workload.
            patterns: all patterns of the workload, including this one.

        Raises:
            WorkloadError: the pattern does not fit.
        """

    @abstractmethod
    def apply(
        self, anchor: Anchor, total: Integers, tensors: Mapping[str, NDArray[Any]],
        acc_bits: int,
    ) -> Integers:  # fmt: skip
        """Apply the pattern to accumulators, in plain integer arithmetic.

        Args:
            anchor: anchor operator of the workload.
            total: accumulators, int64, shape (n, o, oh, ow).
            tensors: operands of the workload, by name.
            acc_bits: width of the accumulators in bits.

        Returns:
            The accumulators after the pattern, int64, shape (n, o, h, w) with the height and width
            that `size` returns.
        """

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the pattern's output for an input of the given size."""
        return height, width

    def second_anchor(self, anchor: Anchor) -> Anchor | None:
        """Return the second operator that the pattern adds to the workload, or None without one.

        The element-wise steps in `steps` are applied to the results of this second operator.

        Args:
            anchor: anchor operator of the workload.
        """
        return None

    @property
    def steps(self) -> tuple[EpilogueOp, ...]:
        """Element-wise steps that belong to the pattern, in order; empty if it has none."""
        return cast("tuple[EpilogueOp, ...]", getattr(self, "epilogue", ()))

    def with_steps(self, steps: tuple[EpilogueOp, ...]) -> Self:
        """Return a copy of the pattern with its element-wise steps replaced.

        A pattern without steps is returned unchanged.
        """
        return cast(Self, replace(cast(Any, self), epilogue=steps)) if self.has_steps else self

    def to_json(self) -> dict[str, Any]:
        """Return the pattern as a JSON-compatible dict that `from_json` reads."""
        return asdict(cast(Any, self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build a pattern from the result of `to_json`.

        Raises:
            KeyError: the field `epilogue` is missing.
            TypeError: another field is missing or unknown.
        """
        if not cls.has_steps:
            return cls(**values)
        steps = tuple(EpilogueOp(**step) for step in values["epilogue"])
        return cls(**{**values, "epilogue": steps})


def size_left(anchor: Anchor, patterns: Iterable[Pattern]) -> tuple[int, int]:
    """Return the height and width of an operator's output after the given patterns.

    Args:
        anchor: the operator.
        patterns: patterns in the order in which they are applied.
    """
    size = anchor.sums_height, anchor.sums_width
    for pattern in patterns:
        size = pattern.size(*size)
    return size
