"""Provides the transforms of Winograd's convolution F(m×m, 3×3), a row at a time.

Each is applied to the columns of a square, then to its rows. Common parts are written alike, so
that LLVM computes them once. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural
Networks (2016).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module

tirx = lazy_module("tvm.tirx")

SIZES = (2, 4)
"""Pixels a side that one tile gives (m)."""

_Matrix = tuple[tuple[float, ...], ...]

_FILTER: dict[int, _Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
    ),
}  # fmt: skip


def data_row(m: int, d: list[Any]) -> list[Any]:
    """Sums of the m + 2 numbers `d` of a row of a patch, as many."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    even, odd = d[4] - d[2] * _number(4), d[3] - d[1] * _number(4)
    near, far = d[4] - d[2], (d[3] - d[1]) * _number(2)
    first = d[0] * _number(4) - d[2] * _number(5) + d[4]
    last = d[1] * _number(4) - d[3] * _number(5) + d[5]
    return [first, even + odd, even - odd, near + far, near - far, last]


def filter_row(m: int, w: list[Any]) -> list[Any]:
    """The m + 2 sums of the three weights `w` of a filter's row."""
    if m == 2:
        even, odd = (w[0] + w[2]) * _number(1 / 2), w[1] * _number(1 / 2)
        return [w[0], even + odd, even - odd, w[2]]
    even, odd = (w[0] + w[2]) * _number(-1 / 6), w[1] * _number(-1 / 6)
    near, far = w[0] * _number(1 / 24) + w[2] * _number(1 / 6), w[1] * _number(1 / 12)
    return [w[0] * _number(1 / 4), even + odd, even - odd, near + far, near - far, w[2]]


def inverse_row(m: int, p: list[Any]) -> list[Any]:
    """The m sums of the m + 2 numbers `p` of a row of products."""
    if m == 2:
        return [p[0] + p[1] + p[2], p[1] - p[2] - p[3]]
    one, other = p[1] + p[2], p[1] - p[2]
    two, four = p[3] + p[4], p[3] - p[4]
    return [
        p[0] + one + two,
        other + four * _number(2),
        one + two * _number(4),
        other + four * _number(8) + p[5],
    ]


def transformed_filters(m: int, filters: NDArray[Any]) -> NDArray[np.float64]:
    """Of filters of shape (…, 3, 3), shape (…, m + 2, m + 2)."""
    matrix = np.asarray(_FILTER[m])
    found: NDArray[np.float64] = matrix @ filters.astype(np.float64) @ matrix.T
    return found


def chosen(row: Any, values: list[Any]) -> Any:
    """The value of that row; a choice that is gone once the loop over rows is unrolled."""
    found = values[-1]
    for number in reversed(range(len(values) - 1)):
        found = tirx.Select(row == number, values[number], found)
    return found


def _number(value: float) -> Any:
    return tirx.const(value, "float32")
