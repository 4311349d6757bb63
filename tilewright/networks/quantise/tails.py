"""Predicts what int8 will cut off of values that no calibration sample has: the largest magnitudes
that were seen, continued by an exponential tail.

The largest of a few samples says little of the next one. Where a tensor's largest value lies just
below a power of two, similar inputs exceed it and are cut off. Excesses over a high threshold are
close to a generalised Pareto distribution (Pickands 1975). Its shape is taken as zero, an
exponential of the mean excess, for a few dozen values do not tell the shape. Tensors with a hard
end, such as images, have mean excesses near zero and lose nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARE = 0.01
"""Of all values the share in the tail, at least `LEAST` and at most `MOST` of them."""
LEAST, MOST = 8, 64
WEIGHT = 2.0
"""What is cut off counts so many times its square: it falls on a few inputs, which it spoils, where
coarser steps spread the same error over all."""


class Tail:
    """The largest magnitudes of one tensor over all samples."""

    def __init__(self) -> None:
        self._count = 0
        self._top = np.empty(0, np.float64)

    def add(self, values: NDArray[Any]) -> None:
        """Take in the values of a sample, an array of any shape."""
        magnitudes = np.abs(values.ravel())
        self._count += magnitudes.size
        self._top = _top(np.concatenate([self._top, _top(magnitudes)]))

    def unseen_error(self, limit: float) -> float:
        """`WEIGHT` times the squared error that cutting off at ± `limit` is expected to make in as
        many values as were seen, less what it makes in those; 0 where that is more, or where
        `limit` is no part of the tail."""
        top = np.sort(self._top[self._top > 0])[::-1]
        size = min(max(LEAST, int(self._count * SHARE)), MOST, top.size - 1)
        if size < 1 or limit < top[size]:
            return 0.0
        threshold, tail = float(top[size]), top[:size]
        excess = float((tail - threshold).mean())
        if excess <= 0:
            return 0.0
        expected = size * math.exp(-(limit - threshold) / excess) * 2 * excess**2
        seen = float(np.sum(np.maximum(tail - limit, 0.0) ** 2))
        return WEIGHT * max(0.0, expected - seen)


def _top(magnitudes: NDArray[Any]) -> NDArray[np.float64]:
    """The `MOST` + 1 largest, in any order; (n,)."""
    if magnitudes.size > MOST + 1:
        magnitudes = np.partition(magnitudes, magnitudes.size - MOST - 1)[-MOST - 1 :]
    return magnitudes.astype(np.float64)
