"""Estimates products by tiles (`targets.cpu.kernels.tile_product`)."""

from __future__ import annotations

import numpy as np

from tilewright.targets.cpu.estimates.machine import (
    LINE,
    NUMBER,
    TILE,
    CpuMachine,
    Knobs,
    Parts,
    busiest,
    finish_cycles,
)
from tilewright.targets.cpu.kernels import matrix_tiles
from tilewright.targets.cpu.kernels.bfloat16_dot_product import SUMS as SUMS_HELD
from tilewright.targets.cpu.kernels.matrix_tiles import BFLOAT16, numbers_of
from tilewright.targets.cpu.kernels.tile_product import SUMS, TileBlocks
from tilewright.targets.cpu.spec import DOTS_BFLOAT16
from tilewright.targets.workload import Workload

ROW = 1.0
"""Cycles a row of a tile that is multiplied."""
LOAD = 1.0
"""Cycles a row of a tile that is loaded, not hidden by multiplications: with two by two tiles, half
of the peak is reached (measured on a Xeon of 2023)."""
DOT = 1.0
"""Cycles a `vdpbf16ps`, 16 columns by a word of the depth, where two vectors of float32 take one: 2
were measured on a Xeon of 2023, and a core that does both once a cycle has 0.5."""
MOVE = 1.0
"""Cycles a vector of sums that is read before a step and written after it."""
ROUND = 4.0
"""Cycles a vector of data that is rounded and copied: its ten operations, three a cycle."""


def estimate(
    w: Workload, found: tuple[TileBlocks, int], machine: CpuMachine, knobs: Knobs
) -> Parts:
    """Of configs with these values, shape (configs,) a knob; `found` is of `tile_product`."""
    product, copied = found
    numbers = numbers_of(w)
    down = np.minimum(knobs["tiles_down"], product.rows)
    across = np.minimum(knobs["tiles_across"], np.ceil(product.columns / matrix_tiles.TILE))
    blocks = np.ceil(product.rows / (down * matrix_tiles.TILE))
    height = np.ceil(np.ceil(product.rows / blocks) / down)
    single = down * height > product.rows
    down = np.where(single, 1.0, down)
    height = np.where(single, min(matrix_tiles.TILE, product.rows), height)
    tiles = np.stack([
        product.lines * np.ceil(product.rows / (down * height)),
        np.ceil(product.columns / (across * matrix_tiles.TILE)),
    ])  # fmt: skip
    shares = np.minimum(np.stack([knobs["row_shares"], knobs["column_shares"]]), tiles)
    blocks_each = np.ceil(tiles / shares)
    rows = down * height
    if machine.spec.bfloat16 == DOTS_BFLOAT16 and numbers is BFLOAT16:
        parts = np.ceil(rows / (SUMS_HELD // across))
        each = np.ceil(rows / parts)
        step = DOT * rows * across * product.words + MOVE * rows * across
        loads = rows + parts * across * product.words
        registers = (each * across + across + 1) / machine.spec.registers
    else:
        loads = rows + across * product.words
        step = ROW * down * across * matrix_tiles.TILE + LOAD * loads
        registers = (down * across + down + 1) / matrix_tiles.TILES
    count = product.matrices * np.prod(tiles, axis=0)
    kinds = [op.kind for op in w.epilogue]
    vectors = rows * across
    other = count * (finish_cycles(vectors, kinds) + 2 * TILE + vectors)
    vector = matrix_tiles.TILE if numbers is BFLOAT16 else numbers.in_row
    other = other + ROUND * copied / vector
    near = count * product.steps * LINE * loads
    rows_inside = knobs["rows_inside"] > 0
    size = int(NUMBER) if w.dtype == "bfloat16" else 1
    data, weights = _bytes(product)
    again = np.where(
        rows_inside,
        data * np.where(data > machine.l2, blocks_each[1] * shares[1], 1.0) + weights * shares[0],
        weights * np.where(weights > machine.l2, blocks_each[0] * shares[0], 1.0)
        + data * shares[1],
    )
    out = size * product.rows * product.lines * product.columns
    far = product.matrices * (again + out) + size * copied
    chunks = product.matrices * np.prod(shares, axis=0)
    even = np.prod(blocks_each * shares / tiles, axis=0)
    return Parts(
        count * product.steps * step,
        other,
        near,
        far * np.ones_like(step),
        registers,
        np.minimum(busiest(chunks, machine.spec.threads) * even, 1.0),
        np.full_like(step, 2.0),
        knobs["tiles_down"] * knobs["tiles_across"] / SUMS,
    )


def _bytes(product: TileBlocks) -> tuple[float, float]:
    """Of the rounded data and weights of a matrix."""
    depth = product.steps * product.words * NUMBER  # a word has the size of a float32
    return float(product.lines * product.rows * depth), float(product.columns * depth)
