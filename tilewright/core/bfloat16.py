"""Rounds arrays of float32 to bfloat16, whose bits are the upper half of a float32's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BELOW_HALF, NAN = 0x7FFF, 0x7FC0
"""Just below half of the last bit that stays, among those that go; and the bits of NaN."""


def rounded_array(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    """The nearest bfloat16 of each number of an array of any shape, halves to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    near = (bits + ((bits >> 16) & 1) + np.uint32(BELOW_HALF)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint32(NAN), near).astype(np.uint16)


def widened_array(numbers: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 as float32, in the same shape."""
    return (numbers.astype(np.uint32) << 16).view(np.float32)
