"""Estimates of matrix products, computed with vectors or with tile instructions.

The kernels are `targets.cpu.kernels.matrix_product` and `targets.cpu.kernels.amx_product`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.targets.cpu.bounds import NUMBER_BYTES
from tilewright.targets.cpu.estimates.cost_model import (
    ENTRY,
    LINE,
    LOOP,
    NUMBER,
    STORES,
    TILE,
    Array,
    CpuMachine,
    Knobs,
    Mask,
    Parts,
    busiest,
    finish_cycles,
    moved_bytes,
    step_cycles,
)
from tilewright.targets.cpu.kernels import amx_tiles
from tilewright.targets.cpu.kernels.amx_product import SUMS, TileBlocks
from tilewright.targets.cpu.kernels.amx_tiles import BFLOAT16, SUM_REGISTERS, numbers_of
from tilewright.targets.cpu.kernels.int8_dot_product import dot_product
from tilewright.targets.cpu.kernels.loops import MAX_ACCUMULATORS, MAX_UNROLLED
from tilewright.targets.cpu.kernels.matrix_product import GemmShape
from tilewright.targets.cpu.spec import DOTS_BFLOAT16
from tilewright.targets.workload import Workload

# -- in vectors --------------------------------------------------------------------------------


GATHER = 0.7
"""Cycles to pack one value of the data next to the values of other rows (fitted)."""
PACK = 2.0
"""Cycles to pack one vector of weights into its tile (fitted)."""


def estimate_vectors(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Estimate the latency of matrix products that are computed with vector instructions.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name.

    Returns:
        Parts of the latency, such as cycles of multiply-adds and bytes moved, shape (configs,)
        each.
    """
    spec, p = machine.spec, GemmShape.for_workload(w, machine.spec)
    high, wide, chains = knobs["tile_rows"], knobs["tile_vectors"], knobs["chains"]
    width = wide * p.lanes
    tiles = np.stack([np.ceil(p.rows / high), np.ceil(p.columns / width)])
    shares = np.stack([knobs["row_shares"], knobs["column_shares"]])
    shares = np.minimum(shares, tiles)
    tiles_each = np.ceil(tiles / shares)
    sums = high * wide
    loaded = wide * np.where(_crosses_cache_lines(w, p, knobs), 2.0, 1.0)
    step = step_cycles(sums, (loaded, high), wide, spec.registers, chains)
    steps = np.ceil(p.depth / knobs["tile_depth"])
    loops = np.ceil(p.depth / (chains * knobs["unroll_depth"])) * LOOP + steps * ENTRY
    count = p.batch * np.prod(tiles, axis=0)
    epilogue_kinds = [step.kind for step in w.epilogue]
    partial = (steps - 1) * sums * 2 / STORES
    gathered = np.where(knobs["pack_data"] > 0, p.rows * shares[1] * GATHER, 0.0)
    pack = PACK * (dot_product(machine.spec).numbers if w.dtype == "int8" else 1)
    packed = np.where(knobs["pack_weights"] > 0, tiles[1] * wide * shares[0] * pack, 0.0)
    other = count * (finish_cycles(sums * chains, epilogue_kinds) + partial)
    other = other + p.batch * p.depth * (gathered + packed)
    sizes = tuple(np.stack([high, width]))
    unrolled = sums * chains * knobs["unroll_depth"] / MAX_UNROLLED
    needed = sums * chains + wide + 1
    chunks = p.batch * np.prod(shares, axis=0)
    imbalance = np.prod(tiles_each * shares / tiles, axis=0)
    return Parts(
        count * (p.depth * step + loops + steps * TILE),
        other,
        _bytes_moved(p, knobs, NUMBER_BYTES[w.dtype], sizes, (tiles_each, shares), machine.l1),
        _bytes_moved(p, knobs, NUMBER_BYTES[w.dtype], sizes, (tiles_each, shares), machine.l2),
        needed / spec.registers,
        np.minimum(busiest(chunks, spec.threads) * imbalance, 1.0),
        np.ones_like(high),
        np.maximum(unrolled, sums * chains / MAX_ACCUMULATORS),
    )


