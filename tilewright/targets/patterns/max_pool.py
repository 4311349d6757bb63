"""Max-pool that is fused with a convolution and reads the convolution's accumulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.anchor import Anchor, Sizes, check_pads, check_windows, pads, pair
from tilewright.targets.integer_reference import maxima
from tilewright.targets.patterns.pattern import Integers, Pattern


@dataclass(frozen=True)
class Pool(Pattern):
    """Max-pool of a convolution's accumulators, per channel.

    Padding pixels do not take part in the maximum. All fields are in pixels.
    """

    name: ClassVar[str] = "pool"
    keys: ClassVar[tuple[str, ...]] = ("mk", "ms", "mp")
    called: ClassVar[str] = "a pool (mk)"

    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0

    @classmethod
    def parse(cls, sizes: Sizes) -> Self | None:
        """Build the pool from the keys `mk`, `ms` and `mp`. Return None if they are missing."""
        if "mk" in sizes.values:
            return cls(
                *sizes.size_pair("mk", 1), *sizes.size_pair("ms", 1), *sizes.padding_sizes("mp")
            )
        if set(cls.keys) & set(sizes.values):
            raise WorkloadError(
                f"'{sizes.text}' pools its sums (ms, mp) but has no mk, the size of the window; "
                "add mk"
            )
        return None

    def __str__(self) -> str:
        around = pads(self.pad_top, self.pad_left, self.pad_bottom, self.pad_right)
        kernel, stride = (self.kernel_h, self.kernel_w), (self.stride_h, self.stride_w)
        return f"mk={pair(*kernel)},ms={pair(*stride)},mp={around}"

    @property
    def title(self) -> str:
        """Text of the pool in the short name of a workload, such as `max 3×3/2`."""
        return f"max {self.kernel_h}×{self.kernel_w}/{stride_title(self.stride_h, self.stride_w)}"

    def check(self, anchor: Anchor, patterns: Sequence[Pattern]) -> None:
        """Check that a workload can have this pool.

        Args:
            anchor: convolution of the workload.
            patterns: all patterns of the workload, including this one.

        Raises:
            WorkloadError: the operator is not a `conv2d`, a size is invalid, or the window is
                larger than the padded image.
        """
        if anchor.operator != "conv2d":
            raise WorkloadError("only the sums of a conv2d can be pooled (mk)")
        if min(self.kernel_h, self.kernel_w, self.stride_h, self.stride_w) < 1:
            raise WorkloadError("the window and stride of a pool must be at least 1")
        check_pads(self)
        check_windows(self)
        if min(self.size(anchor.sums_height, anchor.sums_width)) < 1:
            raise WorkloadError("the window of the pool is larger than its padded image")

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the pool's output."""
        rows = height + self.pad_top + self.pad_bottom - self.kernel_h
        columns = width + self.pad_left + self.pad_right - self.kernel_w
        return rows // self.stride_h + 1, columns // self.stride_w + 1

    def apply(
        self, anchor: Anchor, total: Integers, tensors: Mapping[str, NDArray[Any]],
        acc_bits: int,
    ) -> Integers:  # fmt: skip
        """Return the maximum of each window of the accumulators.

        Args:
            anchor: convolution of the workload.
            total: accumulators, int64, shape (n, o, oh, ow).
            tensors: not used.
            acc_bits: not used.

        Returns:
            The maxima, int64, in the height and width of the pool's output.
        """
        return maxima(self, total)


def stride_title(rows: int, columns: int) -> str:
    """Format strides for a short name, such as `2` or `2×1`."""
    return str(rows) if rows == columns else f"{rows}×{columns}"
