"""Computes an int8 workload by plain integer arithmetic: the reference of every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.integer_average import average_weights
from tilewright.targets.workload import Pool, Workload

Integers = NDArray[np.int64]


def reference(
    workload: Workload,
    tensors: Mapping[str, NDArray[Any]],
    acc_bits: int = 32,
    out_bits: int = 8,
) -> Integers:
    """The output (n, o, oh, ow) of a workload on integer `tensors`: `data` (n, c, h, w), `weight`
    (o, c/groups, kh, kw); by their kinds in the epilogue `bias` and `shr_channel` (o,), `add` and
    `residual` (n, o, oh, ow; that of a `weighted`, too), before an average; those of a shortcut
    with `shortcut_` before their names.

    Sums and every step of the epilogue wrap modulo 2^acc_bits, the result is truncated to
    `out_bits`.
    """
    w = workload
    total = _maxima(w, tensors["data"]) if w.operator == "max_pool" else _sums(w, tensors)
    if w.of_shortcut is not None:
        own = of_shortcut(tensors)
        first = _sums(w.of_shortcut, own)
        total = total + _behind(w.of_shortcut.epilogue, first, own, acc_bits)
    total = _wrap(total, acc_bits)
    if w.pool is not None:
        total = _maxima(w.pool, total)
    total = _behind(w.epilogue, total, tensors, acc_bits)
    if w.average is not None:
        taps, _ = average_weights(w.average.height, w.average.width)
        total = (total * taps).sum(axis=(2, 3), keepdims=True)
        total = _behind(w.average.epilogue, total, {}, acc_bits)
    return _wrap(total, out_bits)


def of_shortcut(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The tensors of a shortcut alone, named and shaped as those of a workload: data (n, c, h, w),
    weight (o, c, 1, 1), bias and shifts (o,)."""
    prefix = "shortcut_"
    return {k.removeprefix(prefix): each for k, each in tensors.items() if k.startswith(prefix)}


def _behind(
    epilogue: Sequence[EpilogueOp], total: Integers, tensors: Mapping[str, NDArray[Any]],
    acc_bits: int,
) -> Integers:  # fmt: skip
    """What an epilogue makes of sums (n, o, oh, ow)."""
    total = _wrap(total, acc_bits)
    for op in epilogue:
        if op.kind == "bias":
            total = total + tensors["bias"][None, :, None, None]
        elif op.kind == "add":
            total = total + tensors["add"]
        elif op.kind == "residual":
            total = total + (tensors["residual"].astype(np.int64) << op.value)
        elif op.kind == "weighted":
            total = total + tensors["residual"].astype(np.int64) * op.value
        elif op.kind == "offset":
            total = total + op.value
        elif op.kind == "shr":
            total = total >> op.value
        elif op.kind == "shr_channel":
            total = total >> tensors["shr_channel"][None, :, None, None].astype(np.int64)
        elif op.kind == "shl":
            total = total << op.value
        else:
            total = np.minimum(total, op.value) if op.kind == "min" else np.maximum(total, op.value)
        total = _wrap(total, acc_bits)
    return total


def _sums(w: Workload, tensors: Mapping[str, NDArray[Any]]) -> Integers:
    """Products of a tap are summed in floating point, exactly: int8 ones of up to 1024 channels
    stay below 2^24, what float32 holds, others far below 2^53."""
    data, weight = tensors["data"], tensors["weight"]
    per_in, per_out = w.in_channels // w.groups, w.out_channels // w.groups
    small = data.dtype == weight.dtype == np.int8 and per_in <= 1024
    real = np.float32 if small else np.float64
    pixels = w.sums_height * w.sums_width
    total = np.zeros((w.batch, w.groups, per_out, pixels))
    padded = np.pad(
        data.astype(real),
        ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)),
    )
    for i in range(w.kernel_h):
        for j in range(w.kernel_w):
            window = _window(w, padded, i, j).reshape(w.batch, w.groups, per_in, pixels)
            taps = weight[:, :, i, j].astype(real).reshape(w.groups, per_out, per_in)
            total += taps * window if per_in == 1 else taps @ window
    return total.astype(np.int64).reshape(w.batch, w.out_channels, w.sums_height, w.sums_width)


def _maxima(w: Workload | Pool, data: NDArray[Any]) -> Integers:
    """Pixels beyond the image are less than any other."""
    least = np.iinfo(np.int64).min
    padded = np.pad(
        data.astype(np.int64),
        ((0, 0), (0, 0), (w.pad_top, w.pad_bottom), (w.pad_left, w.pad_right)),
        constant_values=least,
    )
    windows = (_window(w, padded, i, j) for i in range(w.kernel_h) for j in range(w.kernel_w))
    total = next(windows)
    for window in windows:
        total = np.maximum(total, window)
    return total


def _window(w: Workload | Pool, padded: NDArray[Any], i: int, j: int) -> NDArray[Any]:
    """What tap (i, j) multiplies: (n, c, oh, ow)."""
    dilation = (1, 1) if isinstance(w, Pool) else (w.dilation_h, w.dilation_w)
    last = [
        size - (kernel - 1) * step
        for size, kernel, step in zip(
            padded.shape[2:], (w.kernel_h, w.kernel_w), dilation, strict=True
        )
    ]
    top, left = i * dilation[0], j * dilation[1]
    return padded[:, :, top : top + last[0] : w.stride_h, left : left + last[1] : w.stride_w]


def _wrap(values: Integers, bits: int) -> Integers:
    """Two's complement in `bits` bits."""
    if bits in (8, 16, 32):
        return values.astype(f"i{bits // 8}").astype(np.int64)
    half = 1 << (bits - 1)
    return ((values + half) & ((1 << bits) - 1)) - half
