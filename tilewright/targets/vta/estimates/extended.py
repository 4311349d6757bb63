"""Closed-form estimates of extended schedules, also with a fused shortcut or average.

A program works as a software pipeline of loads, computation and stores. Its time is that of its
slowest module, plus the transfers that cannot overlap: the first load and the last store. The
lengths of single instructions follow the Chisel RTL, as in `template`. All functions are vectorised
over a batch of schedules.

With a shortcut, the work of both convolutions is added per module. The time of the slowest module
then grows, while the time that does not overlap is that of one convolution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates import CYCLES, FETCH_BEATS, SHARES, START_CYCLES
from tilewright.targets.vta.lowering.extended import EXTENDED_KNOBS
from tilewright.targets.vta.lowering.fused_shortcut import beside_of
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.tile_and_buffer_plan import CHANNELS_OUTER, RESIDENT
from tilewright.targets.vta.lowering.tile_instructions import (
    COMPUTE_LATENCY,
    WIDE_STORE,
    load_bound,
    weights_stream,
)
from tilewright.targets.vta.spec import Machine


def average_cycles(geo: Geometry, blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cycles per tile that the compute module needs to average whole images.

    An addition takes two cycles. The ALU cannot multiply, so each set bit of the smaller averaging
    weight takes a shift and an addition.

    Args:
        geo: geometry of the workload.
        blocks: number of output blocks per tile, shape (n,).

    Returns:
        Cycles, shape (n,); 0 if nothing is averaged.
    """
    if not geo.average_taps:
        return np.zeros_like(blocks)
    pixels = geo.oh * geo.ow
    tap, apart = divmod(geo.average_taps, pixels)
    bits = tap.bit_count() if apart else 0
    cycles_per_block = 2 * pixels + 2 + 3 * bits + geo.average_steps
    return blocks * cycles_per_block + COMPUTE_LATENCY * (3.0 + 2 * bits + geo.average_steps)


Array = NDArray[np.float64]


