"""Estimates products of matrices (`targets.cpu.kernels.matrix`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.targets.cpu.bounds import SIZES
from tilewright.targets.cpu.estimates.machine import (
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
    moved,
    step_cycles,
)
from tilewright.targets.cpu.kernels.gemm_shape import GemmShape
from tilewright.targets.cpu.kernels.int8_dot_product import dot_product
from tilewright.targets.cpu.kernels.loops import MAX_ACCUMULATORS, MAX_UNROLLED
from tilewright.targets.workload import Workload

GATHER = 0.7
"""Cycles a number of the data that is put beside those of other rows (fitted)."""
PACK = 2.0
"""Cycles a vector of weights that is put into its tile (fitted)."""


def estimate(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Of configs with these values, shape (configs,) a knob."""
    spec, p = machine.spec, GemmShape.of(w, machine.spec)
    high, wide, chains = knobs["tile_rows"], knobs["tile_vectors"], knobs["chains"]
    width = wide * p.lanes
    tiles = np.stack([np.ceil(p.rows / high), np.ceil(p.columns / width)])
    shares = np.stack([knobs["row_shares"], knobs["column_shares"]])
    shares = np.minimum(shares, tiles)
    each = np.ceil(tiles / shares)
    sums = high * wide
    loaded = wide * np.where(_unaligned(w, p, knobs), 2.0, 1.0)
    step = step_cycles(sums, (loaded, high), wide, spec.registers, chains)
    steps = np.ceil(p.depth / knobs["tile_depth"])
    loops = np.ceil(p.depth / (chains * knobs["unroll_depth"])) * LOOP + steps * ENTRY
    count = p.batch * np.prod(tiles, axis=0)
    kinds = [step.kind for step in w.epilogue]
    partial = (steps - 1) * sums * 2 / STORES
    gathered = np.where(knobs["pack_data"] > 0, p.rows * shares[1] * GATHER, 0.0)
    pack = PACK * (dot_product(machine.spec).numbers if w.dtype == "int8" else 1)
    packed = np.where(knobs["pack_weights"] > 0, tiles[1] * wide * shares[0] * pack, 0.0)
    other = count * (finish_cycles(sums * chains, kinds) + partial)
    other = other + p.batch * p.depth * (gathered + packed)
    sizes = tuple(np.stack([high, width]))
    unrolled = sums * chains * knobs["unroll_depth"] / MAX_UNROLLED
    needed = sums * chains + wide + 1
    chunks = p.batch * np.prod(shares, axis=0)
    even = np.prod(each * shares / tiles, axis=0)
    return Parts(
        count * (p.depth * step + loops + steps * TILE),
        other,
        _moved(p, knobs, SIZES[w.dtype], sizes, (each, shares), machine.l1),
        _moved(p, knobs, SIZES[w.dtype], sizes, (each, shares), machine.l2),
        needed / spec.registers,
        np.minimum(busiest(chunks, spec.threads) * even, 1.0),
        np.ones_like(high),
        np.maximum(unrolled, sums * chains / MAX_ACCUMULATORS),
    )


def _unaligned(w: Workload, p: GemmShape, knobs: Knobs) -> Mask:
    """Whether vectors of weights lie across cache lines: loaded in two."""
    across = w.operator == "batch_matmul" and p.columns * NUMBER % LINE > 0
    return np.asarray((knobs["pack_weights"] == 0) & across)


def _moved(
    p: GemmShape,
    knobs: Knobs,
    number: int,
    tile: tuple[Array, ...],
    counts: tuple[Array, Array],
    cache: float,
) -> Array:
    each, shares = counts

    def bodies(size: Mapping[str, Array]) -> dict[str, Array]:
        return {
            "data": NUMBER * size["r"] * size["d"],
            "weights": NUMBER * size["d"] * size["c"],
            "out": number * size["r"] * size["c"],
        }

    depth = np.minimum(knobs["tile_depth"], p.depth)
    extents = {"r": tile[0], "c": tile[1], "d": depth}
    loops = [
        *_ordered(each, knobs["rows_inside"] > 0),
        {"d": np.ceil(p.depth / depth)},
        *_ordered(shares, knobs["columns_first"] > 0),
    ]
    return p.batch * moved(bodies, extents, loops, cache)


def _ordered(trips: Array, inside: Mask) -> list[dict[str, Array]]:
    """Loops over rows and columns, the innermost first: rows where `inside`."""
    ones = np.ones_like(trips[0])
    return [
        {"r": np.where(inside, trips[0], ones)},
        {"c": trips[1]},
        {"r": np.where(inside, ones, trips[0])},
    ]
