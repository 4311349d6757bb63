"""Moves rows between main memory and the two local memories: MVIN and MVOUT.

Main memory is `memory` (bytes,).
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini import registers as reg
from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.functional.memories import Memories
from tilewright.targets.gemmini.functional.rounding import activated, scaled_int8
from tilewright.targets.gemmini.isa import (
    SCALE_ONE,
    accumulates,
    accumulator_row,
    bits,
    in_accumulator,
    is_full_width,
    load_state,
    local_address,
    move_columns,
    rows,
    scratchpad_row,
)
from tilewright.targets.gemmini.registers import Registers
from tilewright.targets.gemmini.spec import DIM, GemminiMachine
from tilewright.targets.gemmini.validity import ADDRESS_BITS


@stage
def mvin(
    m: GemminiMachine, regs: Registers, mems: Memories, funct: int, rs1: int, rs2: int,
    memory: NDArray[np.uint8], base: int,
) -> None:  # fmt: skip
    """Rows from memory, or zeros from address 0, in blocks of 16 columns.

    A stride of 0 repeats the first row. Only the given columns of a row are written.
    """
    number = load_state(funct)
    state = number * reg.LOAD_FIELDS
    config, scale = regs.config, regs.scales[number]
    address, n_columns = local_address(rs2), move_columns(rs2)
    to_accumulator = in_accumulator(address)
    wide = to_accumulator and config[state + reg.LOAD_SHRINK] == 0
    adds = to_accumulator and accumulates(address)
    multiplies = not wide and config[state + reg.LOAD_SCALE_BITS] != SCALE_ONE
    first, stride = bits(rs1, 0, ADDRESS_BITS), config[state + reg.LOAD_STRIDE]
    repeats = 1 if wide else config[state + reg.LOAD_PIXEL_REPEATS]
    n_rows = rows(rs2)
    for line in range(n_rows):
        # A repeated row fills the last row first, which shows where pixels are repeated.
        r = n_rows - 1 - line if first != 0 and stride == 0 else line
        at = first + r * stride - base
        for c in range(n_columns):
            offset = r + (c // DIM) * config[state + reg.LOAD_BLOCK_STRIDE]
            value = 0
            if first != 0:
                if wide:
                    value = read_int32(memory, at + 4 * c)
                else:
                    value = nb.int64(np.int8(memory[at + c]))
                    if multiplies:
                        value = scaled_int8(value, scale)
            for repeat in range(repeats):
                # The shift has four bits, the columns it multiplies five (PixelRepeater.scala).
                column = c % DIM + ((repeat * (n_columns & 31)) & 15)
                row = (address + offset) & m.address_mask
                middle = m.scratchpad_rows // 2
                if column >= DIM or row < (0 if row < middle else middle) + repeat:
                    continue
                if to_accumulator:
                    row = accumulator_row(m, row - repeat, 0)
                    before = nb.int64(mems.accumulator[row, column]) if adds else 0
                    mems.accumulator[row, column] = np.int32(before + value)
                else:
                    row = scratchpad_row(m, row - repeat, 0)
                    mems.scratchpad[row, column] = np.int8(value)


@stage
def read_int32(memory: NDArray[np.uint8], at: int) -> int:
    """Four bytes, the lowest first."""
    word = (
        nb.int64(memory[at])
        | (nb.int64(memory[at + 1]) << 8)
        | (nb.int64(memory[at + 2]) << 16)
        | (nb.int64(memory[at + 3]) << 24)
    )
    return nb.int64(np.int32(word))


@stage
def mvout(
    m: GemminiMachine,
    regs: Registers,
    mems: Memories,
    rs1: int,
    rs2: int,
    memory: NDArray[np.uint8],
    base: int,
) -> None:
    """Rows to memory: of the scratchpad as they are, of the accumulator scaled or as int32."""
    config = regs.config
    first, stride = bits(rs1, 0, ADDRESS_BITS) - base, config[reg.STORE_STRIDE]
    address, n_columns = local_address(rs2), move_columns(rs2)
    if config[reg.POOL_STRIDE] != 0:
        mvout_pooled(m, regs, mems, first, stride, address, n_columns, memory)
        return
    if config[reg.POOL_SIZE] != 0:
        across = config[reg.POOL_COLUMNS]
        for r in range(config[reg.POOL_ROWS] * across):
            line = (r // across) * config[reg.POOL_OUT_COLUMNS] + r % across
            store_row(m, regs, mems, address, r, n_columns, first + line * stride, memory)
        return
    for r in range(rows(rs2)):
        store_row(m, regs, mems, address, r, n_columns, first + r * stride, memory)


@stage
def store_row(
    m: GemminiMachine, regs: Registers, mems: Memories, address: int, r: int, n_columns: int,
    at: int, memory: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Row r of a source with its blocks side by side, to the image from position `at`."""
    for c in range(n_columns):
        offset = r + (c // DIM) * DIM
        if in_accumulator(address) and is_full_width(address):
            word = nb.int64(mems.accumulator[accumulator_row(m, address, offset), c % DIM])
            for byte in range(4):
                memory[at + 4 * c + byte] = np.uint8((word >> (8 * byte)) & 255)
        else:
            memory[at + c] = np.uint8(local_int8(m, regs, mems, address, offset, c % DIM) & 255)


@stage
def local_int8(
    m: GemminiMachine, regs: Registers, mems: Memories, address: int, offset: int, column: int
) -> int:
    """An int8 as an MVOUT reads it."""
    if in_accumulator(address):
        value = nb.int64(mems.accumulator[accumulator_row(m, address, offset), column])
        value = activated(value, regs.config[reg.STORE_ACTIVATION])
        return scaled_int8(value, regs.scales[reg.STORE_SCALE])
    return nb.int64(mems.scratchpad[scratchpad_row(m, address, offset), column])


@stage
def mvout_pooled(
    m: GemminiMachine, regs: Registers, mems: Memories, first: int, stride: int, address: int,
    n_columns: int, memory: NDArray[np.uint8],
) -> None:  # fmt: skip
    """The largest value of each window; rows beyond the border count as zeros."""
    config, step, size = regs.config, regs.config[reg.POOL_STRIDE], regs.config[reg.POOL_SIZE]
    for out_row in range(config[reg.POOLED_ROWS]):
        for out_column in range(config[reg.POOLED_COLUMNS]):
            line = out_row * config[reg.POOL_OUT_COLUMNS] + out_column
            for c in range(n_columns):
                best = -128
                for window in range(size * size):
                    y = out_row * step + window // size - config[reg.POOL_UPPER_PAD]
                    x = out_column * step + window % size - config[reg.POOL_LEFT_PAD]
                    value = 0
                    if 0 <= y < config[reg.POOL_ROWS] and 0 <= x < config[reg.POOL_COLUMNS]:
                        offset = y * config[reg.POOL_COLUMNS] + x
                        value = local_int8(m, regs, mems, address, offset, c)
                    best = max(best, value)
                memory[first + line * stride + c] = np.uint8(best & 255)
