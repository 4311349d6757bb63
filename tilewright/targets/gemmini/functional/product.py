"""Multiplies blocks as the array does: PRELOAD and COMPUTE, weight- and output-stationary.

Blocks are `block` (16, 16), `a` (16, 16), `b` (16, 16) and `sums` (16, 16). The weights in use and
the next ones are `weights` (2, 16, 16).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini import registers as reg
from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.functional.memories import Memories
from tilewright.targets.gemmini.functional.rounding import (
    activated,
    saturated,
    scaled_int8,
    shifted,
)
from tilewright.targets.gemmini.isa import (
    COMPUTE_PRELOADED,
    WEIGHT_STATIONARY,
    accumulates,
    accumulator_row,
    columns,
    in_accumulator,
    is_garbage,
    local_address,
    rows,
    scratchpad_row,
)
from tilewright.targets.gemmini.registers import Registers
from tilewright.targets.gemmini.spec import DIM, GemminiMachine

ARRAY_OUTPUT_BITS = 20
A, B, D = 0, 1, 2


@stage
def preload(m: GemminiMachine, regs: Registers, mems: Memories, rs1: int, rs2: int) -> None:
    """Name the weights or the initial sums, and the destination of the COMPUTE that follows."""
    config = regs.config
    config[reg.PRELOAD_RS1] = rs1
    config[reg.PRELOAD_RS2] = rs2
    if config[reg.DATAFLOW] == WEIGHT_STATIONARY:
        read_operand(m, regs, mems, rs1, 1, config[reg.B_TRANSPOSED] == 1, mems.weights[1])


@stage
def compute(
    m: GemminiMachine, regs: Registers, mems: Memories, funct: int, rs1: int, rs2: int
) -> None:
    """One product and its result."""
    config = regs.config
    weight_stationary = config[reg.DATAFLOW] == WEIGHT_STATIONARY
    transposed_a, transposed_b = config[reg.A_TRANSPOSED] == 1, config[reg.B_TRANSPOSED] == 1
    read_operand(m, regs, mems, rs1, config[reg.A_STRIDE], transposed_a, mems.operand[A])
    if weight_stationary:
        if funct == COMPUTE_PRELOADED:
            exchange(mems.weights)
        read_operand(m, regs, mems, rs2, 1, False, mems.operand[D])
        result = mems.operand[D]
        multiply(mems.operand[A], mems.weights[0], result)
    else:
        read_operand(m, regs, mems, rs2, 1, transposed_b, mems.operand[B])
        if funct == COMPUTE_PRELOADED:
            read_operand(m, regs, mems, config[reg.PRELOAD_RS1], 1, False, mems.sums)
        result = mems.sums
        multiply(mems.operand[A], mems.operand[B], result)
    write_result(m, regs, mems, config[reg.PRELOAD_RS2], result, not weight_stationary)


@stage
def read_operand(
    m: GemminiMachine, regs: Registers, mems: Memories, operand: int, stride: int, transposed: bool,
    block: NDArray[np.int32],
) -> None:  # fmt: skip
    """A 16 x 16 block from local memory, zeros beyond its size; zeros for the garbage address.

    The size in the operand is that of the block as it is multiplied: a transposed one is stored
    with its columns as rows.
    """
    address, n_rows, n_columns = local_address(operand), rows(operand), columns(operand)
    block[:] = 0
    if is_garbage(m, address):
        return
    stored_rows, stored_columns = (n_columns, n_rows) if transposed else (n_rows, n_columns)
    for r in range(min(stored_rows, DIM)):
        for c in range(min(stored_columns, DIM)):
            if in_accumulator(address):
                value = nb.int64(mems.accumulator[accumulator_row(m, address, r * stride), c])
                value = activated(value, regs.config[reg.EX_ACTIVATION])
                value = scaled_int8(value, regs.scales[reg.EX_SCALE])
            else:
                value = nb.int64(mems.scratchpad[scratchpad_row(m, address, r * stride), c])
            if transposed:
                block[c, r] = value
            else:
                block[r, c] = value


@stage
def exchange(weights: NDArray[np.int32]) -> None:
    """Use the weights of the last PRELOAD; those in use before are overwritten by the next one."""
    for r in range(DIM):
        for c in range(DIM):
            kept = weights[0, r, c]
            weights[0, r, c] = weights[1, r, c]
            weights[1, r, c] = kept


@stage
def multiply(a: NDArray[np.int32], b: NDArray[np.int32], sums: NDArray[np.int32]) -> None:
    """Add the product of two 16 x 16 blocks to the sums, which wrap around as int32."""
    for r in range(DIM):
        for k in range(DIM):
            factor = a[r, k]
            if factor != 0:
                for c in range(DIM):
                    sums[r, c] += factor * b[k, c]


@stage
def write_result(
    m: GemminiMachine,
    regs: Registers,
    mems: Memories,
    operand: int,
    sums: NDArray[np.int32],
    shifts: bool,
) -> None:
    """The result to scratchpad or accumulator, its rows `C stride` apart."""
    address, config = local_address(operand), regs.config
    if is_garbage(m, address):
        return
    for r in range(min(rows(operand), DIM)):
        offset = r * config[reg.C_STRIDE]
        for c in range(min(columns(operand), DIM)):
            value = nb.int64(sums[r, c])
            if shifts:
                value = saturated(shifted(value, config[reg.SHIFT]), ARRAY_OUTPUT_BITS)
            if in_accumulator(address):
                row = accumulator_row(m, address, offset)
                if accumulates(address):
                    value += nb.int64(mems.accumulator[row, c])
                mems.accumulator[row, c] = np.int32(value)
            else:
                value = activated(saturated(value, 8), config[reg.EX_ACTIVATION])
                mems.scratchpad[scratchpad_row(m, address, offset), c] = np.int8(value)
