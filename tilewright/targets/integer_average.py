"""Averages an image in integers: taps whose sum is a power of two."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_MOST = 127  # of an int8


def total_taps(height: int, width: int) -> int:
    """The sum of the taps that average a window, a power of two: as many as there are pixels, or as
    large as lets each be an int8."""
    taps = height * width
    return taps if taps & (taps - 1) == 0 else 1 << int(math.log2(_MOST * taps))


def average_weights(height: int, width: int) -> tuple[NDArray[np.int8], int]:
    """The taps (height, width) that average a window: integers whose sum is 2^m, and m.

    Equal ones where the window has a power of two of pixels; else as large as int8 allows and as
    equal as can be, the larger ones spread evenly.
    """
    taps, total = height * width, total_taps(height, width)
    ends = np.arange(taps + 1, dtype=np.int64) * total // taps
    return np.diff(ends).astype(np.int8).reshape(height, width), total.bit_length() - 1
