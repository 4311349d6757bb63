"""Computes sums, maxima and element-wise steps by plain integer arithmetic, for references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.anchor import Anchor, Windows
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps.registry import STEP_KINDS

Integers = NDArray[np.int64]


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
