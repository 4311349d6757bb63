"""Interface of post-operations that have shapes or tensors of their own.

A pattern defines its text, its validity checks, the output size, and the computation.
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
    """A post-operation that is more than an element-wise step.

    Each kind of pattern is a frozen dataclass in a module of its own, listed in
    `targets.patterns.PATTERNS`.

    Attributes:
        name: key of the pattern in JSON files.
        keys: keys of its sizes in the text of a workload.
        called: name of the pattern in messages.
        operators: anchor operators that may have the pattern.
        is_behind: whether the pattern comes after the element-wise steps; otherwise it comes before
            them.
        has_steps: whether the pattern has an epilogue of its own, in a field `epilogue`.
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
        """Return the pattern that the sizes of a workload's text describe.

        Returns:
            The pattern; None if the text does not have one of this kind.

        Raises:
            WorkloadError: the sizes are incomplete.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Return the text of the pattern within the text of a workload."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Text of the pattern in a short name of a workload."""

    @abstractmethod
    def check(self, anchor: Anchor, patterns: Sequence[Pattern]) -> None:
        """Raise an error if the pattern does not fit its workload.

        Args:
            anchor: the anchor operator of the workload.
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
            anchor: the anchor operator of the workload.
            total: accumulators, shape (n, o, oh, ow).
            tensors: operands of the workload, by name.
            acc_bits: width of the accumulators in bits.
        """

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the output, given those of the input."""
        return height, width

    def second_anchor(self, anchor: Anchor) -> Anchor | None:
        """Return the second operator that the pattern adds to a workload, or None.

        The pattern's `steps` are applied to the results of this operator.
        """
        return None

    @property
    def steps(self) -> tuple[EpilogueOp, ...]:
        """The element-wise steps of the pattern itself."""
        return cast("tuple[EpilogueOp, ...]", getattr(self, "epilogue", ()))

    def with_steps(self, steps: tuple[EpilogueOp, ...]) -> Self:
        """Return the same pattern with other steps of its own; unchanged if it has none."""
        return cast(Self, replace(cast(Any, self), epilogue=steps)) if self.has_steps else self

    def to_json(self) -> dict[str, Any]:
        """Return the pattern as JSON, for `from_json`."""
        return asdict(cast(Any, self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a pattern that `to_json` wrote.

        Raises:
            KeyError: a field is missing.
            TypeError: a field is missing or unknown.
        """
        if not cls.has_steps:
            return cls(**values)
        steps = tuple(EpilogueOp(**step) for step in values["epilogue"])
        return cls(**{**values, "epilogue": steps})


def size_left(anchor: Anchor, patterns: Iterable[Pattern]) -> tuple[int, int]:
    """Return the height and width that remain after patterns are applied to an anchor's output."""
    size = anchor.sums_height, anchor.sums_width
    for pattern in patterns:
        size = pattern.size(*size)
    return size
