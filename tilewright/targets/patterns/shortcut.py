"""Shortcut: a second convolution whose results are added to the accumulators of a convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.anchor import Anchor, Sizes, pair
from tilewright.targets.epilogue import CLIPPED_TO_INT8, RESIDUALS, EpilogueOp
from tilewright.targets.integer_reference import apply_epilogue, sums
from tilewright.targets.patterns.max_pool import Pool, stride_title
from tilewright.targets.patterns.pattern import Integers, Pattern, size_left

PREFIX = "shortcut_"
"""Prefix of the names of the tensors that belong to a shortcut."""


@dataclass(frozen=True)
class Shortcut(Pattern):
    """A 1×1 convolution of a second image that is added to the accumulators of a convolution.

    The shortcut's own element-wise steps are applied to its results before the addition. These
    steps may read one value per channel, but no tensor of the output's size.

    Attributes:
        in_channels: number of channels of the second image.
        height: height of the second image in pixels.
        width: width of the second image in pixels.
        stride_h: vertical stride of the 1×1 convolution.
        stride_w: horizontal stride of the 1×1 convolution.
        epilogue: element-wise steps before the addition.
    """

    name: ClassVar[str] = "shortcut"
    keys: ClassVar[tuple[str, ...]] = ("xc", "xi", "xs")
    called: ClassVar[str] = "a shortcut (xc)"
    has_steps: ClassVar[bool] = True

    in_channels: int
    height: int
    width: int
    stride_h: int = 1
    stride_w: int = 1
    epilogue: tuple[EpilogueOp, ...] = CLIPPED_TO_INT8

    @classmethod
    def parse(cls, sizes: Sizes) -> Self | None:
        """Build the shortcut from the keys `xc`, `xi` and `xs`. Return None if they are missing."""
        keys = set(cls.keys) & set(sizes.values)
        if keys and not {"xc", "xi"} <= keys:
            raise WorkloadError(
                f"'{sizes.text}' has a shortcut but lacks its channels (xc) or its image "
                "size (xi); add the missing key"
            )
        return (
            cls(sizes.size("xc", 1), *sizes.size_pair("xi", 1), *sizes.size_pair("xs", 1))
            if keys
            else None
        )

    def __str__(self) -> str:
        image, stride = (self.height, self.width), (self.stride_h, self.stride_w)
        return f"xc={self.in_channels},xi={pair(*image)},xs={pair(*stride)}"

    @property
    def title(self) -> str:
        """Text of the shortcut in the short name of a workload, such as `+ 1×1/2 64`."""
        return f"+ 1×1/{stride_title(self.stride_h, self.stride_w)} {self.in_channels}"

    def check(self, anchor: Anchor, patterns: Sequence[Pattern]) -> None:
        """Check that a workload can have this shortcut.

        Args:
            anchor: convolution of the workload.
            patterns: all patterns of the workload, including this one.

        Raises:
            WorkloadError: the operator is not an int8 `conv2d` with a single group, a max-pool is
                fused as well, a step of the shortcut reads a tensor of the output's size, or the
                two convolutions have results of different sizes.
        """
        pooled = any(isinstance(pattern, Pool) for pattern in patterns)
        if anchor.operator != "conv2d" or pooled or anchor.groups != 1:
            raise WorkloadError(
                "only a conv2d with a single group and without a pool can have a shortcut (xc)"
            )
        if anchor.dtype != "int8":
            raise WorkloadError("a shortcut (xc) needs an integer workload")
        if any(op.kind in ("add", *RESIDUALS) for op in self.epilogue):
            raise WorkloadError(
                "the epilogue of a shortcut cannot read a tensor of the output's size"
            )
        own = self.second_anchor(anchor)
        size = size_left(anchor, (pattern for pattern in patterns if not pattern.is_behind))
        if (own.sums_height, own.sums_width) != size:
            raise WorkloadError(
                f"its shortcut computes {own.sums_height}×{own.sums_width} pixels, but the "
                f"convolution computes {size[0]}×{size[1]}"
            )

    def second_anchor(self, anchor: Anchor) -> Anchor:
        """Return the shortcut's 1×1 convolution as an operator of its own."""
        return Anchor(
            anchor.operator, anchor.batch, self.in_channels, self.height, self.width,
            anchor.out_channels, stride_h=self.stride_h, stride_w=self.stride_w,
            groups=anchor.groups, dtype=anchor.dtype,
        )  # fmt: skip

    def apply(
        self, anchor: Anchor, total: Integers, tensors: Mapping[str, NDArray[Any]],
        acc_bits: int,
    ) -> Integers:  # fmt: skip
        """Compute the shortcut's convolution and steps, and add the result to the accumulators.

        Args:
            anchor: convolution of the workload.
            total: accumulators of the workload, int64, shape (n, o, oh, ow).
            tensors: operands of the workload by name; those of the shortcut begin with `shortcut_`.
            acc_bits: width of the accumulators in bits.

        Returns:
            The new accumulators, in the same shape.
        """
        operands = shortcut_tensors(tensors)
        return total + apply_epilogue(
            self.epilogue, sums(self.second_anchor(anchor), operands), operands, acc_bits
        )


def shortcut_tensors(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Select the tensors of a shortcut and remove the prefix `shortcut_` from their names.

    Args:
        tensors: operands of the workload, by name.

    Returns:
        `data` of shape (n, c, h, w), `weight` of shape (o, c, 1, 1), and `bias` and `shr_channel`
        of shape (o,) if they exist.
    """
    return {k.removeprefix(PREFIX): tensor for k, tensor in tensors.items() if k.startswith(PREFIX)}
