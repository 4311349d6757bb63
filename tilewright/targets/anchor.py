"""Anchor operators, such as the convolution or dense layer with which a workload begins.

The module also converts between an anchor operator and its text. In the text, a size is written as
`key=value`, for example `c=64`, `k=3x5` or `p=1x0x0x1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from tilewright.core.errors import WorkloadError


def pair(*values: int) -> str:
    """Format one or several sizes of the same dimension as text.

    Args:
        *values: the sizes, for example height and width of a kernel.

    Returns:
        The sizes separated by `x`, such as `3x5`; a single number if all sizes are equal.
    """
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def pads(top: int, left: int, bottom: int, right: int) -> str:
    """Format the padding of an image as text.

    Args:
        top: rows of padding above the image.
        left: columns of padding to the left of the image.
        bottom: rows of padding below the image.
        right: columns of padding to the right of the image.

    Returns:
        Two numbers, top and left, such as `1x2`, if the padding on opposite sides is equal; a
        single number if the padding is equal on all four sides; otherwise all four numbers, in the
        order of the arguments.
    """
    return pair(top, left) if (top, left) == (bottom, right) else pair(top, left, bottom, right)


@dataclass(frozen=True)
class Sizes:
    """Sizes that were parsed from a workload's text, such as `c=64` or `k=3x5`.

    Attributes:
        text: the text of the workload, for error messages.
        values: one to four numbers per key, for example `{"k": (3, 5)}`.
    """

    text: str
    values: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str, items: Iterable[str]) -> Sizes:
        """Parse items such as `c=64` or `k=3x5`.

        Args:
            text: the whole text of the workload, for error messages.
            items: the items of that text, each `key=value`.

        Raises:
            WorkloadError: an item cannot be parsed, or a key is repeated.
        """
        values: dict[str, tuple[int, ...]] = {}
        for item in items:
            key, _, value = item.strip().partition("=")
            if not re.fullmatch(r"\d+(x\d+){0,3}", value) or key in values:
                raise WorkloadError(
                    f"cannot read '{item}' in '{text}'; write KEY=NUMBER, for example c=64 or k=3x5"
                )
            values[key] = tuple(int(part) for part in value.split("x"))
        return cls(text, values)

    def size(self, key: str, default: int) -> int:
        """Return the size of a key that has one number, such as `c`.

        Args:
            key: the key in the text of the workload.
            default: result if the text does not have the key.
        """
        return self.values.get(key, (default,))[0]

    def size_pair(self, key: str, default: int) -> tuple[int, int]:
        """Return the (vertical, horizontal) sizes of a key such as `k`.

        A single number stands for both sizes.

        Args:
            key: the key in the text of the workload.
            default: both results if the text does not have the key.
        """
        sizes = self.values.get(key, (default,))
        return sizes[0], sizes[-1]

    def padding_sizes(self, key: str) -> tuple[int, int, int, int]:
        """Return padding as (top, left, bottom, right), in rows and columns.

        One number in the text stands for all four sides. Two numbers stand for top and bottom, and
        for left and right.

        Args:
            key: the key in the text of the workload. If the text does not have the key, all four
                results are 0.
        """
        sizes = self.values.get(key, (0,))
        top, left, bottom, right = sizes if len(sizes) == 4 else (sizes[0], sizes[-1]) * 2
        return top, left, bottom, right


Operator = Literal["conv2d", "dense", "max_pool", "batch_matmul"]
DType = Literal["int8", "float32", "bfloat16"]
"""Element type of the operands that are multiplied. With `bfloat16`, the tensors are stored as
float32, and their values are rounded to bfloat16 before they are multiplied."""

KEYS: Mapping[str, tuple[str, str]] = {
    "conv2d": ("c h w o k", "n s p d g"),
    "dense": ("c o", "n"),
    "max_pool": ("c h w k", "n s p d"),
    "batch_matmul": ("h c o", "n"),
}
"""Keys of a workload in its text form, by operator name. Each value is a pair of strings: the
required keys and the optional keys, separated by spaces."""


class Windows(Protocol):
    """Geometry of a sliding window: kernel size, strides and the padding around the image."""

    @property
    def kernel_h(self) -> int:
        """Height of a window in rows."""

    @property
    def kernel_w(self) -> int:
        """Width of a window in columns."""

    @property
    def stride_h(self) -> int:
        """Vertical stride in rows."""

    @property
    def stride_w(self) -> int:
        """Horizontal stride in columns."""

    @property
    def pad_top(self) -> int:
        """Number of padding rows above the image."""

    @property
    def pad_left(self) -> int:
        """Number of padding columns to the left of the image."""

    @property
    def pad_bottom(self) -> int:
        """Number of padding rows below the image."""

    @property
    def pad_right(self) -> int:
        """Number of padding columns to the right of the image."""


@dataclass(frozen=True)
class Anchor:
    """The operator with which a workload begins, with static shapes and without post-operations.

    Sizes are in elements; tensors are in NCHW layout, weights in OIHW layout. The meaning of the
    sizes depends on the operator:

    - `dense` is a `conv2d` with a 1×1 image and a 1×1 kernel. Its weight matrix is `in_channels` ×
      `out_channels`.
    - `batch_matmul` multiplies `batch` pairs of matrices, `height` × `in_channels` by `in_channels`
      × `out_channels`.
    - `max_pool` takes the maximum of each window of a channel. Padding pixels are ignored.

    Raises:
        WorkloadError: the sizes are inconsistent, for example if the kernel is larger than the
            padded image.
    """

    operator: Operator
    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    dtype: DType = field(default="int8", kw_only=True)

    def __post_init__(self) -> None:
        for name in (
            "batch", "in_channels", "height", "width", "out_channels", "kernel_h", "kernel_w",
            "stride_h", "stride_w", "dilation_h", "dilation_w", "groups",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} must be at least 1, not {getattr(self, name)}")
        check_pads(self)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise WorkloadError(
                f"groups={self.groups} must divide both channel counts "
                f"({self.in_channels} in, {self.out_channels} out)"
            )
        if self.operator == "max_pool":
            if self.in_channels != self.out_channels or self.groups != self.in_channels:
                raise WorkloadError("a max_pool does not mix channels, so c, o and g must be equal")
            check_windows(self)
        if self.operator == "batch_matmul" and self.width != 1:
            raise WorkloadError("a batch_matmul has rows (h) but no width; leave out w")
        if self.sums_height < 1 or self.sums_width < 1:
            raise WorkloadError(
                f"the kernel ({self.kernel_h}×{self.kernel_w}) is larger than the padded image"
            )

    @property
    def sums_height(self) -> int:
        """Number of output rows of the anchor operator, before any post-operation."""
        reach = self.dilation_h * (self.kernel_h - 1) + 1
        return (self.height + self.pad_top + self.pad_bottom - reach) // self.stride_h + 1

    @property
    def sums_width(self) -> int:
        """Number of output columns of the anchor operator, before any post-operation."""
        reach = self.dilation_w * (self.kernel_w - 1) + 1
        return (self.width + self.pad_left + self.pad_right - reach) // self.stride_w + 1

    @property
    def macs_of_sums(self) -> int:
        """Number of multiply-accumulates of the anchor operator; 0 for a `max_pool`.

        Multiplications with the padding that fills up hardware blocks are not counted.
        """
        if self.operator == "max_pool":
            return 0
        return (
            self.batch * self.out_channels * self.sums_height * self.sums_width
            * (self.in_channels // self.groups) * self.kernel_h * self.kernel_w
        )  # fmt: skip

    @property
    def sizes_text(self) -> str:
        """Text of the operator and its sizes, without patterns and element type."""
        sizes = (
            f"n={self.batch},c={self.in_channels},h={self.height},w={self.width}"
            f",o={self.out_channels}"
        )
        if self.operator == "dense":
            return f"dense:n={self.batch},c={self.in_channels},o={self.out_channels}"
        if self.operator == "batch_matmul":
            return (
                f"batch_matmul:n={self.batch},h={self.height},c={self.in_channels}"
                f",o={self.out_channels}"
            )
        if self.operator == "max_pool":
            sizes = sizes.rpartition(",")[0]
        around = pads(self.pad_top, self.pad_left, self.pad_bottom, self.pad_right)
        text = (
            f"{self.operator}:{sizes},k={pair(self.kernel_h, self.kernel_w)}"
            f",s={pair(self.stride_h, self.stride_w)},p={around}"
        )
        if (self.dilation_h, self.dilation_w) != (1, 1):
            text += f",d={pair(self.dilation_h, self.dilation_w)}"
        grouped = self.groups > 1 and self.operator != "max_pool"
        return text + (f",g={self.groups}" if grouped else "")


def anchor_of(operator: str, sizes: Sizes, dtype: DType) -> Anchor:
    """Build an anchor operator from the parsed sizes of a workload's text.

    Args:
        operator: name of the operator, one of the keys of `KEYS`.
        sizes: the parsed sizes. Missing sizes default to 1, missing padding to 0.
        dtype: element type of the operands.

    Raises:
        WorkloadError: the sizes are inconsistent.
    """
    pool = operator == "max_pool"
    kernel, stride, dilation = (
        sizes.size_pair("k", 1),
        sizes.size_pair("s", 1),
        sizes.size_pair("d", 1),
    )
    top, left, bottom, right = sizes.padding_sizes("p")
    return Anchor(
        operator=cast(Operator, operator),
        batch=sizes.size("n", 1),
        in_channels=sizes.size("c", 1),
        height=sizes.size("h", 1),
        width=sizes.size("w", 1),
        out_channels=sizes.size("c" if pool else "o", 1),
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=stride[0],
        stride_w=stride[1],
        pad_top=top,
        pad_left=left,
        pad_bottom=bottom,
        pad_right=right,
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        groups=sizes.size("c" if pool else "g", 1),
        dtype=dtype,
    )


def check_pads(windows: Windows) -> None:
    """Raise `WorkloadError` if a window operator has negative padding on any side.

    Args:
        windows: kernel size, strides and padding of the operator.
    """
    if min(windows.pad_top, windows.pad_left, windows.pad_bottom, windows.pad_right) < 0:
        raise WorkloadError("padding must not be negative")


def check_windows(windows: Windows) -> None:
    """Check that no window of an operator lies entirely in the padding.

    A max-pool ignores padding pixels, so such a window would have no maximum.

    Args:
        windows: kernel size, strides and padding of the operator.

    Raises:
        WorkloadError: the padding on a side is as large as the kernel or larger.
    """
    around = (windows.pad_top, windows.pad_bottom, windows.pad_left, windows.pad_right)
    sizes = (windows.kernel_h, windows.kernel_h, windows.kernel_w, windows.kernel_w)
    if any(pad >= size for pad, size in zip(around, sizes, strict=True)):
        raise WorkloadError("a max_pool's padding must be smaller than its window")