def estimate_extended(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64],
    others: int = 0,
) -> Array:  # fmt: skip
    """Estimate schedules of the extended space.

    Args:
        geo: geometry of the workload.
        m: the machine.
        operations: number of ALU operations per output.
        tensors: number of operand tensors of the epilogue. The tensor of an `add` is loaded into
            the accumulators for each tile; a bias is loaded once.
        values: knob values, shape (n, knobs).
        others: number of input blocks of a second reduction that shares the rings of scratchpad
            slots.

    Returns:
        float64 array of shape (n, 10), with the columns `ESTIMATES`.
    """
    knob = {name: values[:, k].astype(np.float64) for k, name in enumerate(EXTENDED_KNOBS)}
    th, tw, tco, tci = knob["tile_h"], knob["tile_w"], knob["tile_co"], knob["tile_ci"]
    outside = knob["order"] == CHANNELS_OUTER
    first = np.ceil(th / knob["head"])
    row_tiles = 1 + np.ceil(np.maximum(geo.oh - first, 0) / th)
    col_tiles, co_tiles = np.ceil(geo.ow / tw), np.ceil(geo.co / tco)
    nk = np.ceil(geo.ci / tci)
    in_rings = nk + np.ceil(others / tci)
    places = geo.batches * row_tiles * col_tiles
    tiles = geo.groups * places * co_tiles
    taps = geo.kh * geo.kw

    # -- how often each tensor is loaded --------------------------------------------------------
    # A tensor is loaded once if the ring holds everything that is read between two uses of an
    # element.
    inp_round = np.where(outside, places * in_rings, in_rings)
    wgt_round = np.where(outside, in_rings, co_tiles * in_rings)
    inp_held = (knob["inp_slots"] == RESIDENT) | (knob["inp_slots"] >= inp_round)
    wgt_held = (knob["wgt_slots"] == RESIDENT) | (knob["wgt_slots"] >= wgt_round)
    inp_times = np.where(inp_held, 1.0, co_tiles)
    wgt_times = np.where(wgt_held, 1.0, places)
    gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
    rows = geo.oh if gather else clipped(geo.oh, row_tiles, geo.sh, geo.kh, geo.dh, geo.h)
    cols = clipped(geo.ow, col_tiles, geo.sw, geo.kw, geo.dw, geo.w)
    inp_elements = geo.batches * geo.groups * geo.ci * rows * cols * inp_times
    wgt_elements = geo.groups * geo.co * geo.ci * taps * wgt_times
    inp_loads = geo.groups * places * nk * inp_times * (1 if geo.pad_top == 0 else tci)
    wgt_loads = geo.groups * co_tiles * nk * wgt_times
    latency = m.memory_latency_cycles + 7.0
    inp_beats = _beats(m.inp_bytes, m.bus_bytes)
    wgt_beats = _beats(m.wgt_bytes, m.bus_bytes)
    load = inp_elements * inp_beats + wgt_elements * wgt_beats
    load = load + latency * (inp_loads + wgt_loads)
    ih = th if gather else (th - 1) * geo.sh + (geo.kh - 1) * geo.dh + 1
    iw = (tw - 1) * geo.sw + (geo.kw - 1) * geo.dw + 1
    inp_slots = np.where(knob["inp_slots"] == RESIDENT, inp_round, knob["inp_slots"])
    inp_share = inp_slots * tci * ih * iw / m.inp_built
    tile = np.minimum(tco, geo.co) * th * tw
    waiting = np.zeros(len(values))
    if geo.res_bytes:
        pieces = np.where(tw >= geo.ow, 1.0, tco)
        residual = geo.res_bytes / m.bus_bytes + latency * pieces * tiles
        room = (1 - inp_share) * m.inp_built
        # Loads that the ring cannot hold wait for the end of the tile. About half of their time
        # overlaps with the GEMMs.
        waiting = np.where(room < tile, 0.5 * residual * (1 - room / tile), 0.0)
        load = load + residual
        inp_share = inp_share + 2 * tw / m.inp_built

    # -- compute and store ------------------------------------------------------------------
    outputs = geo.batches * geo.groups * geo.co * geo.oh * geo.ow
    iterations = outputs * geo.ci * taps
    adds = int(geo.add_bytes > 0)
    operand = adds * outputs * _beats(m.acc_bytes, m.bus_bytes)
    steps = tiles * nk
    resets = 0 if geo.bias_lift else 1
    compute = iterations + (resets + operations + tensors) * outputs + operand
    # Each GEMM or ALU instruction takes its iterations, 6 cycles of the pipeline and one cycle
    # until the next one.
    compute = compute + 7.0 * (steps + tiles * (resets + operations))
    averaging = average_cycles(geo, np.minimum(tco, geo.co))
    compute = compute + tiles * averaging
    gap = 1 if m.out_bytes > m.bus_bytes else 0
    element = _beats(m.out_bytes, m.bus_bytes) + gap
    bursts = tiles * tco * np.where(tw >= geo.ow, 1.0, th)
    left_of = 1.0  # fraction of the results that is stored
    if geo.average_taps:
        bursts, left_of = tiles, 1 / (geo.oh * geo.ow)
    store = outputs * left_of * element + (4 - gap) * bursts

    # -- what does not overlap --------------------------------------------------------------
    first_rows = np.minimum((first - 1) * geo.sh + geo.kh, geo.h)
    first_cols = np.minimum((tw - 1) * geo.sw + geo.kw, geo.w)
    first_blocks = np.where(knob["ramp"] > 0, 1.0, tco)
    fill = latency * 2 + tci * first_rows * first_cols * inp_beats
    fill = fill + first_blocks * tci * taps * wgt_beats
    pieces, last_share = _pieces(m, operations, knob["tail"])
    last = tile * last_share
    drain = last * left_of * element + 21.0 * pieces
    single = knob["acc_slots"] == 1
    tile_store = tco * th * tw * left_of * element
    exposed = np.where(single, (tiles - 1) * tile_store, 0.0) + waiting
    # The loads that fill the pipeline are part of all loads. If loads limit a program, it ends with
    # the computation that remains after the last load.
    step_elements = tco * tci * taps
    left = np.where(knob["ramp"] > 0, 0.0, np.minimum(tco, geo.co) * tci * taps * th * tw)
    left = left + operations * last + averaging
    total = np.maximum(np.maximum(compute + exposed, store) + fill, load + left) + drain
    uops = 4.0 * step_elements / m.bus_bytes * m.uop_bytes
    instructions = steps * 2 + inp_loads + wgt_loads + tiles * (2 + operations)
    start = np.minimum(instructions, m.max_burst_beats / 2) * FETCH_BEATS + START_CYCLES

    held = 2 if geo.average_taps else 0  # accumulators per block in which averages are summed
    wgt_slots = np.where(knob["wgt_slots"] == RESIDENT, wgt_round, knob["wgt_slots"])
    wgt_share = wgt_slots * step_elements / m.wgt_built
    streamed = load_bound(geo, m, operations, th * tw) & weights_stream(
        geo, m, knob["wgt_slots"] == RESIDENT, wgt_slots * step_elements, th, tw, nk, places
    )
    return np.stack(
        [
            total + start + uops,
            load,
            compute,
            store,
            instructions,
            inp_elements * m.inp_bytes,
            wgt_elements * m.wgt_bytes,
            inp_share,
            np.where(streamed, 1.0, wgt_share),
            knob["acc_slots"] * tco * (th * tw + held) * (1 + adds + geo.copies) / m.acc_built,
        ],
        axis=1,
    )


