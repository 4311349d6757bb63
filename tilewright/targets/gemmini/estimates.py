"""Closed-form estimates of schedules on Gemmini, and lower bounds of workloads.

An estimate counts the rows that are fed to the array, the beats of memory responses, and the memory
requests of a schedule, as if all tiles had full size. A block of weights takes 16 cycles, and a
response beat takes `cycles_per_beat`. Up to 16 requests are in flight; each one occupies its
transaction number for the memory latency plus 7 cycles. Units with double buffers work in parallel.

The bounds count the rows that the array must process and the bytes that the memory port must
transfer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.features import Feature, Features
from tilewright.targets.gemmini.isa import OUTPUT_STATIONARY
from tilewright.targets.gemmini.loop_unrolling import BLOCKS_PER_REQUEST, LOOPS
from tilewright.targets.gemmini.lowering.epilogue import sums_covered
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.lowering.program_features import LEAST_ROWS
from tilewright.targets.gemmini.lowering.schedule_space import (
    FIRST,
    LOOP,
    PIXELS_OUTSIDE,
    TileSchedule,
)
from tilewright.targets.gemmini.spec import BUS_BYTES, DIM, GemminiSpec
from tilewright.targets.workload import Workload

Counts = NDArray[np.int64]
REQUEST_CYCLES = 7
"""Cycles for which a memory request occupies its transaction number, in addition to the memory
latency."""
# Measured on the RTL. A row is split into requests of 16, 32 or 64 bytes; 48 bytes are one masked
# request of 64 bytes.
STORE_CYCLES = np.array([0, 1, 3, 6, 7])
"""Cycles to store one row, indexed by the number of blocks in the row."""

ESTIMATES = (
    Feature("cycles", "latency", "", "the estimate"),
    Feature("feeding", "work", "compute", "cycles in which rows enter the array"),
    Feature("loading", "work", "load", "cycles of responses"),
    Feature("storing", "work", "store", "cycles of written rows"),
    Feature("data_bytes", "bytes", "load", "data and residual read [bytes]"),
    Feature("weight_bytes", "bytes", "load", "weights read [bytes]"),
    Feature("stored_bytes", "bytes", "store", "results written [bytes]"),
    Feature("scratchpad_share", "share", "", "of the scratchpad"),
    Feature("accumulator_share", "share", "", "of the accumulator"),
)


def estimate(g: BlockGeometry, spec: GemminiSpec, values: Counts) -> Features:
    """Estimate the cycles, bytes and memory use of schedules.

    Args:
        g: geometry of the workload.
        spec: the machine.
        values: knob values of the schedules, int64 array of shape (n, knobs).

    Returns:
        The columns `ESTIMATES`, one row per schedule.
    """
    s = TileSchedule(*values.T)  # each field is a column of `values`, shape (n,)
    loop = np.asarray(s.form == LOOP)
    in_buffers = np.where(loop, LOOPS, s.in_buffers)
    out_buffers = np.where(loop, LOOPS, s.out_buffers)
    taps, k_all, n_all = g.kernel_h * g.kernel_w, blocks(g.in_channels), blocks(g.out_channels)
    pixel_tiles = g.images * _round_up(g.out_height, s.tile_h) * _round_up(g.out_width, s.tile_w)
    n_tiles, k_tiles = _round_up(n_all, s.tile_n), _round_up(k_all, s.tile_k)
    sums_h, sums_w = _sums_under(g, s)
    chunks = _round_up(sums_w, DIM)
    width = _round_up(sums_w, chunks)  # pixels of one product
    fed = np.maximum(width, LEAST_ROWS)
    passes = pixel_tiles * g.groups * (taps * k_all + len(g.identities)) * n_all
    fed = np.where(np.asarray(s.dataflow == OUTPUT_STATIONARY) & ~loop, DIM, fed)
    feeding = passes * (DIM + (sums_h * chunks - 1) * fed)
    again = (k_tiles > 1) | (s.order != PIXELS_OUTSIDE)
    data_loads = pixel_tiles * np.where(again & (n_tiles > 1), n_tiles, 1) * g.groups
    patch = _patch_pixels(g, s)
    data_rows = data_loads * patch * _round_up(k_all, BLOCKS_PER_REQUEST)
    data_bytes = data_loads * patch * min(k_all * DIM, g.in_channels)
    residual = g.pixels * g.all_out_channels if g.epilogue.residual else 0
    reload = (k_tiles * n_tiles > 1) & ((k_tiles > 1) | (s.order == PIXELS_OUTSIDE))
    weight_loads = np.where(reload, pixel_tiles, 1) * g.groups * taps * k_all
    weight_rows = (
        weight_loads * DIM * n_tiles * _round_up(np.minimum(s.tile_n, n_all), BLOCKS_PER_REQUEST)
    )
    weight_bytes = weight_loads * DIM * n_all * DIM
    bias = pixel_tiles * sums_h * chunks * n_all * DIM * int(g.epilogue.loads_sums)
    busy = (spec.memory_latency_cycles + REQUEST_CYCLES) / spec.requests_in_flight
    beats = spec.cycles_per_beat * (data_bytes + weight_bytes + residual) / DIM
    loading = np.maximum(beats, busy * (data_rows + weight_rows)) + bias
    store_blocks = np.minimum(np.where(loop, BLOCKS_PER_REQUEST, s.store_blocks), s.tile_n)
    commands_a_row = _round_up(n_all, store_blocks) * g.groups
    storing = g.pixels * commands_a_row * np.maximum(STORE_CYCLES[store_blocks], busy)
    if g.pool is not None:  # a pooled store reads one sum per cycle
        window = g.pool.kernel_h * g.pool.kernel_w
        storing = np.full(len(values), g.pixels * n_all * g.groups * max(window, busy))
    longest = np.maximum(np.maximum(feeding, loading), storing)
    total = feeding + loading + storing
    # Fraction of the shorter parts that runs in parallel with the longest one. It is small with one
    # operand buffer, and smaller if the loads of a tile precede its products (`FIRST`) than if they
    # are interleaved.
    beside = np.where(in_buffers > 1, np.where(s.form == FIRST, 0.8, 0.95), 0.3)
    start = spec.memory_latency_cycles + (loading + storing) / np.maximum(pixel_tiles * k_tiles, 1)
    cycles = longest + (1 - beside) * (total - longest) + start
    operands = np.where(
        loop, (_round_up(s.tile_w, DIM) + s.tile_n) * s.tile_k * DIM * LOOPS / spec.scratchpad_rows,
        2 * in_buffers * np.maximum(s.tile_k * patch, taps * s.tile_k * s.tile_n * DIM)
        / spec.scratchpad_rows,
    )  # fmt: skip
    sums = sums_h * chunks * s.tile_n * DIM * out_buffers / spec.accumulator_rows
    stored = np.full(len(values), g.pixels * g.all_out_channels)
    columns = (
        cycles, feeding, loading, storing, data_bytes + residual, weight_bytes, stored, operands,
        sums,
    )  # fmt: skip
    return Features(np.stack(columns, 1).astype(np.float64), ESTIMATES)


def _round_up(size: Any, step: Any) -> Any:
    """Divide `size` by `step` and round the quotient up. Both may be integers or integer arrays."""
    return -(-size // step)


def _patch_pixels(g: BlockGeometry, s: TileSchedule) -> Any:
    """Return the number of input pixels that one output tile reads, without padding at the borders.

    Args:
        g: geometry of the workload.
        s: schedules whose fields are arrays of shape (n,).

    Returns:
        Number of pixels, int array of shape (n,).
    """
    sums_h, sums_w = _sums_under(g, s)
    height = sums_h * min(g.stride_h, g.kernel_h) + max(0, g.kernel_h - g.stride_h)
    width = sums_w * min(g.stride_w, g.kernel_w) + max(0, g.kernel_w - g.stride_w)
    return height * width


def _sums_under(g: BlockGeometry, s: TileSchedule) -> tuple[Any, Any]:
    """Return the height and width of the convolution results that one output tile needs.

    Without a max-pool, these are the height and width of the tile. With a fused max-pool, they are
    larger.

    Args:
        g: geometry of the workload.
        s: schedules whose fields are arrays of shape (n,).

    Returns:
        Heights and widths, int arrays of shape (n,).
    """
    if g.pool is None:
        return s.tile_h, s.tile_w
    p = g.pool
    return (
        np.minimum(sums_covered(s.tile_h, p.stride_h, p.kernel_h), g.sums_height),
        np.minimum(sums_covered(s.tile_w, p.stride_w, p.kernel_w), g.sums_width),
    )


def roofline_cycles(workload: Workload, spec: GemminiSpec) -> int:
    """Return the roofline of a workload in cycles, at least 1.

    The roofline is the largest of three times: all multiplications at the array's peak throughput,
    all reads at the memory port's peak bandwidth, and all writes at its peak bandwidth. Reads and
    writes are not added, because they can overlap.

    Args:
        workload: the workload.
        spec: the machine.
    """
    w = workload
    g = BlockGeometry.for_workload(w)
    weights = w.out_channels * (w.in_channels // w.groups) * w.kernel_h * w.kernel_w
    rows, columns = g.least_sums
    arithmetic = -(-weights * g.images * rows * columns // (DIM * DIM))
    return max(1, arithmetic, _read_cycles(g, weights, spec), _write_cycles(g))


def bound_cycles(workload: Workload, spec: GemminiSpec) -> int:
    """Return a lower bound of the cycles of every program for a workload.

    The array multiplies each block of weights with each row of data, one row per cycle. The first
    multiplication has to wait for the first response of the memory. The bound is the memory latency
    plus the larger of the array's cycles and the roofline.

    Args:
        workload: the workload.
        spec: the machine.
    """
    g = BlockGeometry.for_workload(workload)
    taps = g.kernel_h * g.kernel_w
    per_in = workload.in_channels // workload.groups
    blocks = -(-per_in * taps // DIM) * -(-workload.out_channels // DIM)
    rows, columns = g.least_sums
    least = max(blocks * g.images * rows * columns, roofline_cycles(workload, spec))
    return least + spec.memory_latency_cycles


def _read_cycles(g: BlockGeometry, weights: int, spec: GemminiSpec) -> int:
    """Return a lower bound of the cycles in which the memory port reads all operands.

    Each required input pixel, the weights, the biases and the residual are read once.

    Args:
        g: geometry of the workload.
        weights: size of the weights, in bytes.
        spec: the machine.
    """
    rows, columns = g.least_sums
    height, width = min(g.height, rows * g.kernel_h), min(g.width, columns * g.kernel_w)
    read = g.images * height * width * g.all_in_channels + weights
    if g.epilogue.loads_sums:
        read += 4 * g.all_out_channels
    if g.epilogue.residual:
        read += g.pixels * g.all_out_channels
    return -(-read // BUS_BYTES) * spec.cycles_per_beat


def _write_cycles(g: BlockGeometry) -> int:
    """Return the cycles in which the memory port writes the output, 16 bytes per cycle.

    Args:
        g: geometry of the workload.
    """
    return g.pixels * -(-g.all_out_channels // BUS_BYTES)
