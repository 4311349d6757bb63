"""Estimates a max-pool's schedules in closed form, without lowering them.

The estimate is the slowest module, plus what cannot overlap, vectorised over a batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates.columns import FETCH_BEATS
from tilewright.targets.vta.estimates.extended import _clipped
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.max_pool import KNOBS
from tilewright.targets.vta.lowering.max_pool_plan import count_maxima, maxima_an_output
from tilewright.targets.vta.spec import Machine

Array = NDArray[np.float64]


def estimate_pool(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> Array:
    """Columns as `estimate_template` of knob values (n, knobs): shape (n, 10), float64. No
    operation of a pool's epilogue has a tensor: `tensors` is 0."""
    knob = {name: values[:, k].astype(np.float64) for k, name in enumerate(KNOBS)}
    th, tw, tc = knob["tile_h"], knob["tile_w"], knob["tile_c"]
    row_tiles, col_tiles = np.ceil(geo.oh / th), np.ceil(geo.ow / tw)
    images = geo.batches * geo.groups
    tiles = geo.batches * np.ceil(geo.groups / tc) * row_tiles * col_tiles
    outputs = images * geo.oh * geo.ow
    gather = geo.kh == 1 and geo.sh > 1
    latency = m.memory_latency_cycles + 7.0

    # -- load and store: a LOAD pads one block, a STORE has one row -----------------------------
    rows = geo.oh if gather else _clipped(geo.oh, row_tiles, geo.sh, geo.kh, 1, geo.h)
    cols = _clipped(geo.ow, col_tiles, geo.sw, geo.kw, 1, geo.w)
    inp_elements = images * rows * cols
    inp_beats = m.inp_bytes / m.bus_bytes
    padded = geo.pad_top + geo.pad_left + geo.pad_bottom + geo.pad_right > 0
    merged = (col_tiles == 1) & (cols == geo.w) & (not padded)  # rows of all blocks, in one LOAD
    inp_loads = tiles * np.where(merged, 1.0, tc)
    load = inp_elements * inp_beats + latency * inp_loads
    gap = 1 if m.out_bytes > m.bus_bytes else 0
    element = m.out_bytes / m.bus_bytes + gap
    stores = images * geo.oh * col_tiles
    store = outputs * element + (5 - gap) * stores

    # -- compute: reset, GEMM, maxima by rows and by columns, epilogue --------------------------
    high, wide = min(geo.kh, geo.sh), min(geo.kw, geo.sw)
    lines = (geo.oh - row_tiles) * high + geo.kh * row_tiles
    line = (geo.ow - col_tiles) * wide + geo.kw * col_tiles
    by_row, row_steps = _maxima(geo.kh, geo.sh, geo.oh, th, row_tiles)
    by_col, col_steps = _maxima(geo.kw, geo.sw, geo.ow, tw, col_tiles)
    maxima = np.minimum(by_row * line + by_col * geo.oh, by_col * lines + by_row * geo.ow)
    moved = images * 2 * lines * line + tiles * 7.0 * (2 + (wide > 1))
    combined = images * 2 * maxima + operations * outputs
    combined = combined + tiles * 7.0 * (row_steps + col_steps + operations)
    compute = moved + combined

    # -- what does not overlap ------------------------------------------------------------------
    ih = th if gather else (th - 1) * geo.sh + geo.kh
    iw = (tw - 1) * geo.sw + geo.kw
    head, tail = _parts(geo, tiles, th, knob["head"], knob["tail"])
    first_rows = np.minimum((np.ceil(th / head) - 1) * geo.sh + geo.kh, geo.h)
    blocks = np.minimum(tc, geo.groups)
    fill = 2 * latency + blocks * first_rows * np.minimum(iw, geo.w) * inp_beats
    last = np.ceil((geo.oh - (row_tiles - 1) * th) / tail)
    drain = blocks * last * (np.minimum(tw, geo.ow) * element + 5.0) + 4.0
    each = 7.0 * (3 + row_steps + col_steps + operations)  # cycles of a tile, however small
    more = (head + tail - 2) * (each + 2 * blocks * iw * np.maximum(geo.kh - geo.sh, 0))
    parts = tiles + head + tail - 2
    exposed = np.where(knob["acc_slots"] == 1, (store / parts + 4.0) * (parts - 1), 0.0)
    late = np.maximum(load + 2.0 * parts - combined - images * lines * line - exposed, 0.0)
    exposed = exposed + np.where(knob["inp_slots"] == 1, late, 0.0)
    # The first resets run under the first LOAD: those of all slots if that takes no longer.
    acc_size = tc * ((th - 1) * high + geo.kh) * ((tw - 1) * wide + geo.kw)
    all_slots = knob["acc_slots"] * acc_size
    early = np.where((all_slots <= fill) & (parts >= knob["acc_slots"]), all_slots, acc_size / head)
    busy = compute + more + exposed - np.minimum(early, fill)
    total = np.maximum(np.maximum(busy, store), load) + fill + drain
    instructions = inp_loads + stores + parts * (3 + row_steps + col_steps + operations) + 4
    start = np.minimum(instructions, m.max_burst_beats / 2) * FETCH_BEATS + 30.0
    return np.stack(
        [
            total + start,
            load,
            compute,
            store,
            instructions,
            inp_elements * m.inp_bytes,
            np.full(len(values), float(m.wgt_bytes)),
            knob["inp_slots"] * tc * ih * iw / m.inp_built,
            np.full(len(values), 1 / m.wgt_built),
            all_slots / m.acc_built,
        ],
        axis=1,
    )  # fmt: skip


def _parts(geo: Geometry, tiles: Array, th: Array, head: Array, tail: Array) -> tuple[Array, Array]:
    """Parts of the first and of the last tile."""
    lone = tiles == 1
    rows = geo.oh - (np.ceil(geo.oh / th) - 1) * th  # of the last
    first = np.minimum(np.where(lone, np.maximum(head, tail), head), th)
    return first, np.where(lone, 1.0, np.minimum(tail, rows))


def _maxima(
    kernel: int, stride: int, outputs: int, tile: Array, tiles: Array
) -> tuple[Array, Array]:
    """Maxima along an axis of all its tiles together, and the instructions of one that take them.

    Of n outputs there are so many times n, one a step, and some more a tile.
    """
    each = maxima_an_output(kernel, stride)
    more = int(count_maxima(kernel, stride, 3, 3)) - 3 * each
    single = tile == 1
    total = np.where(single, float(kernel - 1) * outputs, each * float(outputs) + more * tiles)
    return total, np.where(single, float(kernel > 1), float(each))
