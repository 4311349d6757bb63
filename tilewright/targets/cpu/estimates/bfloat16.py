"""Estimates products by tiles of bfloat16 (`targets.cpu.kernels.bfloat16_product`)."""

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
from tilewright.targets.cpu.kernels import bfloat16_tiles
from tilewright.targets.cpu.kernels.bfloat16_product import SUMS, TileBlocks
from tilewright.targets.cpu.kernels.kernel_registry import tile_product
from tilewright.targets.workload import Workload

ROW = 1.0
"""Cycles a row of a tile that is multiplied."""
LOAD = 1.0
"""Cycles a row of a tile that is loaded, not hidden by multiplications: with two by two tiles, half
of the peak is reached (measured on a Xeon of 2023)."""
ROUND = 4.0
"""Cycles a vector of data that is rounded and copied: its ten operations, three a cycle."""


def estimate(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Of configs with these values, shape (configs,) a knob."""
    product, copied = tile_product(w)
    down = np.minimum(knobs["tiles_down"], product.rows)
    across = np.minimum(knobs["tiles_across"], np.ceil(product.columns / bfloat16_tiles.TILE))
    blocks = np.ceil(product.rows / (down * bfloat16_tiles.TILE))
    height = np.ceil(np.ceil(product.rows / blocks) / down)
    single = down * height > product.rows
    down = np.where(single, 1.0, down)
    height = np.where(single, min(bfloat16_tiles.TILE, product.rows), height)
    tiles = np.stack([
        product.lines * np.ceil(product.rows / (down * height)),
        np.ceil(product.columns / (across * bfloat16_tiles.TILE)),
    ])  # fmt: skip
    shares = np.minimum(np.stack([knobs["row_shares"], knobs["column_shares"]]), tiles)
    each = np.ceil(tiles / shares)
    step = ROW * down * across * bfloat16_tiles.TILE + LOAD * (
        down * height + across * product.pairs
    )
    count = product.matrices * np.prod(tiles, axis=0)
    kinds = [op.kind for op in w.epilogue]
    vectors = down * height * across
    other = count * (finish_cycles(vectors, kinds) + 2 * TILE + vectors)
    other = other + ROUND * copied / bfloat16_tiles.TILE
    near = count * product.steps * LINE * (down * height + across * product.pairs)
    rows_inside = knobs["rows_inside"] > 0
    data, weights = _bytes(product)
    again = np.where(
        rows_inside,
        data * np.where(data > machine.l2, each[1] * shares[1], 1.0) + weights * shares[0],
        weights * np.where(weights > machine.l2, each[0] * shares[0], 1.0) + data * shares[1],
    )
    out = NUMBER * product.rows * product.lines * product.columns
    far = product.matrices * (again + out) + NUMBER * copied
    chunks = product.matrices * np.prod(shares, axis=0)
    even = np.prod(each * shares / tiles, axis=0)
    return Parts(
        count * product.steps * step,
        other,
        near,
        far * np.ones_like(step),
        (down * across + down + 1) / bfloat16_tiles.TILES,
        np.minimum(busiest(chunks, machine.spec.threads) * even, 1.0),
        np.full_like(step, 2.0),
        knobs["tiles_down"] * knobs["tiles_across"] / SUMS,
    )


def _bytes(product: TileBlocks) -> tuple[float, float]:
    """Of the rounded data and weights of a matrix."""
    depth = product.steps * product.pairs * NUMBER
    return float(product.lines * product.rows * depth), float(product.columns * depth)
