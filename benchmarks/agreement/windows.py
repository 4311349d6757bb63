"""Draws convolutions and pools with windows in one dimension or two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.agreement.graph import FloatGraph, Shape, Tensor

MOST_MACS = 1_500_000
"""Of a whole network."""


@dataclass(frozen=True)
class Window:
    """ONNX's attributes of a sliding window, and the size of what it makes of each dimension."""

    attributes: dict[str, Any]
    results: Shape

    @property
    def kernel(self) -> Shape:
        return tuple(self.attributes["kernel_shape"])


def drawn_window(net: FloatGraph, sizes: Shape, *, pool: bool) -> Window | None:
    """A window over `sizes` pixels; None where what was drawn does not fit."""
    rank = len(sizes)
    kernel = _each(net, rank, [2, 2, 3] if pool else [1, 1, 3, 3, 3, 2, 5])
    stride = _each(net, rank, [1, 2, 2] if pool else [1, 1, 1, 2])
    dilation = _each(net, rank, [1, 1, 1, 1, 2]) if not pool else (1,) * rank
    reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": stride}
    if not pool:
        given["dilations"] = dilation
    ceil = pool and net.chance(0.3)
    form = net.pick(["same", "same", "none", "drawn", "SAME_UPPER", "SAME_LOWER", "VALID"])
    begin, end = (0,) * rank, (0,) * rank
    if form in ("same", "drawn"):
        least = tuple(k - 1 for k in kernel) if pool else tuple(r - 1 for r in reach)
        if form == "same":
            begin = tuple(size // 2 for size in least)
            end = (
                begin
                if net.chance(0.7)
                else tuple(s - b for s, b in zip(least, begin, strict=True))
            )
        else:
            begin, end = (
                tuple(int(net.rng.integers(0, min(size, 3) + 1)) for size in least)
                for _ in range(2)
            )
        given["pads"] = (*begin, *end)
    elif form != "none":
        given["auto_pad"], ceil = form, False
        if form != "VALID" and not pool:  # onnxruntime runs no dilation with these
            given["dilations"], reach = (1,) * rank, kernel
    if ceil:
        given["ceil_mode"] = 1
    results = []
    for size, r, s, b, e in zip(sizes, reach, stride, begin, end, strict=True):
        if form.startswith("SAME"):
            results.append(-(-size // s))
            continue
        room = size + b + e - r
        if room < 0:
            return None
        made = (-(-room // s) if ceil else room // s) + 1
        if ceil and (made - 1) * s >= size + b:  # a window of padding alone is left out
            made -= 1
        results.append(made)
    return Window(given, tuple(results))


def _each(net: FloatGraph, rank: int, values: list[int]) -> Shape:
    """One for all dimensions, seldom one each."""
    if net.chance(0.2):
        return tuple(int(net.pick(values)) for _ in range(rank))
    return (int(net.pick(values)),) * rank


class Convolutions:
    """Draws convolutions of one network, some of which share their weights."""

    def __init__(self, net: FloatGraph) -> None:
        self.net = net
        self._known: dict[Shape, str] = {}

    def conv(self, x: Tensor, channels: int | None = None) -> Tensor | None:
        """Grouped, depthwise or plain; None where it does not fit or is too large. `channels` asks
        for so many, and for results of the size of `x`."""
        net, (n, c, *sizes) = self.net, x.shape
        if channels is None:
            window = drawn_window(net, tuple(sizes), pool=False)
        else:
            window = _same_size(net, tuple(sizes))
        if window is None or not math.prod(window.results):
            return None
        groups = self._groups(c) if channels is None else 1
        if groups == c and c > 1:
            made = c * int(net.pick([1, 1, 2]))
        elif groups > 1:
            made = groups * int(net.pick([1, 3, 8]))
        else:
            made = channels or int(net.pick([3, 5, 8, 16, 16, 17, 24, 32, 40]))
        shape = (made, c // groups, *window.kernel)
        macs = math.prod(window.results) * math.prod(shape) * n
        if net.macs + macs > MOST_MACS:
            return None
        net.macs += macs
        given = dict(window.attributes)
        if groups > 1:
            given["group"] = groups
        if net.chance(0.3):
            given.pop("kernel_shape")  # the weights say it, too
        reads: list[Tensor | str] = [x, self._weight(shape)]
        if net.chance(0.7):
            reads.append(net.constant(net.normal((made,)) * np.float32(0.3)))
        return net.op("Conv", reads, (n, made, *window.results), **given)

    def _weight(self, shape: Shape) -> str:
        if shape in self._known and self.net.chance(0.5):
            return self._known[shape]
        self._known[shape] = self.net.weight(shape, math.prod(shape[1:]))
        return self._known[shape]

    def _groups(self, channels: int) -> int:
        some = [each for each in (2, 3, 4, 8) if not channels % each and each < channels]
        kind = self.net.pick(["plain"] * 5 + ["depthwise", "depthwise", "grouped"])
        if kind == "grouped" and some:
            return int(self.net.pick(some))
        return channels if kind == "depthwise" else 1


def _same_size(net: FloatGraph, sizes: Shape) -> Window:
    kernel = (int(net.pick([1, 3])),) * len(sizes)
    pads = tuple(k // 2 for k in kernel) * 2
    return Window({"kernel_shape": kernel, "pads": pads}, sizes)


def pool(net: FloatGraph, x: Tensor) -> Tensor | None:
    """A max or average pool; None where it does not fit."""
    n, c, *sizes = x.shape
    if net.chance(0.15):
        kind = net.pick(["GlobalAveragePool", "GlobalMaxPool"])
        return net.op(kind, [x], (n, c, *(1 for _ in sizes)))
    window = drawn_window(net, tuple(sizes), pool=True)
    if window is None or not math.prod(window.results):
        return None
    given = dict(window.attributes)
    if net.chance(0.5):
        return net.op("MaxPool", [x], (n, c, *window.results), **given)
    if net.opset < 19 and given.get("ceil_mode"):
        return None  # what is divided by there was only settled later
    given["count_include_pad"] = int(net.pick([0, 1]))
    return net.op("AveragePool", [x], (n, c, *window.results), **given)
