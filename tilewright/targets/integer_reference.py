"""Reference implementation of int8 workloads in plain integer arithmetic.

The outputs of every target are compared with this reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.anchor import Anchor, Windows
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps import STEP_KINDS

if TYPE_CHECKING:  # avoids a cycle: workloads import the patterns, which import this module
    from tilewright.targets.workload import Workload

Integers = NDArray[np.int64]
_LARGEST_TAP = 127  # largest int8


def total_taps(height: int, width: int) -> int:
    """Return the sum of the integer weights with which a window is averaged.

    The sum is a power of two, so that the average needs a shift instead of a division. If the
    number of pixels is a power of two, the sum is that number. Otherwise the sum is the largest
    power of two for which each weight still fits int8.

    Args:
        height: height of the window.
        width: width of the window.
    """
    taps = height * width
    return taps if taps & (taps - 1) == 0 else 1 << int(math.log2(_LARGEST_TAP * taps))


def average_weights(height: int, width: int) -> tuple[NDArray[np.int8], int]:
    """Return integer weights that average a window.

    If the number of pixels is a power of two, all weights are 1. Otherwise the weights are as large
    as int8 allows and differ by at most 1; the larger ones are spread evenly over the window.

    Args:
        height: height of the window.
        width: width of the window.

    Returns:
        The weights, int8 array of shape (height, width), and the exponent m such that their sum is
        2^m.
    """
    taps, total = height * width, total_taps(height, width)
    ends = np.arange(taps + 1, dtype=np.int64) * total // taps
    return np.diff(ends).astype(np.int8).reshape(height, width), total.bit_length() - 1


def apply_epilogue(
    steps: Sequence[EpilogueOp], total: Integers, tensors: Mapping[str, NDArray[Any]],
    acc_bits: int,
) -> Integers:  # fmt: skip
    """Apply the element-wise steps of an epilogue to accumulators.

    The result of each step wraps modulo 2^acc_bits.

    Args:
        steps: the steps, in order.
        total: accumulators, shape (n, o, oh, ow).
        tensors: operands of the steps, by the kind of the step that reads them. A `weighted` step
            reads the tensor `residual`.
        acc_bits: width of the accumulators in bits.

    Returns:
        The accumulators after the last step, int64, shape (n, o, oh, ow).
    """
    total = wrap(total, acc_bits)
    for op in steps:
        total = wrap(STEP_KINDS[op.kind].apply(total, op.value, tensors), acc_bits)
    return total


def sums(w: Anchor, tensors: Mapping[str, NDArray[Any]]) -> Integers:
    """Return the sums of products of a convolution, dense layer or matrix product.

    The products of one kernel position are summed in floating point, because numpy multiplies
    integer matrices without BLAS, which is slow. The sums are exact: sums of up to 1024 int8
    products stay below 2^24, the limit of float32; other sums stay far below 2^53, the limit of
    float64.

    Args:
        w: the operator.
        tensors: `data` of shape (n, c, h, w) and `weight` of shape (o, c/groups, kh, kw).

    Returns:
        The sums, int64, shape (n, o, oh, ow).
    """
    data, weight = tensors["data"], tensors["weight"]
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    small = data.dtype == weight.dtype == np.int8 and per_in <= 1024
    real = np.float32 if small else np.float64
    pixels = w.sums_height * w.sums_width
    total = np.zeros((w.batch, w.groups, per_out, pixels))
    padded = np.pad(data.astype(real), _padding_around(w))
    for i, j, window_pixels in _windows(w, padded, (w.dilation_h, w.dilation_w)):
        window = window_pixels.reshape(w.batch, w.groups, per_in, pixels)
        taps = weight[:, :, i, j].astype(real).reshape(w.groups, per_out, per_in)
        total += taps * window if per_in == 1 else taps @ window
    return total.astype(np.int64).reshape(w.batch, w.out_channels, w.sums_height, w.sums_width)


def maxima(w: Windows, data: NDArray[Any], dilation: tuple[int, int] = (1, 1)) -> Integers:
    """Return the maximum of each window of each channel, ignoring pixels in the padding.

    Args:
        w: geometry of the windows.
        data: images of shape (n, c, h, w).
        dilation: vertical and horizontal dilation.

    Returns:
        Maxima, int64, shape (n, c, oh, ow).
    """
    least = np.iinfo(np.int64).min
    padded = np.pad(data.astype(np.int64), _padding_around(w), constant_values=least)
    windows = _windows(w, padded, dilation)
    total: Integers = next(windows)[2]
    for _, _, window in windows:
        total = np.maximum(total, window)
    return total


def _padding_around(w: Windows) -> tuple[tuple[int, int], ...]:
    return (0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)


def _windows(
    w: Windows, padded: NDArray[Any], dilation: tuple[int, int]
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Yield the input pixels that each kernel position is multiplied with.

    Args:
        w: geometry of the sliding window.
        padded: the padded images, shape (n, c, h, w).
        dilation: vertical and horizontal distance of adjacent kernel positions, in pixels.

    Yields:
        Row and column within the kernel, and the pixels, shape (n, c, oh, ow).
    """
    last = [
        size - (kernel - 1) * step
        for size, kernel, step in zip(
            padded.shape[2:], (w.kernel_h, w.kernel_w), dilation, strict=True
        )
    ]
    for i in range(w.kernel_h):
        for j in range(w.kernel_w):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + last[0], w.stride_h)
            yield i, j, padded[:, :, rows, left : left + last[1] : w.stride_w]


def wrap(values: Integers, bits: int) -> Integers:
    """Wrap integers to two's complement numbers of a given width.

    Args:
        values: int64 array of any shape.
        bits: width in bits.
    """
    if bits in (8, 16, 32):
        return values.astype(f"i{bits // 8}").astype(np.int64)
    half = 1 << (bits - 1)
    return ((values + half) & ((1 << bits) - 1)) - half


def reference(
    workload: Workload, tensors: Mapping[str, NDArray[Any]], acc_bits: int = 32, out_bits: int = 8,
    *, exact: bool = False,
) -> Integers:  # fmt: skip
    """Compute the output of a workload on integer tensors.

    Accumulators and the results of every post-operation wrap modulo 2^acc_bits. The final result is
    truncated to `out_bits`.

    Args:
        workload: the workload.
        tensors: the operands by name: `data` (n, c, h, w) and `weight` (o, c/groups, kh, kw). If
            the epilogue has these steps, also `bias` (o,), `shr_channel` (o,), `add` (n, o, oh, ow)
            and `residual` (n, o, oh, ow), where (oh, ow) is the size before an average. The names
            of a shortcut's operands begin with `shortcut_`.
        acc_bits: width of the accumulators in bits.
        out_bits: width of the output in bits.
        exact: whether to reject tensors whose sums of products do not fit `acc_bits`.

    Returns:
        The output, int64, shape (n, o, oh, ow).

    Raises:
        OverflowError: `exact` is set and a sum of products would wrap.
    """
    w = workload
    if w.operator == "max_pool":
        total = maxima(w, tensors["data"], (w.dilation_h, w.dilation_w))
    else:
        total = sums(w, tensors)
    if exact and not np.array_equal(total, wrap(total, acc_bits)):
        raise OverflowError(f"the sums of {w} overflow {acc_bits} bits on these tensors")
    total = wrap(total, acc_bits)
    for post_operation in w.post:
        if isinstance(post_operation, EpilogueOp):
            total = apply_epilogue((post_operation,), total, tensors, acc_bits)
        else:
            total = wrap(post_operation.apply(w, total, tensors, acc_bits), acc_bits)
    return wrap(total, out_bits)
