"""Conversion of float32 arrays to bfloat16 and back.

The 16 bits of a bfloat16 number are the upper 16 bits of a float32 number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BELOW_HALF, NAN = 0x7FFF, 0x7FC0
"""Constants of the rounding. `BELOW_HALF`, 1 less than half of the 16 bits that are dropped, is
added before they are dropped, together with the last bit that stays, so that ties are rounded to
even. `NAN` is the bit pattern of a bfloat16 NaN."""


def rounded_array(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    """Round numbers to the nearest bfloat16. Ties are rounded to even.

    Args:
        numbers: array of any shape and dtype; it is converted to float32 first.

    Returns:
        The bits of the bfloat16 numbers, uint16 array of the same shape.
    """
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    near = (bits + ((bits >> 16) & 1) + np.uint32(BELOW_HALF)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint32(NAN), near).astype(np.uint16)


def widened_array(numbers: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert bfloat16 numbers to float32.

    Args:
        numbers: bits of bfloat16 numbers, uint16 array of any shape.

    Returns:
        The same numbers as a float32 array of the same shape.
    """
    return (numbers.astype(np.uint32) << 16).view(np.float32)
