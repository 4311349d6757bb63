"""Plan of a max-pool's schedule: the tiles, the layout of pixels, and the order of maxima.

The maximum of a window is the maximum of the maxima of its rows. Rows and columns are therefore
reduced separately, in the order that needs fewer operations.

Along an axis with a stride, pixel j·stride + p has the position j in phase p. A block consists of
`stride` adjacent pixels. The phases of a block are combined first, and then the blocks of a window,
because overlapping windows share the results of whole blocks. The result is written to the pixels
of one phase, which is called the home phase.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import Layout
from tilewright.targets.vta.lowering.geometry import Geometry, window
from tilewright.targets.vta.lowering.invalid_configs import ALLOC_ACC, ALLOC_INP, OK
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, stage, view_stage
from tilewright.targets.vta.spec import Machine

# Columns of a step of `maxima_of`. For j in 0 … `COUNT` − 1, element j of one phase becomes the
# maximum of itself and element j + `AHEAD` of another phase.
INTO, FROM, AHEAD, COUNT = 0, 1, 2, 3


class PoolAxis(NamedTuple):
    """Layout of a tile's rows, or of its columns, in the accumulators of a max-pool.

    Along an axis, pixels are sorted by phase, which is their position modulo the stride.
    """

    kernel: int  # size of a window
    stride: int  # number of phases: the stride, but at most the kernel size
    single: bool  # whether a tile has only one output, so that every pixel of its window is a phase
    full: int  # whole blocks of `stride` pixels in a window, without the block of the last pixel
    last: int  # phase of the last pixel of a window
    home: int  # phase whose first pixels become the output


class PoolTiling(NamedTuple):
    """Sizes and numbers of a max-pool's output tiles, in rows, columns and channel blocks."""

    th: int  # size of a tile: output rows, output columns and channel blocks
    tw: int
    tc: int
    row_tiles: int  # number of tiles along rows, columns and channel blocks
    col_tiles: int
    block_tiles: int
    tiles: int  # number of tiles in the program
    first_parts: int  # parts in which the first tile is computed; `last_parts`: the last tile
    last_parts: int
    ih: int  # input rows of a tile; `iw`: input columns
    iw: int


class PoolSlots(NamedTuple):
    """Division of the input scratchpad and the accumulators into slots, with sizes in elements.

    A slot holds the data of one tile.
    """

    inp: int  # number of slots; `inp_size`: elements per slot; likewise for `acc`
    inp_size: int
    acc: int
    acc_size: int


class PoolPlan(NamedTuple):
    """Plan of a max-pool on one machine: tiles, scratchpad slots, and the order of maxima."""

    geo: Geometry
    m: Machine
    lay: Layout
    epilogue: NDArray[np.int64]  # rows of `epilogue_steps`, shape (steps, 3)
    tiling: PoolTiling
    slots: PoolSlots
    rows: PoolAxis
    cols: PoolAxis
    gather: bool  # whether LOADs skip the rows that no output reads, by their row stride
    rows_first: bool  # whether maxima over rows are taken before maxima over columns


@helper
def axis_of(kernel: int, stride: int, outputs: int) -> PoolAxis:
    """Compute the layout of pixels along one axis of a max-pool.

    Args:
        kernel: size of a window along the axis.
        stride: stride of the windows along the axis.
        outputs: maximum number of outputs of a tile along the axis.
    """
    stride = kernel if outputs == 1 else min(kernel, stride)
    full, last = (kernel - 1) // stride, (kernel - 1) % stride
    home = 0 if full == 0 or last == stride - 1 else last + 1
    return PoolAxis(kernel, stride, outputs == 1, full, last, home)


@helper
def length(axis: PoolAxis, outputs: int) -> int:
    """Return the number of pixels along an axis that adjacent pooling windows cover.

    Args:
        axis: layout of the axis.
        outputs: number of adjacent windows.
    """
    return (outputs - 1) * axis.stride + axis.kernel


@helper
def numbers(axis: PoolAxis, phase: int, outputs: int) -> int:
    """Return the number of pixels of one phase that adjacent outputs read.

    A phase consists of the pixels with the same position modulo the stride.

    Args:
        axis: the axis.
        phase: the phase.
        outputs: number of adjacent outputs.
    """
    return outputs + axis.full - (1 if phase > axis.last else 0)


@helper
def before(axis: PoolAxis, phase: int, outputs: int) -> int:
    """Return the number of pixels that adjacent outputs read in all phases before the given one.

    A phase consists of the pixels with the same position modulo the stride.

    Args:
        axis: the axis.
        phase: the phase; phases 0 to `phase` − 1 are counted.
        outputs: number of adjacent outputs.
    """
    return phase * (outputs + axis.full) - max(0, phase - axis.last - 1)


