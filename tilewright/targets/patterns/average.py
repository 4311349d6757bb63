"""Global average pooling that is fused with a convolution and computed on its accumulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.anchor import Anchor, Sizes, pair
from tilewright.targets.epilogue import CLIPPED_TO_INT8, CONSTANTS, EpilogueOp
from tilewright.targets.integer_reference import apply_epilogue, average_weights
from tilewright.targets.patterns.max_pool import Pool
from tilewright.targets.patterns.pattern import Integers, Pattern, size_left


@dataclass(frozen=True)
class Average(Pattern):
    """Global average pooling: the weighted sum of all results of a channel, then scaling steps.

    The integer weights are those of `targets.integer_reference.average_weights`. The steps after
    the sum read only constants.

    Attributes:
        height: height of the averaged image in pixels.
        width: width of the averaged image in pixels.
        epilogue: element-wise steps after the sum.
    """

    name: ClassVar[str] = "average"
    keys: ClassVar[tuple[str, ...]] = ("avg",)
    called: ClassVar[str] = "an average (avg)"
    is_behind: ClassVar[bool] = True
    has_steps: ClassVar[bool] = True

    height: int
    width: int
    epilogue: tuple[EpilogueOp, ...] = CLIPPED_TO_INT8

    @classmethod
    def parse(cls, sizes: Sizes) -> Self | None:
        """Build the average from the key `avg`. Return None if the key is missing."""
        return cls(*sizes.size_pair("avg", 1)) if "avg" in sizes.values else None

    def __str__(self) -> str:
        return f"avg={pair(self.height, self.width)}"

    @property
    def title(self) -> str:
        """Text of the average in the short name of a workload."""
        return "avg"

    def check(self, anchor: Anchor, patterns: Sequence[Pattern]) -> None:
        """Check that a workload can have this average.

        Args:
            anchor: convolution of the workload.
            patterns: all patterns of the workload, including this one.

        Raises:
            WorkloadError: the operator is not an int8 `conv2d`, a max-pool is fused as well, the
                size is not that of the convolution's output, or a step reads a tensor.
        """
        pooled = any(isinstance(pattern, Pool) for pattern in patterns)
        if anchor.operator != "conv2d" or pooled or anchor.dtype != "int8":
            raise WorkloadError("only an int8 conv2d without a pool can have an average (avg)")
        rows, columns = size_left(
            anchor, (pattern for pattern in patterns if not pattern.is_behind)
        )
        if (self.height, self.width) != (rows, columns):
            raise WorkloadError(
                f"its average covers {self.height}×{self.width} pixels, but its output has "
                f"{rows}×{columns}"
            )
        wrong = next((op for op in self.epilogue if op.kind not in CONSTANTS), None)
        if wrong is not None:
            raise WorkloadError(
                f"'{wrong}' is not possible: the epilogue of an average can only use constants"
            )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the output, which is one pixel."""
        return 1, 1

    def apply(
        self, anchor: Anchor, total: Integers, tensors: Mapping[str, NDArray[Any]],
        acc_bits: int,
    ) -> Integers:  # fmt: skip
        """Sum the accumulators of each channel with weights, and apply the steps after the sum.

        Args:
            anchor: convolution of the workload.
            total: accumulators, int64, shape (n, o, oh, ow).
            tensors: not used.
            acc_bits: width of the accumulators in bits.

        Returns:
            The averages, int64, shape (n, o, 1, 1).
        """
        taps, _ = average_weights(self.height, self.width)
        averaged = (total * taps).sum(axis=(2, 3), keepdims=True).astype(np.int64)
        return apply_epilogue(self.epilogue, averaged, {}, acc_bits)