def _crosses_cache_lines(w: Workload, p: GemmShape, knobs: Knobs) -> Mask:
    """Return whether vectors of weights cross cache lines, so that each vector takes two loads.

    This happens if the second operand of a batched product is not packed and its rows do not fill
    whole cache lines.

    Args:
        w: the workload.
        p: sizes of the product.
        knobs: values of each knob, shape (configs,), by the knob's name.

    Returns:
        Boolean array of shape (configs,).
    """
    across = w.operator == "batch_matmul" and p.columns * NUMBER % LINE > 0
    return np.asarray((knobs["pack_weights"] == 0) & across)


def _bytes_moved(
    p: GemmShape,
    knobs: Knobs,
    number: int,
    tile: tuple[Array, ...],
    counts: tuple[Array, Array],
    cache: float,
) -> Array:
    """Return the bytes that a matrix product moves into a cache, shape (configs,).

    The rows and the columns of the result are divided into shares. A parallel task computes one
    share of the rows times one share of the columns.

    Args:
        p: sizes of the product.
        knobs: values of each knob, shape (configs,), by the knob's name.
        number: bytes per value of the output.
        tile: rows and columns of a register tile, shape (configs,) each.
        counts: number of register tiles per share, and number of shares; both arrays have shape (2,
            configs), with one row for rows and one for columns.
        cache: size of the cache in bytes.
    """
    tiles_each, shares = counts

    def bodies(size: Mapping[str, Array]) -> dict[str, Array]:
        return {
            "data": NUMBER * size["r"] * size["d"],
            "weights": NUMBER * size["d"] * size["c"],
            "out": number * size["r"] * size["c"],
        }

    depth = np.minimum(knobs["tile_depth"], p.depth)
    extents = {"r": tile[0], "c": tile[1], "d": depth}
    loops = [
        *_order_loops(tiles_each, knobs["rows_inside"] > 0),
        {"d": np.ceil(p.depth / depth)},
        *_order_loops(shares, knobs["columns_first"] > 0),
    ]
    return p.batch * moved_bytes(bodies, extents, loops, cache)


def _order_loops(trips: Array, inside: Mask) -> list[dict[str, Array]]:
    """Return the loops over rows and columns of a matrix, as a list for `moved_bytes`.

    Args:
        trips: number of iterations over rows and over columns, shape (2, configs).
        inside: whether the loop over rows is the innermost loop, shape (configs,).

    Returns:
        One mapping per loop, innermost loop first. It maps the axis (`r` or `c`) to the factor by
        which the loop multiplies the extent along this axis, shape (configs,).
    """
    ones = np.ones_like(trips[0])
    return [
        {"r": np.where(inside, trips[0], ones)},
        {"c": trips[1]},
        {"r": np.where(inside, ones, trips[0])},
    ]


# -- by tiles ----------------------------------------------------------------------------------


ROW = 1.0
"""Cycles per row when AMX multiplies tiles. A tile has 16 rows and takes 16 cycles according to
Intel's manual of AMX."""
LOAD = 1.0
"""Cycles to load one row of a tile, as far as the load does not overlap with multiplications. With
blocks of 2 × 2 tiles, kernels reach half of the peak (`python -m benchmarks.cpu.peak --precision
bf16` on a Xeon of 2023)."""
DOT = 1.0
"""Cycles of one `vdpbf16ps`, the instruction that multiplies one 32-bit word of the depth (two
bfloat16 values) by 16 columns. We measured 2 cycles on a Xeon of 2023
(docs/decisions/bfloat16-dot-products.md). A core that executes this instruction as fast as a
float32 multiply-add needs half a cycle. The value lies between the two."""
MOVE = 1.0
"""Cycles to load one vector of accumulators before a step of the depth and to store it after the
step."""
ROUND = 4.0
"""Cycles to round one vector of data to bfloat16 and to copy it: ten operations, of which a core
executes three per cycle."""


