"""Writes pools of images whose channels lie in blocks, (n, c / block, h, w, block).

TVM copies an image between its padding before it pools it. Here a pixel of the padding is read from
the border instead, which changes no maximum, and counts nothing in a mean. All pixels of a window
are written out; its channels are vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
from tvm import te, tirx

from tilewright.networks.compiled.bfloat16_numbers import narrowed, widened
from tilewright.networks.relax.nan_propagation import are_numbers

MOST_PIXELS = 25
"""Of a window that is written out."""
Place = tuple[Any, Any]


@dataclass(frozen=True)
class PoolWindow:
    """What a pool reads for a pixel of its result of `out` rows and columns: `kernel` pixels,
    `dilation` apart, from `stride` times its place less `before` on. Of a mean, `padded` says
    whether the padding counts, as zeros."""

    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]
    mean: bool
    padded: bool

    def is_inside(self, size: Sequence[int]) -> bool:
        """Whether no window reaches into the padding of an image of this size."""
        last = [
            (out - 1) * stride - before + (kernel - 1) * apart
            for out, stride, before, kernel, apart in zip(
                self.out, self.stride, self.before, self.kernel, self.dilation, strict=True
            )
        ]
        return not any(self.before) and all(at < of for at, of in zip(last, size, strict=True))


def pool(image: Any, window: PoolWindow, bfloat16: bool) -> Any:
    """The result (n, c / block, out h, out w, block) of an image (n, c / block, h, w, block).
    Either is float32, or uint16 that holds bfloat16, the result where `bfloat16` says so."""
    n, blocks, *size, block = map(int, image.shape)
    inside = window.is_inside(size)
    lowest = tirx.const(-np.inf, "float32")
    read = widened if image.dtype == "uint16" else _same

    def value(n: Any, c: Any, y: Any, x: Any, i: Any) -> Any:
        rows, columns = (
            [place * stride - before + tap * apart for tap in range(kernel)]
            for place, stride, before, kernel, apart in zip(
                (y, x), window.stride, window.before, window.kernel, window.dilation, strict=True
            )
        )
        taps = []
        for row, column in product(rows, columns):
            at = (row, column) if inside else _nearest((row, column), size)
            found = read(image[(n, c, *at, i)])
            if not inside and window.mean:
                found = found * tirx.Cast("float32", _is_within((row, column), size))
            elif not inside and max(window.dilation) > 1:  # the border may be no pixel of it
                found = tirx.Select(_is_within((row, column), size), found, lowest)
            taps.append(found)
        made = reduce(_plus if window.mean else tirx.max, taps)
        if window.mean:
            made = made * _share(window, (rows, columns), size, inside)
        else:  # one comparison a pair of pixels, where a maximum that keeps NaN takes two a pixel
            made = tirx.Select(are_numbers(taps), made, tirx.const(np.nan, "float32"))
        return narrowed(made) if bfloat16 else made

    return te.compute((n, blocks, *window.out, block), value, name="pool")


def _same(number: Any) -> Any:
    return number


def _plus(one: Any, other: Any) -> Any:
    return one + other


def _nearest(place: Place, size: Sequence[int]) -> Place:
    """The pixel of the image that is nearest to one of its padding."""
    row, column = (tirx.max(tirx.min(at, of - 1), 0) for at, of in zip(place, size, strict=True))
    return row, column


def _is_within(place: Place, size: Sequence[int]) -> Any:
    tests = [(at >= 0, at < of) for at, of in zip(place, size, strict=True)]
    return tirx.all(*(test for pair in tests for test in pair))


def _share(
    window: PoolWindow, taps: tuple[list[Any], list[Any]], size: Sequence[int], inside: bool
) -> Any:
    """What a value is multiplied by, for their mean."""
    if inside or window.padded:
        return tirx.const(1 / (window.kernel[0] * window.kernel[1]), "float32")
    counts = [
        reduce(_plus, [tirx.Cast("int32", tirx.all(at >= 0, at < of)) for at in places])
        for places, of in zip(taps, size, strict=True)
    ]
    return tirx.const(1.0, "float32") / tirx.Cast("float32", counts[0] * counts[1])
