"""Hidden features of a program: counts that are known after lowering, before it is measured.

The features count commands, bytes, rows that are fed to the array, and occupied memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.features import Feature
from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    CONFIG,
    CONFIG_EX,
    GARBAGE,
    MVIN,
    MVIN2,
    MVIN3,
    MVOUT,
    PRELOAD,
    CommandStream,
)
from tilewright.targets.gemmini.spec import DIM, MAX_REQUEST_BYTES, GemminiMachine

LEAST_ROWS = 4
"""Minimum number of cycles that the array takes for a product with the weights that are already
loaded."""

HIDDEN = (
    Feature("commands", "instructions", "", "commands the processor issues"),
    Feature("data_mvins", "work", "load", "MVINs of data"),
    Feature("weight_mvins", "work", "load", "MVINs of weights"),
    Feature("bias_mvins", "work", "load", "MVINs of values that sums begin with"),
    Feature("zero_mvins", "work", "load", "MVINs of zeros, which read no memory"),
    Feature("mvouts", "work", "store", "MVOUTs"),
    Feature("data_bytes", "bytes", "load", "data read [bytes]"),
    Feature("weight_bytes", "bytes", "load", "weights read [bytes]"),
    Feature("bias_bytes", "bytes", "load", "biases read [bytes]"),
    Feature("stored_bytes", "bytes", "store", "results written [bytes]"),
    Feature("read_requests", "work", "load", "rows of up to 64 bytes that are requested"),
    Feature("write_requests", "work", "store", "rows of up to 64 bytes that are written"),
    Feature("products", "work", "compute", "COMPUTEs"),
    Feature("weight_loads", "work", "compute", "PRELOADs with new weights"),
    Feature("fed_cycles", "work", "compute", "cycles in which rows enter the array"),
    Feature("idle_rows", "padding", "compute", "fed cycles beyond the rows of data"),
    Feature("mvins_a_product", "", "", "MVINs over COMPUTEs"),
    Feature("bytes_a_fed_cycle", "", "", "bytes read and written over fed cycles"),
    Feature("first_bytes", "waiting", "", "read before the first product [bytes]"),
    Feature("last_products", "last work", "compute", "COMPUTEs behind the last MVIN"),
    Feature("scratchpad_share", "share", "", "rows of the scratchpad that are written, over all"),
    Feature("accumulator_share", "share", "", "rows of the accumulator that are used, over all"),
)


def hidden_row(
    m: GemminiMachine, stream: CommandStream, plain: CommandStream
) -> NDArray[np.float64]:
    """Compute the hidden features of a program, in the order of `HIDDEN`.

    Args:
        m: the machine.
        stream: the program.
        plain: the same program with its hardware loops replaced by the commands that they generate.

    Returns:
        Float64 array of shape (features,).
    """
    funct = plain.funct
    columns, rows = _field(plain.rs2, 32, 7), _field(plain.rs2, 48, 5)
    is_load = (funct == MVIN) | (funct == MVIN2) | (funct == MVIN3)
    is_zero = is_load & (plain.rs1 == 0)
    is_data = (funct == MVIN) & ~is_zero
    moved, real = columns * rows, is_load & ~is_zero
    is_product = (funct == COMPUTE_PRELOADED) | (funct == COMPUTE_ACCUMULATED)
    loads_weights = (funct == PRELOAD) & (_field(plain.rs1, 0, 32) != GARBAGE)
    a_rows = _field(plain.rs1, 48, 5)
    products = np.flatnonzero(is_product)
    fresh = loads_weights[products - 1]
    keeps_sums = (funct[0], plain.rs1[0] & np.uint64(7)) == (CONFIG, CONFIG_EX)
    fed = np.where(fresh | keeps_sums, DIM, np.maximum(a_rows[products], LEAST_ROWS))
    is_store = funct == MVOUT
    bias_bytes = 4 * moved[(funct == MVIN3) & real].sum()
    read = moved[real & (funct != MVIN3)].sum() + bias_bytes
    before = np.arange(len(funct)) < (products[0] if len(products) else 0)
    last_load = np.flatnonzero(is_load)[-1] if is_load.any() else 0
    touched = np.where(is_load | is_store, _field(plain.rs2, 0, 32), 0)
    in_sums = (touched >> 31) & 1 == 1
    counts = [
        len(stream.funct), is_data.sum(), (funct == MVIN2).sum(), (funct == MVIN3).sum(),
        is_zero.sum(), is_store.sum(), moved[is_data].sum(), moved[funct == MVIN2].sum(),
        bias_bytes, moved[is_store].sum(), _requests(columns, rows, real),
        _requests(columns, rows, is_store), len(products), loads_weights.sum(), fed.sum(),
        fed.sum() - a_rows[products].sum(), is_load.sum() / max(len(products), 1),
        (read + moved[is_store].sum()) / max(fed.sum(), 1), moved[real & before].sum(),
        (products > last_load).sum(),
        _covered_fraction(touched, rows, is_load & ~in_sums, m.scratchpad_rows),
        _covered_fraction(touched, rows, is_store & in_sums, m.accumulator_rows),
    ]  # fmt: skip
    return np.array(counts, np.float64)


def _field(words: NDArray[np.uint64], low: int, width: int) -> NDArray[np.int64]:
    return ((words >> np.uint64(low)) & np.uint64((1 << width) - 1)).astype(np.int64)


def _requests(columns: Any, rows: Any, which: NDArray[np.bool_]) -> int:
    return int((rows * -(-columns // MAX_REQUEST_BYTES))[which].sum())


def _covered_fraction(address: Any, rows: Any, which: NDArray[np.bool_], room: int) -> float:
    """Return the fraction of a local memory's rows that some commands access.

    Only the first block of columns of each command counts.

    Args:
        address: first row of each command, shape (n,).
        rows: number of rows of each command, shape (n,).
        which: mask of the commands to consider, shape (n,).
        room: number of rows of the memory.
    """
    begin = address[which] & (room - 1)
    edges = np.zeros(room + 1, np.int64)
    np.add.at(edges, begin, 1)
    np.add.at(edges, np.minimum(begin + rows[which], room), -1)
    return float((np.cumsum(edges)[:room] > 0).mean())