def estimate_tiles(
    w: Workload, found: tuple[TileBlocks, int], machine: CpuMachine, knobs: Knobs
) -> Parts:
    """Estimate the latency of matrix products that are computed with tile instructions.

    Args:
        w: the workload.
        found: sizes of the product, and number of values that the kernel copies first, from
            `tile_product`.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name.

    Returns:
        Parts of the latency, such as cycles of multiply-adds and bytes moved, shape (configs,)
        each.
    """
    product, copied = found
    numbers = numbers_of(w)
    down = np.minimum(knobs["tiles_down"], product.rows)
    across = np.minimum(knobs["tiles_across"], np.ceil(product.columns / amx_tiles.TILE))
    blocks = np.ceil(product.rows / (down * amx_tiles.TILE))
    height = np.ceil(np.ceil(product.rows / blocks) / down)
    single = down * height > product.rows
    down = np.where(single, 1.0, down)
    height = np.where(single, min(amx_tiles.TILE, product.rows), height)
    tiles = np.stack([
        product.lines * np.ceil(product.rows / (down * height)),
        np.ceil(product.columns / (across * amx_tiles.TILE)),
    ])  # fmt: skip
    shares = np.minimum(np.stack([knobs["row_shares"], knobs["column_shares"]]), tiles)
    blocks_each = np.ceil(tiles / shares)
    rows = down * height
    if machine.spec.bfloat16 == DOTS_BFLOAT16 and numbers is BFLOAT16:
        parts = np.ceil(rows / (SUM_REGISTERS // across))
        rows_each = np.ceil(rows / parts)
        step = DOT * rows * across * product.words + MOVE * rows * across
        loads = rows + parts * across * product.words
        registers = (rows_each * across + across + 1) / machine.spec.registers
    else:
        loads = rows + across * product.words
        step = ROW * down * across * amx_tiles.TILE + LOAD * loads
        registers = (down * across + down + 1) / amx_tiles.TILES
    count = product.matrices * np.prod(tiles, axis=0)
    epilogue_kinds = [op.kind for op in w.epilogue]
    vectors = rows * across
    other = count * (finish_cycles(vectors, epilogue_kinds) + 2 * TILE + vectors)
    vector = amx_tiles.TILE if numbers is BFLOAT16 else numbers.in_row
    other = other + ROUND * copied / vector
    near = count * product.steps * LINE * loads
    rows_inside = knobs["rows_inside"] > 0
    size = int(NUMBER) if w.dtype == "bfloat16" else 1
    data, weights = _bytes(product)
    operand_bytes = np.where(
        rows_inside,
        data * np.where(data > machine.l2, blocks_each[1] * shares[1], 1.0) + weights * shares[0],
        weights * np.where(weights > machine.l2, blocks_each[0] * shares[0], 1.0)
        + data * shares[1],
    )
    out = size * product.rows * product.lines * product.columns
    far = product.matrices * (operand_bytes + out) + size * copied
    chunks = product.matrices * np.prod(shares, axis=0)
    imbalance = np.prod(blocks_each * shares / tiles, axis=0)
    return Parts(
        count * product.steps * step,
        other,
        near,
        far * np.ones_like(step),
        registers,
        np.minimum(busiest(chunks, machine.spec.threads) * imbalance, 1.0),
        np.full_like(step, 2.0),
        knobs["tiles_down"] * knobs["tiles_across"] / SUMS,
    )


def _bytes(product: TileBlocks) -> tuple[float, float]:
    """Return the bytes of one matrix's data and the bytes of its weights.

    The operands are packed for tiles, with a depth that is rounded up to whole tiles.

    Args:
        product: sizes of the matrix product.
    """
    depth = product.steps * product.words * NUMBER  # a word has the size of a float32
    return float(product.lines * product.rows * depth), float(product.columns * depth)
