"""Computes int8 workloads by plain integer arithmetic: the reference of every target."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.anchor import Anchor, Windows
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps import STEP_KINDS

if TYPE_CHECKING:  # workloads import the patterns, which compute by this module
    from tilewright.targets.workload import Workload

Integers = NDArray[np.int64]
_LARGEST_TAP = 127  # of an int8


def total_taps(height: int, width: int) -> int:
    """The sum of the taps that average a window, a power of two: as many as there are pixels, or as
    large as lets each be an int8."""
    taps = height * width
    return taps if taps & (taps - 1) == 0 else 1 << int(math.log2(_LARGEST_TAP * taps))


def average_weights(height: int, width: int) -> tuple[NDArray[np.int8], int]:
    """The taps (height, width) that average a window: integers whose sum is 2^m, and m.

    Equal ones where the window has a power of two of pixels; else as large as int8 allows and as
    equal as can be, the larger ones spread evenly.
    """
    taps, total = height * width, total_taps(height, width)
    ends = np.arange(taps + 1, dtype=np.int64) * total // taps
    return np.diff(ends).astype(np.int8).reshape(height, width), total.bit_length() - 1


def behind(
    steps: Sequence[EpilogueOp], total: Integers, tensors: Mapping[str, NDArray[Any]],
    acc_bits: int,
) -> Integers:  # fmt: skip
    """What element-wise steps make of sums (n, o, oh, ow); each wraps modulo 2^acc_bits. The
    tensors have the names of the steps that read them; a `weighted` reads the `residual`."""
    total = wrap(total, acc_bits)
    for op in steps:
        total = wrap(STEP_KINDS[op.kind].apply(total, op.value, tensors), acc_bits)
    return total


def sums(w: Anchor, tensors: Mapping[str, NDArray[Any]]) -> Integers:
    """The sums of products (n, o, oh, ow) of `data` (n, c, h, w) and `weight` (o, c/groups, kh,
    kw). Products of a tap are summed in floating point, exactly: int8 ones of up to 1024 channels
    stay below 2^24, what float32 holds, others far below 2^53."""
    data, weight = tensors["data"], tensors["weight"]
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    small = data.dtype == weight.dtype == np.int8 and per_in <= 1024
    real = np.float32 if small else np.float64
    pixels = w.sums_height * w.sums_width
    total = np.zeros((w.batch, w.groups, per_out, pixels))
    padded = np.pad(data.astype(real), _around(w))
    for i, j, found in _windows(w, padded, (w.dilation_h, w.dilation_w)):
        window = found.reshape(w.batch, w.groups, per_in, pixels)
        taps = weight[:, :, i, j].astype(real).reshape(w.groups, per_out, per_in)
        total += taps * window if per_in == 1 else taps @ window
    return total.astype(np.int64).reshape(w.batch, w.out_channels, w.sums_height, w.sums_width)


def maxima(w: Windows, data: NDArray[Any], dilation: tuple[int, int] = (1, 1)) -> Integers:
    """The maximum of each window of a channel, (n, c, oh, ow) of (n, c, h, w). Pixels beyond the
    image are less than any other."""
    least = np.iinfo(np.int64).min
    padded = np.pad(data.astype(np.int64), _around(w), constant_values=least)
    windows = _windows(w, padded, dilation)
    total: Integers = next(windows)[2]
    for _, _, window in windows:
        total = np.maximum(total, window)
    return total


def _around(w: Windows) -> tuple[tuple[int, int], ...]:
    return (0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)


def _windows(
    w: Windows, padded: NDArray[Any], dilation: tuple[int, int]
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """What each tap (i, j) multiplies, behind it: (n, c, oh, ow)."""
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
    """Two's complement in `bits` bits, of any shape."""
    if bits in (8, 16, 32):
        return values.astype(f"i{bits // 8}").astype(np.int64)
    half = 1 << (bits - 1)
    return ((values + half) & ((1 << bits) - 1)) - half


def reference(
    workload: Workload, tensors: Mapping[str, NDArray[Any]], acc_bits: int = 32, out_bits: int = 8,
    *, exact: bool = False,
) -> Integers:  # fmt: skip
    """The output (n, o, oh, ow) of a workload on integer `tensors`: `data` (n, c, h, w), `weight`
    (o, c/groups, kh, kw); by their kinds in the epilogue `bias` and `shr_channel` (o,), `add` and
    `residual` (n, o, oh, ow; that of a `weighted`, too), before an average; those of a shortcut
    with `shortcut_` before their names.

    Sums and every post-operation wrap modulo 2^acc_bits, the result is truncated to `out_bits`.
    If `exact`, raises `OverflowError` for sums of products that would wrap.
    """
    w = workload
    if w.operator == "max_pool":
        total = maxima(w, tensors["data"], (w.dilation_h, w.dilation_w))
    else:
        total = sums(w, tensors)
    if exact and not np.array_equal(total, wrap(total, acc_bits)):
        raise OverflowError(f"the sums of {w} leave {acc_bits} bits on these tensors")
    total = wrap(total, acc_bits)
    for each in w.post:
        if isinstance(each, EpilogueOp):
            total = behind((each,), total, tensors, acc_bits)
        else:
            total = wrap(each.computed(w, total, tensors, acc_bits), acc_bits)
    return wrap(total, out_bits)
