"""Estimates of grouped and depthwise convolutions (`targets.cpu.kernels.grouped_loops`)."""

from __future__ import annotations

import numpy as np

from tilewright.targets.cpu.bounds import NUMBER_BYTES
from tilewright.targets.cpu.estimates.convolution import COPY
from tilewright.targets.cpu.estimates.cost_model import (
    ENTRY,
    LATENCY,
    LOADS,
    LOOP,
    MULTIPLIES,
    SPILL,
    TILE,
    Array,
    CpuMachine,
    Knobs,
    Parts,
    busiest,
    finish_cycles,
    kept_operands,
    of_vector,
    step_cycles,
)
from tilewright.targets.cpu.kernels.grouped import Reach
from tilewright.targets.cpu.kernels.grouped_loops import COPY_ALL, COPY_NOTHING, COPY_SHARE
from tilewright.targets.cpu.kernels.loops import MAX_UNROLLED
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.workload import Workload


def estimate_grouped(w: Workload, machine: CpuMachine, knobs: Knobs) -> Parts:
    """Estimate the latency of a grouped or depthwise convolution.

    Without a knob `tile_blocks`, the convolution is depthwise.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name.

    Returns:
        Parts of the latency, shape (configs,) each.
    """
    spec = machine.spec
    ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
    high, wide, shares = knobs["tile_rows"], knobs["tile_columns"], knobs["row_shares"]
    row_tiles, column_tiles = np.ceil(w.out_height / high), np.ceil(w.out_width / wide)
    if "tile_blocks" in knobs:
        tap_cycles, sums, needed = _groups(w, machine, knobs, ib, ob)
    else:
        tap_cycles, sums, needed = _channels(w, machine, knobs, ob)
    blocks = knobs.get("tile_blocks", np.ones_like(high))
    tasks = w.out_channels / (ob * blocks)
    tiles = w.batch * tasks * row_tiles * column_tiles
    taps = w.kernel_h * w.kernel_w
    unrolled = np.choose(knobs["unroll_kernel"].astype(int), (1, w.kernel_w, taps))
    tests = (knobs["padding"] == COPY_NOTHING) & is_padded(w)
    # Tiles at the top and bottom border test each kernel row: two rows of tiles, which may be all.
    border = np.where(tests, np.minimum(2 / row_tiles, 1.0), 0.0)
    multiply = tiles * (tap_cycles * (1 + border) + taps / unrolled * (LOOP + ENTRY) + TILE)
    epilogue_kinds = [step.kind for step in w.epilogue]
    reach = w.dilation_h * (w.kernel_h - 1)
    rows = (np.ceil(row_tiles / shares) * high - 1) * w.stride_h + 1 + reach
    pixels = (w.out_width - 1) * w.stride_w + 1 + w.dilation_w * (w.kernel_w - 1)
    vectors_in = w.batch * of_vector(ib) * pixels
    read = blocks * tasks * shares * rows
    all_rows = (
        (w.in_channels // ib) * ((w.out_height - 1) * w.stride_h + 1 + reach) * np.ones_like(high)
    )
    copied: Array = np.where(knobs["padding"] == COPY_SHARE, read, all_rows) * vectors_in * COPY
    copied = np.where(knobs["padding"] == COPY_NOTHING, 0.0, copied)
    near, far = (_bytes_moved(w, machine, knobs, size) for size in (machine.l1, machine.l2))
    chunks = w.batch * tasks * shares
    imbalance = np.ceil(row_tiles / shares) * shares / row_tiles
    return Parts(
        multiply,
        tiles * finish_cycles(sums, epilogue_kinds) + copied,
        near,
        far,
        needed / spec.registers,
        np.minimum(busiest(chunks, spec.threads) * imbalance, 1.0),
        1.0 + (knobs["padding"] == COPY_ALL),
        high * wide * blocks
        * knobs.get("unroll_channels", np.ones_like(high)) * _unrolled_copies(w, knobs)
        / MAX_UNROLLED,
    )  # fmt: skip


def _unrolled_copies(w: Workload, knobs: Knobs) -> Array:
    """Return how often the unrolled code contains the multiply-adds of one kernel position.

    `WindowLoops`, which builds the code, checks the same count against its limit. Each column of
    tiles at the border has its own code. Rows of tiles at the border have their own code if they
    test for padding.

    Args:
        w: the workload.
        knobs: values of each knob, shape (configs,), by the knob's name.

    Returns:
        Number of copies, shape (configs,).
    """
    tests = (knobs["padding"] == COPY_NOTHING) & is_padded(w)
    unroll = knobs["unroll_kernel"].astype(int)
    kernel = np.choose(unroll, (1.0, w.kernel_w, w.kernel_w * w.kernel_h))
    border, inner = np.empty_like(kernel), np.empty_like(kernel)
    for wide in np.unique(knobs["tile_columns"]):
        rows = knobs["tile_columns"] == wide
        first = np.arange(0, w.out_width, wide)
        whole = first + wide <= w.out_width
        last = np.minimum(first + wide, w.out_width) - 1
        read_end = last * w.stride_w - w.pad_left + w.dilation_w * (w.kernel_w - 1) + 1
        inside = (first * w.stride_w >= w.pad_left) & (read_end <= w.width)
        for mask, is_inner in ((rows & tests, whole & inside), (rows & ~tests, whole)):
            border[mask], inner[mask] = (~is_inner).sum(), is_inner.any()
    written = kernel * inner + border * np.maximum(kernel, w.kernel_w)
    row = np.where(unroll > 0, w.kernel_w, 1)
    return np.asarray(np.where(tests, written + row * (border + inner), written))


def _channels(
    w: Workload, machine: CpuMachine, knobs: Knobs, ob: int
) -> tuple[Array, Array, Array]:
    """Estimate one register tile of a depthwise convolution over all kernel positions.

    If kernel positions of a row are unrolled, a data vector that several of them read is loaded
    once.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name.
        ob: output channels per block.

    Returns:
        Cycles of the multiply-adds, number of accumulator vectors, and number of registers that the
        tile needs, shape (configs,) each.
    """
    vector_cost = of_vector(ob)
    high, wide, unroll = knobs["tile_rows"], knobs["tile_columns"], knobs["unroll_kernel"]
    taps = w.kernel_h * w.kernel_w
    sums = vector_cost * high * wide
    row = np.minimum((wide - 1) * w.stride_w + w.kernel_w, wide * w.kernel_w)
    column = np.minimum((high - 1) * w.stride_h + w.kernel_h, high * w.kernel_h)
    shared = w.dilation_w == w.dilation_h == 1
    by_row = w.kernel_h * high * (row if shared else wide * w.kernel_w)
    loads = np.where(unroll > 0, by_row, taps * high * wide)
    loads = np.where((unroll > 1) & shared, column * row, loads) * vector_cost
    loads = loads + taps * vector_cost
    # Vectors of a row that several taps read stay in registers until the last of them.
    several = (unroll > 0) & (w.kernel_w > w.stride_w)
    needed = sums + vector_cost * np.where(several, row, 2)
    spilled = np.maximum(needed - machine.spec.registers, 0.0) * taps
    cycles = np.maximum(sums / MULTIPLIES, LATENCY) * taps
    cycles = np.maximum(cycles, loads / LOADS) + SPILL * spilled
    return cycles, sums, needed


def _groups(
    w: Workload, machine: CpuMachine, knobs: Knobs, ib: int, ob: int
) -> tuple[Array, Array, Array]:
    """Estimate one register tile of a grouped convolution over all kernel positions.

    The tile has several blocks of output channels, and reads all input channels of their groups.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name.
        ib: input channels per block.
        ob: output channels per block.

    Returns:
        Cycles of the multiply-adds, number of accumulator vectors, and number of registers that the
        tile needs, shape (configs,) each.
    """
    spec, blocks = machine.spec, knobs["tile_blocks"]
    span = np.empty_like(blocks)
    for number in np.unique(blocks):
        span[blocks == number] = Reach(w, int(number) * ob, ib).spans.mean()
    wide = blocks * of_vector(ob)
    numbers = knobs["tile_rows"] * knobs["tile_columns"]
    kept = kept_operands(wide, numbers, blocks, np.zeros_like(wide) > 0)
    step = step_cycles(wide * numbers, (wide, numbers), kept, spec.registers)
    steps = w.kernel_h * w.kernel_w * span
    cycles = steps * step + steps * knobs["tile_rows"] / knobs["unroll_channels"] * LOOP
    return cycles, wide * numbers, wide * numbers + kept + 1


def _bytes_moved(w: Workload, machine: CpuMachine, knobs: Knobs, cache: float) -> Array:
    """Return the bytes that a grouped convolution moves into a cache.

    If the data and the output of one image fit the cache, nothing is moved. Otherwise the data are
    moved once, or three times if they are copied to a padded tensor first, and the output counts
    twice.

    Args:
        w: the workload.
        machine: properties of a core.
        knobs: values of each knob, shape (configs,), by the knob's name.
        cache: size of the cache in bytes.

    Returns:
        Bytes, shape (configs,).
    """
    data = NUMBER_BYTES[w.dtype] * w.batch * w.in_channels * w.height * w.width
    out = NUMBER_BYTES[w.dtype] * w.batch * w.out_channels * w.out_height * w.out_width
    out_tensors = 1 + sum(step.kind == "residual" for step in w.epilogue)
    data_moves = np.where(knobs["padding"] == COPY_ALL, 3.0, 1.0)
    size = data * data_moves + 2.0 * out_tensors * out
    return np.where(size * min(1.0, 1 / w.batch) > cache, size, 0.0)