@helper
def maxima_of(axis: PoolAxis, outputs: int, steps: NDArray[np.int64]) -> int:
    """List the element-wise maximum operations that reduce the windows along one axis.

    The result of each output is in the home phase. A step never reads an element that it has
    already overwritten: its sources are not destinations of the step, or they come after the
    destinations.

    Args:
        axis: the axis.
        outputs: number of outputs along the axis.
        steps: filled with the steps, shape (kernel + 32, 4), with the columns INTO, FROM, AHEAD and
            COUNT.

    Returns:
        The number of steps.
    """
    k = 0
    last, home = axis.last, axis.home
    # maxima over the phases that every block has, including the last one
    for phase in range(1, last + 1):
        steps[k, INTO], steps[k, FROM], steps[k, AHEAD] = 0, phase, 0
        steps[k, COUNT] = outputs + axis.full
        k += 1
    blocks = axis.full + 1
    if home > 0:
        # maxima over the other phases, which only whole blocks have
        for phase in range(last + 1, axis.stride + 1):
            source = phase % axis.stride
            if source != home:
                steps[k, INTO], steps[k, FROM], steps[k, AHEAD] = home, source, 0
                steps[k, COUNT] = outputs + axis.full - 1
                k += 1
        blocks = axis.full
    have = 1
    while have < blocks:  # maxima over runs of blocks; the length of the runs doubles each time
        ahead = min(have, blocks - have)
        have += ahead
        steps[k, INTO], steps[k, FROM], steps[k, AHEAD] = home, home, ahead
        steps[k, COUNT] = outputs + blocks - have
        k += 1
    if home > 0:  # maximum with the incomplete block
        steps[k, INTO], steps[k, FROM], steps[k, AHEAD] = home, 0, axis.full
        steps[k, COUNT] = outputs
        k += 1
    return k


@allocating_helper
def count_maxima(kernel: int, stride: int, tile: int, outputs: int) -> int:
    """Count the element-wise maximum operations along one axis of a max-pool's tile.

    Args:
        kernel: size of a window along the axis.
        stride: stride of the windows.
        tile: maximum number of outputs per tile along the axis, which determines the layout.
        outputs: number of outputs of this tile along the axis.
    """
    axis = axis_of(kernel, stride, tile)
    steps = np.empty((kernel + 32, 4), np.int64)
    total = 0
    for k in range(maxima_of(axis, outputs, steps)):
        total += steps[k, COUNT]
    return total


def maxima_an_output(kernel: int, stride: int) -> int:
    """Return the number of maximum operations along an axis that one more output of a tile takes.

    Args:
        kernel: size of a window along the axis.
        stride: stride of the windows.
    """
    return int(count_maxima(kernel, stride, 3, 3) - count_maxima(kernel, stride, 3, 2))


def fewest_maxima(kernel: int, stride: int, outputs: int) -> int:
    """Return the minimum number of maximum operations along an axis over all divisions into tiles.

    A division into several tiles only increases the number, except for tiles with a single output.
    Such a tile needs one operation fewer than its window has pixels.

    Args:
        kernel: size of a window along the axis.
        stride: stride of the windows.
        outputs: number of outputs along the axis.
    """
    most = int(count_maxima(kernel, stride, outputs + 1, outputs))
    return min(most, (kernel - 1) * outputs)


@stage
def pool_tiling(geo: Geometry, knobs: NDArray[np.int64], gather: bool) -> PoolTiling:
    """Compute the tile sizes of a max-pool's schedule.

    Args:
        geo: geometry of the workload.
        knobs: knob values, shape (knobs,).
        gather: whether LOADs skip the rows that no output reads.
    """
    th, tw, tc = knobs[0], knobs[1], knobs[2]
    row_tiles, col_tiles, block_tiles = -(-geo.oh // th), -(-geo.ow // tw), -(-geo.groups // tc)
    places = geo.batches * block_tiles * row_tiles * col_tiles
    first = min(knobs[5], th)
    last = min(knobs[6], geo.oh - (row_tiles - 1) * th)
    if places == 1:
        first, last = min(max(knobs[5], knobs[6]), th), 1
    return PoolTiling(
        th, tw, tc, row_tiles, col_tiles, block_tiles, places + first + last - 2, first, last,
        th if gather else window(th, geo.sh, geo.kh, 1), window(tw, geo.sw, geo.kw, 1),
    )  # fmt: skip


@view_stage
def pool_plan_of(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64]
) -> PoolPlan:
    """Plan a max-pool's schedule: tiles, scratchpad slots, and the order of maxima.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values, shape (knobs,).
    """
    gather = geo.kh == 1 and geo.sh > 1
    t = pool_tiling(geo, knobs, gather)
    rows, cols = axis_of(geo.kh, geo.sh, t.th), axis_of(geo.kw, geo.sw, t.tw)
    acc_size = t.tc * length(rows, t.th) * length(cols, t.tw)
    slots = PoolSlots(knobs[3], t.tc * t.ih * t.iw, knobs[4], acc_size)
    by_row = count_maxima(geo.kh, geo.sh, t.th, t.th)
    by_col = count_maxima(geo.kw, geo.sw, t.tw, t.tw)
    rows_first = (
        by_row * length(cols, t.tw) + by_col * t.th <= by_col * length(rows, t.th) + by_row * t.tw
    )
    return PoolPlan(geo, m, lay, epilogue, t, slots, rows, cols, gather, rows_first)


@stage
def pool_failure(plan: PoolPlan) -> int:
    """Return the failure code of a scratchpad that is too small, or OK if all slots fit.

    Args:
        plan: plan of the max-pool's schedule.
    """
    if plan.slots.inp * plan.slots.inp_size > plan.m.inp_built:
        return ALLOC_INP
    if plan.slots.acc * plan.slots.acc_size > plan.m.acc_built:
        return ALLOC_ACC
    return OK
