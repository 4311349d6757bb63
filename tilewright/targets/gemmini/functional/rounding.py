"""Scales integers as the hardware does: through float32, to the nearest even, saturated."""

from __future__ import annotations

import numpy as np

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.isa import RELU


@stage
def scaled_int8(value: int, scale: float) -> int:
    """`value` as float32, times `scale` (float32), to the nearest even integer, as int8.

    Configs.scala, `mvin_scale_args` and `acc_scale_args`: three roundings, all to nearest even.
    Infinities saturate; what is not a number becomes the largest.
    """
    product = np.float32(value) * np.float32(scale)
    if product != product:
        return 127
    rounded = np.rint(product)
    if rounded >= np.float32(127.0):
        return 127
    if rounded <= np.float32(-128.0):
        return -128
    return int(rounded)


@stage
def shifted(value: int, shift: int) -> int:
    """`value` (int32) divided by 2^shift, to the nearest even (Arithmetic.scala, SInt `>>`)."""
    if shift == 0:
        return value
    half = (value >> (shift - 1)) & 1
    below = value & ((1 << (shift - 1)) - 1)
    quotient = value >> shift
    if half == 1 and (below != 0 or quotient & 1 == 1):
        return quotient + 1
    return quotient


@stage
def saturated(value: int, width: int) -> int:
    """`value` within the range of a signed integer of `width` bits."""
    top = (1 << (width - 1)) - 1
    if value > top:
        return top
    if value < -top - 1:
        return -top - 1
    return value


@stage
def activated(value: int, activation: int) -> int:
    """`value` after ReLU, if that is the activation."""
    if activation == RELU and value < 0:
        return 0
    return value