def _pieces(m: Machine, operations: int, tail: Array) -> tuple[Array, Array]:
    """Return how the epilogue of the last tile is divided into pieces, which are stored one by one.

    A store can then begin before the whole epilogue has ended. If stores are faster than the
    epilogue, each piece is smaller than the previous one.

    Args:
        m: the machine.
        operations: number of ALU operations per output.
        tail: value of the knob `tail`, shape (n,).

    Returns:
        The number of pieces, and the fraction of the epilogue in the last piece, shape (n,) each.
    """
    if m.out_bytes > m.bus_bytes:
        return tail, 1 / tail
    pieces, shrink = np.ceil(tail / 2), operations * WIDE_STORE
    if shrink <= 1:
        return pieces, 1 / pieces
    return pieces, (shrink - 1) / (shrink**pieces - 1)


def _beats(element_bytes: int, bus_bytes: int) -> float:
    return element_bytes / bus_bytes


def clipped(
    outputs: int, tiles: Array, stride: int, kernel: int, dilation: int, size: int
) -> Array:
    """Return the number of input rows (or columns) that all tiles together read.

    Rows that several tiles read count several times. Padding does not count.

    Args:
        outputs: number of output rows.
        tiles: number of tiles, shape (n,).
        stride: stride of the convolution.
        kernel: kernel size.
        dilation: dilation of the convolution.
        size: number of input rows.
    """
    overlap = max(0, (kernel - 1) * dilation + 1 - stride)
    return np.asarray(np.minimum(outputs * stride + overlap * tiles, size + overlap * (tiles - 1)))


_BUSY = slice(1, 4)  # columns with the cycles of load, compute and store
_COUNTS = slice(4, 7)  # columns with the numbers of instructions and bytes


def estimate_summed(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Estimate schedules of a convolution with a shortcut.

    Args:
        geo: geometry of the workload, including that of the shortcut.
        m: the machine.
        operations: number of ALU operations per output in the epilogue of the convolution.
        tensors: number of operand tensors in the epilogue of the convolution.
        values: knob values, shape (n, knobs).

    Returns:
        float64 array of shape (n, 10), with the columns `ESTIMATES`.
    """
    beside, planes = beside_of(geo), geo.groups * geo.co
    vectors = geo.bias_bytes // m.acc_bytes // planes
    before = vectors - (geo.beside_bias_base - geo.bias_base) // planes
    without_residual = geo._replace(res_bytes=0)
    total = estimate_extended(without_residual, m, operations, tensors, values, geo.beside_ci)
    other = estimate_extended(beside, m, geo.beside_steps, before, values, geo.ci)
    busy = total[:, _BUSY] + other[:, _BUSY]
    # The accumulators are initialised once, and nothing is stored between the two convolutions.
    busy[:, 1] -= geo.batches * planes * geo.oh * geo.ow
    busy[:, 2] = total[:, 3]
    total[:, CYCLES] += busy.max(axis=1) - total[:, _BUSY].max(axis=1)
    total[:, _BUSY] = busy
    total[:, _COUNTS] += other[:, _COUNTS]
    total[:, SHARES] = np.maximum(total[:, SHARES], other[:, SHARES])
    return total
