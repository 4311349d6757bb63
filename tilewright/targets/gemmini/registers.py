"""Configuration registers of the accelerator, which CONFIG commands set.

Both the checks and the execution of command streams use these registers. Functions that find a
fault write its value and its limit to the array `fault`, shape (3,).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini import faults as f
from tilewright.targets.gemmini.isa import (
    CONFIG_EX,
    CONFIG_LD,
    CONFIG_ST,
    KEEP_SCALE,
    SCALE_ONE,
    bits,
)
from tilewright.targets.gemmini.numba_decorators import stage

# Indices into `Registers.config`: the three load states, each LOAD_FIELDS after the last one
LOAD_STRIDE, LOAD_SCALE_BITS, LOAD_SHRINK, LOAD_BLOCK_STRIDE, LOAD_PIXEL_REPEATS = 0, 1, 2, 3, 4
LOAD_SET = 5
LOAD_FIELDS = 6
LOAD_STATES = 3
# Indices of the store unit's registers
STORE_STRIDE, STORE_ACTIVATION, STORE_SET = 18, 19, 20
POOL_STRIDE, POOL_SIZE, POOL_OUT_COLUMNS, POOLED_ROWS, POOLED_COLUMNS = 21, 22, 23, 24, 25
POOL_ROWS, POOL_COLUMNS, POOL_UPPER_PAD, POOL_LEFT_PAD = 26, 27, 28, 29
# Indices of the array's registers
DATAFLOW, EX_ACTIVATION, A_TRANSPOSED, B_TRANSPOSED = 30, 31, 32, 33
A_STRIDE, C_STRIDE, SHIFT, EX_SET = 34, 35, 36, 37
# Indices of a PRELOAD that waits for its COMPUTE
PENDING, PRELOAD_RS1, PRELOAD_RS2 = 38, 39, 40
CONFIG_FIELDS = 41
# Indices into `Registers.scales`; the first three are the scales of the load states
STORE_SCALE, EX_SCALE = 3, 4


class Registers(NamedTuple):
    """Configuration registers of the load, execute and store units.

    The registers also record the PRELOAD that waits for its COMPUTE.
    """

    config: NDArray[np.int64]  # shape (CONFIG_FIELDS,)
    scales: NDArray[np.float32]  # shape (5,)
    scale_bits: NDArray[np.uint32]  # bits of `scales`, in the same memory, shape (5,)


def blank_registers() -> Registers:
    """Return the registers after reset: scales are 1, and pixels are not repeated."""
    config = np.zeros(CONFIG_FIELDS, np.int64)
    config[LOAD_SCALE_BITS : LOAD_STATES * LOAD_FIELDS : LOAD_FIELDS] = SCALE_ONE
    config[LOAD_PIXEL_REPEATS : LOAD_STATES * LOAD_FIELDS : LOAD_FIELDS] = 1
    scales = np.ones(5, np.float32)
    return Registers(config, scales, scales.view(np.uint32))


@stage
def configure(regs: Registers, a: int, b: int, fault: NDArray[np.int64]) -> int:
    """Execute a CONFIG_EX, CONFIG_LD or CONFIG_ST command, which changes the registers.

    Args:
        regs: configuration registers; changed in place.
        a: first operand of the command.
        b: second operand of the command.
        fault: shape (3,); the value and the limit of a fault are written to it.

    Returns:
        The fault code; 0 if the command is valid.
    """
    unit = bits(a, 0, 2)
    if unit == CONFIG_EX:
        configure_array(regs, a, b)
        return 0
    if unit == CONFIG_LD:
        number = bits(a, 3, 2)
        if number >= LOAD_STATES:
            fault[0], fault[1] = number, LOAD_STATES
            return f.UNSUPPORTED_LOAD_STATE
        configure_load(regs, number, a, b)
        return 0
    if unit == CONFIG_ST:
        configure_store(regs, a, b)
        return 0
    fault[0] = unit
    return f.UNSUPPORTED_CONFIG


@stage
def configure_array(regs: Registers, a: int, b: int) -> None:
    """Execute a CONFIG_EX command, which configures the array.

    If bit 7 of the first operand is set, only the strides are changed.

    Args:
        regs: configuration registers; changed in place.
        a: first operand of the command.
        b: second operand of the command.
    """
    config = regs.config
    config[EX_SET] = 1
    config[A_STRIDE], config[C_STRIDE] = bits(a, 16, 16), bits(b, 48, 16)
    if bits(a, 7, 1) == 0:
        config[DATAFLOW], config[EX_ACTIVATION] = bits(a, 2, 1), bits(a, 3, 2)
        config[A_TRANSPOSED], config[B_TRANSPOSED] = bits(a, 8, 1), bits(a, 9, 1)
        config[SHIFT] = bits(b, 0, 5)
        regs.scale_bits[EX_SCALE] = bits(a, 32, 32)


@stage
def configure_load(regs: Registers, number: int, a: int, b: int) -> None:
    """Execute a CONFIG_LD command, which changes the registers of one load configuration.

    Args:
        regs: configuration registers; changed in place.
        number: index of the load configuration, 0 to 2.
        a: first operand of the command.
        b: second operand of the command.
    """
    config, state = regs.config, number * LOAD_FIELDS
    config[state + LOAD_SET] = 1
    config[state + LOAD_STRIDE] = bits(b, 0, 40)
    config[state + LOAD_SHRINK] = bits(a, 2, 1)
    config[state + LOAD_BLOCK_STRIDE] = bits(a, 16, 14)
    config[state + LOAD_PIXEL_REPEATS] = max(bits(a, 8, 5), 1)
    config[state + LOAD_SCALE_BITS] = bits(a, 32, 32)
    regs.scale_bits[number] = bits(a, 32, 32)


@stage
def configure_store(regs: Registers, a: int, b: int) -> None:
    """Execute a CONFIG_ST command, which configures the store unit.

    A pool stride of 0 leaves most of the pool's geometry unchanged.

    Args:
        regs: configuration registers; changed in place.
        a: first operand of the command.
        b: second operand of the command.
    """
    config = regs.config
    config[STORE_SET] = 1
    config[STORE_STRIDE] = bits(b, 0, 32)
    config[STORE_ACTIVATION] = bits(a, 2, 2)
    if bits(b, 32, 32) != KEEP_SCALE:
        regs.scale_bits[STORE_SCALE] = bits(b, 32, 32)
    stride, size = bits(a, 4, 2), bits(a, 6, 2)
    config[POOL_STRIDE], config[POOL_SIZE] = stride, size
    if stride != 0:
        config[POOLED_ROWS], config[POOLED_COLUMNS] = bits(a, 32, 8), bits(a, 40, 8)
        config[POOL_UPPER_PAD], config[POOL_LEFT_PAD] = bits(a, 8, 2), bits(a, 10, 2)
    if stride != 0 or size != 0:
        config[POOL_OUT_COLUMNS] = bits(a, 24, 8)
        config[POOL_ROWS], config[POOL_COLUMNS] = bits(a, 48, 8), bits(a, 56, 8)
