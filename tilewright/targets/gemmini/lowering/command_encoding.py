"""Encodes commands: arrays of (function code, first operand, second operand)."""

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
"""Function code and the two operands."""
CommandTable = NDArray[np.uint64]
"""CommandTable (n, 3): funct, rs1, rs2."""
ACCUMULATOR, ACCUMULATES = 1 << 31, 1 << 30


def operand(address: Any, columns: Any, rows: Any) -> Any:
    """Encode a local address with its size; integers or arrays of them."""
    return address | columns << 32 | rows << 48


def commands(rows: Sequence[Command]) -> CommandTable:
    """Return a table of commands, shape (n, 3)."""
    return np.array(rows, np.uint64).reshape(-1, 3)


def encode_array_config(dataflow: int = WEIGHT_STATIONARY) -> Command:
    """Encode the CONFIG of the array: strides of one row, no scale, no shift."""
    return CONFIG, CONFIG_EX | dataflow << 2 | 1 << 16 | SCALE_ONE << 32, 1 << 48


def encode_load_config(state: int, stride: int, block_stride: int) -> Command:
    """Encode the CONFIG of a load state: rows `stride` bytes apart in memory, blocks of columns
    `block_stride` rows apart."""
    return CONFIG, CONFIG_LD | state << 3 | block_stride << 16 | SCALE_ONE << 32, stride


class StoredPool(NamedTuple):
    """How a store pools: sides of the square window and its stride, pixels missing above and on the
    left, columns of the whole output, and rows and columns of the store's results and sums."""

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
    """Encode the CONFIG of the store unit: rows `stride` bytes apart in memory, scaled, cut at zero
    by a relu, perhaps pooled."""
    bits = int(np.float32(epilogue.scale).view(np.uint32))
    word = CONFIG_ST | (RELU if epilogue.relu else 0) << 2
    if pool is not None:
        fields = zip(pool, (6, 4, 8, 10, 24, 32, 40, 48, 56), strict=True)
        word |= sum(value << place for value, place in fields)
    return CONFIG, word, stride | bits << 32
