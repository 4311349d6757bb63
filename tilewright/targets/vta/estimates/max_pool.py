"""Closed-form estimates of schedules of max-pools, as a layer or fused with a convolution.

The estimate is the time of the slowest module plus the time that cannot overlap. All functions are
vectorised over a batch of schedules.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates import FETCH_BEATS, START_CYCLES
from tilewright.targets.vta.estimates.extended import clipped
from tilewright.targets.vta.lowering.fused_max_pool import POOLED_KNOBS
from tilewright.targets.vta.lowering.fused_max_pool_plan import COPY_CYCLES, carries
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.max_pool import POOL_KNOBS
from tilewright.targets.vta.lowering.max_pool_plan import count_maxima, maxima_an_output
from tilewright.targets.vta.lowering.tile_and_buffer_plan import CHANNELS_OUTER, RESIDENT
from tilewright.targets.vta.spec import Machine

Array = NDArray[np.float64]


def estimate_pool(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> Array:
    """Estimate schedules of a max-pool layer.

    Args:
        geo: geometry of the workload.
        m: the machine.
        operations: number of ALU operations per output in the epilogue.
        tensors: always 0, because the epilogue of a max-pool reads no tensors.
        values: knob values, shape (n, knobs).

    Returns:
        float64 array of shape (n, 10), with the columns `ESTIMATES`.
    """
    knob = {name: values[:, k].astype(np.float64) for k, name in enumerate(POOL_KNOBS)}
    th, tw, tc = knob["tile_h"], knob["tile_w"], knob["tile_c"]
    row_tiles, col_tiles = np.ceil(geo.oh / th), np.ceil(geo.ow / tw)
    images = geo.batches * geo.groups
    tiles = geo.batches * np.ceil(geo.groups / tc) * row_tiles * col_tiles
    outputs = images * geo.oh * geo.ow
    gather = geo.kh == 1 and geo.sh > 1
    latency = m.memory_latency_cycles + 7.0

    # -- load and store: a LOAD pads one block, a STORE has one row -----------------------------
    rows = geo.oh if gather else clipped(geo.oh, row_tiles, geo.sh, geo.kh, 1, geo.h)
    cols = clipped(geo.ow, col_tiles, geo.sw, geo.kw, 1, geo.w)
    inp_elements = images * rows * cols
    inp_beats = m.inp_bytes / m.bus_bytes
    padded = geo.pad_top + geo.pad_left + geo.pad_bottom + geo.pad_right > 0
    # one LOAD brings the rows of all blocks
    merged = (col_tiles == 1) & (cols == geo.w) & (not padded)
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
    # Each GEMM or ALU instruction takes 7 cycles in addition to its iterations, see
    # `tile_instructions`.
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
    # minimum cycles of a tile: instructions × the fixed cycles of cycles_per_tile
    cycles_per_tile = 7.0 * (3 + row_steps + col_steps + operations)
    more = (head + tail - 2) * (cycles_per_tile + 2 * blocks * iw * np.maximum(geo.kh - geo.sh, 0))
    parts = tiles + head + tail - 2
    exposed = np.where(knob["acc_slots"] == 1, (store / parts + 4.0) * (parts - 1), 0.0)
    late = np.maximum(load + 2.0 * parts - combined - images * lines * line - exposed, 0.0)
    exposed = exposed + np.where(knob["inp_slots"] == 1, late, 0.0)
    # The first resets run in parallel with the first LOAD. All slots are reset if that takes no
    # longer.
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
    """Return the numbers of parts into which the first and the last tile are divided.

    Dividing these tiles lets their transfers overlap with the computation.

    Args:
        geo: geometry of the max-pool.
        tiles: number of all tiles, shape (n,).
        th: rows per tile, shape (n,).
        head: requested number of parts of the first tile, shape (n,).
        tail: requested number of parts of the last tile, shape (n,).
    """
    lone = tiles == 1
    rows = geo.oh - (np.ceil(geo.oh / th) - 1) * th  # rows of the last tile
    first = np.minimum(np.where(lone, np.maximum(head, tail), head), th)
    return first, np.where(lone, 1.0, np.minimum(tail, rows))


def _maxima(
    kernel: int, stride: int, outputs: int, tile: Array, tiles: Array
) -> tuple[Array, Array]:
    """Count the element-wise maximum operations of a max-pool along one axis.

    Args:
        kernel: window size along the axis.
        stride: stride along the axis.
        outputs: number of outputs along the axis.
        tile: outputs per tile, shape (n,).
        tiles: number of tiles along the axis, shape (n,).

    Returns:
        The number of operations in all tiles together, and the number of instructions per tile,
        shape (n,) each.
    """
    per_output = maxima_an_output(kernel, stride)
    more = int(count_maxima(kernel, stride, 3, 3)) - 3 * per_output
    single = tile == 1
    total = np.where(
        single, float(kernel - 1) * outputs, per_output * float(outputs) + more * tiles
    )
    return total, np.where(single, float(kernel > 1), float(per_output))


def estimate_pooled(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> Array:
    """Estimate schedules of a convolution with a fused max-pool.

    Args:
        geo: geometry of the workload, including that of the pool.
        m: the machine.
        operations: number of ALU operations per output in the epilogue.
        tensors: number of operand tensors of the epilogue; 1 with a bias.
        values: knob values, shape (n, knobs).

    Returns:
        float64 array of shape (n, 10), with the columns `ESTIMATES`.
    """
    knob = {name: values[:, k].astype(np.float64) for k, name in enumerate(POOLED_KNOBS)}
    th, tw, tco, tci = knob["tile_h"], knob["tile_w"], knob["tile_co"], knob["tile_ci"]
    outside = knob["order"] == CHANNELS_OUTER
    first = np.ceil(th / knob["head"])
    row_tiles = 1 + np.ceil(np.maximum(geo.oh - first, 0) / th)
    col_tiles, co_tiles = np.ceil(geo.ow / tw), np.ceil(geo.co / tco)
    nk = np.ceil(geo.ci / tci)
    places = geo.batches * row_tiles * col_tiles
    tiles = geo.groups * places * co_tiles
    taps, planes = geo.kh * geo.kw, geo.batches * geo.groups * geo.co
    outputs = planes * geo.oh * geo.ow

    # -- convolution results: those that two tiles share are computed twice, or reused ---------
    carried = carries(geo, values.T, col_tiles, co_tiles)
    halo_h, halo_w = geo.pool_kh - geo.pool_sh, geo.pool_kw - geo.pool_sw
    cols = np.minimum(
        geo.ow * geo.pool_sw + halo_w * col_tiles, geo.sums_w + halo_w * (col_tiles - 1)
    )
    once = min(geo.oh * geo.pool_sh + halo_h, geo.sums_h)
    again = np.where(carried, 0, halo_h * (row_tiles - 1))
    rows = once + again
    taken_over = np.where(carried, halo_h * (row_tiles - 1), 0) * cols
    lines, line = (th - 1) * geo.pool_sh + geo.pool_kh, (tw - 1) * geo.pool_sw + geo.pool_kw

    # -- how often each tensor is loaded --------------------------------------------------------
    inp_round = np.where(outside, places * nk, nk)
    wgt_round = np.where(outside, nk, co_tiles * nk)
    inp_held = (knob["inp_slots"] == RESIDENT) | (knob["inp_slots"] >= inp_round)
    wgt_held = (knob["wgt_slots"] == RESIDENT) | (knob["wgt_slots"] >= wgt_round)
    inp_times = np.where(inp_held, 1.0, co_tiles)
    wgt_times = np.where(wgt_held, 1.0, places)
    gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
    inp_rows = rows if gather else clipped(once, row_tiles, geo.sh, geo.kh, geo.dh, geo.h)
    inp_rows = inp_rows + (0 if gather else again * geo.sh)
    inp_cols = clipped(int(geo.sums_w), col_tiles, geo.sw, geo.kw, geo.dw, geo.w)
    inp_cols = inp_cols + halo_w * (col_tiles - 1) * geo.sw
    inp_elements = geo.batches * geo.groups * geo.ci * inp_rows * inp_cols * inp_times
    wgt_elements = geo.groups * geo.co * geo.ci * taps * wgt_times
    inp_loads = geo.groups * places * nk * inp_times * (1 if geo.pad_top == 0 else tci)
    wgt_loads = geo.groups * co_tiles * nk * wgt_times
    latency = m.memory_latency_cycles + 7.0
    inp_beats, wgt_beats = m.inp_bytes / m.bus_bytes, m.wgt_bytes / m.bus_bytes
    load = inp_elements * inp_beats + wgt_elements * wgt_beats
    load = load + latency * (inp_loads + wgt_loads)

    # -- compute: resets, GEMMs, copies of reused results, maxima, epilogue ----------------------
    phases = np.where(tw == 1, 1.0, geo.pool_sw)
    by_row, row_steps = _maxima(geo.pool_kh, geo.pool_sh, geo.oh, th, row_tiles)
    by_col, col_steps = _maxima(geo.pool_kw, geo.pool_sw, geo.ow, tw, col_tiles)
    all_lines = (geo.oh - row_tiles) * geo.pool_sh + geo.pool_kh * row_tiles
    all_cols = (geo.ow - col_tiles) * geo.pool_sw + geo.pool_kw * col_tiles
    maxima = np.minimum(by_row * all_cols + by_col * geo.oh, by_col * all_lines + by_row * geo.ow)
    padded = 2.0 * (all_lines * all_cols - (rows + taken_over / cols) * cols)
    steps = operations + row_steps + col_steps
    reduction = planes * rows * cols * geo.ci * taps
    read_there = (halo_h == 1) & (geo.pool_sh > 1) & (th > 1)
    copies = np.where(read_there, -1, COPY_CYCLES - 1) * taken_over
    other = planes * (all_lines * all_cols + padded + copies + 2 * maxima)
    ending = (operations + tensors) * outputs
    compute = reduction + other + ending + 7.0 * tiles * (nk * phases + 1 + steps)

    # -- store: a STORE has one row -------------------------------------------------------------
    gap = 1 if m.out_bytes > m.bus_bytes else 0
    element = m.out_bytes / m.bus_bytes + gap
    stores = planes * geo.oh * col_tiles
    store = outputs * element + (5 - gap) * stores

    # -- what does not overlap ------------------------------------------------------------------
    sums_rows = np.minimum((first - 1) * geo.pool_sh + geo.pool_kh, geo.sums_h)
    sums_cols = np.minimum(line, geo.sums_w)
    first_rows = np.minimum((sums_rows - 1) * geo.sh + geo.kh, geo.h)
    first_cols = np.minimum((sums_cols - 1) * geo.sw + geo.kw, geo.w)
    first_blocks = np.where(knob["ramp"] > 0, 1.0, tco * tci * taps)
    fill = latency * 2 + tci * first_rows * first_cols * inp_beats + first_blocks * wgt_beats
    blocks = np.minimum(tco, geo.co)
    tile_store = blocks * th * (np.minimum(tw, geo.ow) * element + 5.0 - gap)
    exposed = np.where(knob["acc_slots"] == 1, (tiles - 1) * (tile_store + 8.0), 0.0)
    # The loads of a tile overlap with earlier GEMMs as far as there are free slots.
    left = (ending + other) / tiles
    total = np.maximum(np.maximum(compute + exposed, store) + fill, load + left) + tile_store
    instructions = tiles * (2 + steps + nk * phases) + inp_loads + wgt_loads + stores
    start = np.minimum(instructions, m.max_burst_beats / 2) * FETCH_BEATS + START_CYCLES
    step_elements = tco * tci * taps
    uops = 4.0 * step_elements * phases / m.bus_bytes * m.uop_bytes
    ih = np.minimum(lines, geo.sums_h)
    ih = ih if gather else (ih - 1) * geo.sh + (geo.kh - 1) * geo.dh + 1
    iw = (np.minimum(line, geo.sums_w) - 1) * geo.sw + (geo.kw - 1) * geo.dw + 1
    inp_slots = np.where(knob["inp_slots"] == RESIDENT, inp_round, knob["inp_slots"])
    wgt_slots = np.where(knob["wgt_slots"] == RESIDENT, wgt_round, knob["wgt_slots"])
    return np.stack(
        [
            total + start + uops,
            load,
            compute,
            store,
            instructions,
            inp_elements * m.inp_bytes,
            wgt_elements * m.wgt_bytes,
            inp_slots * tci * ih * iw / m.inp_built,
            wgt_slots * step_elements / m.wgt_built,
            knob["acc_slots"] * tco * lines * line / m.acc_built,
        ],
        axis=1,
    )  # fmt: skip
