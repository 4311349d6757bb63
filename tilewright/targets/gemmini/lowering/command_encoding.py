"""Encoding of commands as triples of function code, first operand and second operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.isa import (
    CONFIG,
    CONFIG_EX,
    CONFIG_LD,
    CONFIG_ST,
    RELU,
    SCALE_ONE,
    WEIGHT_STATIONARY,
)
from tilewright.targets.gemmini.lowering.epilogue import StoreEpilogue

Command = tuple[int, int, int]
"""One command: its function code and its two 64-bit operands."""
CommandTable = NDArray[np.uint64]
"""Table of commands, uint64 of shape (n, 3) with the columns funct, rs1 and rs2."""
ACCUMULATOR, ACCUMULATES = 1 << 31, 1 << 30


def operand(address: Any, columns: Any, rows: Any) -> Any:
    """Encode an operand of a command: a local address, and the size of the matrix stored there.

    Args:
        address: row in the scratchpad or accumulator, with the flag bits of the address.
        columns: number of columns of the matrix.
        rows: number of rows of the matrix.

    Returns:
        The encoded operand. If the arguments are integer arrays, the result is an array, too.
    """
    return address | columns << 32 | rows << 48


def commands(rows: Sequence[Command]) -> CommandTable:
    """Convert a sequence of commands to a table of shape (n, 3)."""
    return np.array(rows, np.uint64).reshape(-1, 3)


def encode_array_config(dataflow: int = WEIGHT_STATIONARY) -> Command:
    """Encode the CONFIG command of the array, with row strides of 1, no scaling and no shift.

    Args:
        dataflow: `WEIGHT_STATIONARY` or `OUTPUT_STATIONARY`.
    """
    return CONFIG, CONFIG_EX | dataflow << 2 | 1 << 16 | SCALE_ONE << 32, 1 << 48


def encode_load_config(state: int, stride: int, block_stride: int) -> Command:
    """Encode a CONFIG command of the load unit, which holds three independent configurations.

    Args:
        state: index of the configuration, 0 to 2. MVIN, MVIN2 and MVIN3 use one each.
        stride: distance between rows in main memory, in bytes.
        block_stride: distance between blocks of 16 columns in the local memory, in rows.
    """
    return CONFIG, CONFIG_LD | state << 3 | block_stride << 16 | SCALE_ONE << 32, stride


class StoredPool(NamedTuple):
    """Configuration of a max-pool that the store unit applies to accumulators.

    Attributes:
        size: side length of the square window.
        stride: stride of the window.
        above: number of padding rows above the accumulators.
        left: number of padding columns to the left of the accumulators.
        out_columns: number of columns of the whole output image.
        rows: number of output rows that the store writes.
        columns: number of output columns that the store writes.
        sum_rows: number of rows of convolution results that the store reads.
        sum_columns: number of columns of convolution results that the store reads.
    """

    size: int
    stride: int
    above: int
    left: int
    out_columns: int
    rows: int
    columns: int
    sum_rows: int
    sum_columns: int


def encode_store_config(
    stride: int, epilogue: StoreEpilogue, pool: StoredPool | None = None
) -> Command:
    """Encode the CONFIG command of the store unit.

    Args:
        stride: distance between rows in main memory, in bytes.
        epilogue: scale and ReLU of the store.
        pool: pooling of the store; None for no pooling.
    """
    bits = int(np.float32(epilogue.scale).view(np.uint32))
    word = CONFIG_ST | (RELU if epilogue.relu else 0) << 2
    if pool is not None:
        fields = zip(pool, (6, 4, 8, 10, 24, 32, 40, 48, 56), strict=True)
        word |= sum(value << place for value, place in fields)
    return CONFIG, word, stride | bits << 32
