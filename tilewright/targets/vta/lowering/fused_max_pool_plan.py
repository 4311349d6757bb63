"""Plan of a schedule for a convolution with a fused max-pool.

A tile is a tile of the pool's output. Its accumulators hold all convolution results that its
windows read, including results in the pool's padding. They are laid out like the pixels of a
max-pool layer (see `max_pool_plan`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import Layout
from tilewright.targets.vta.lowering.geometry import Geometry, window
from tilewright.targets.vta.lowering.max_pool_codegen import PoolTile, Sides
from tilewright.targets.vta.lowering.max_pool_plan import (
    PoolPlan,
    PoolSlots,
    axis_of,
    count_maxima,
    length,
)
from tilewright.targets.vta.lowering.max_pool_plan import PoolTiling as PoolTiling
from tilewright.targets.vta.lowering.output_tiles import GemmTile as SumsTile
from tilewright.targets.vta.lowering.output_tiles import place_at
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    CHANNELS_OUTER,
    RESIDENT,
    GemmTiling,
    LoopPlan,
    LoweringPlan,
    operations_of,
    slots_of,
)
from tilewright.targets.vta.numba_decorators import helper, stage, view_stage
from tilewright.targets.vta.spec import Machine

COPY_CYCLES = 5
"""Cycles to copy one accumulator value for the next tile, which needs the value, too: a reset, two
operations that set the smallest possible value, and a maximum. A tile that reads the value at its
old position needs none of these operations."""


class PooledPlan(NamedTuple):
    """Plan of a convolution with a fused max-pool, as two views of one schedule.

    `sums` divides the convolution results into tiles, and `pool` divides the pooled output.
    """

    sums: LoweringPlan
    pool: PoolPlan
    carried: int  # lines of sums that a tile reuses from the tile above it
    read_there: bool  # whether these lines are read in their old place, without a copy


class PooledTile(NamedTuple):
    """A tile of the max-pool's output, with the convolution results that it needs."""

    sums: SumsTile
    out: PoolTile
    sides: Sides  # numbers of lines and columns that are padding or reused
    carried: bool


@stage
def pooled_tiling(geo: Geometry, knobs: NDArray[np.int64]) -> GemmTiling:
    """Return the tile sizes of a schedule for a convolution with a fused max-pool.

    In the result, `th` and `tw` count convolution results, and `first_rows` counts rows of the
    pool's output.

    Args:
        geo: geometry of the workload.
        knobs: knob values, shape (knobs,).
    """
    th, tw, tco, tci, head = knobs[0], knobs[1], knobs[2], knobs[3], knobs[8]
    first_rows = -(-th // head)
    row_tiles = 1 if first_rows >= geo.oh else 1 + -(-(geo.oh - first_rows) // th)
    col_tiles = -(-geo.ow // tw)
    lines = length(axis_of(geo.pool_kh, geo.pool_sh, th), th)
    line = length(axis_of(geo.pool_kw, geo.pool_sw, tw), tw)
    gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
    rows, cols = min(lines, geo.sums_h), min(line, geo.sums_w)
    return GemmTiling(
        lines, line, tco, tci, knobs[4], first_rows, row_tiles, col_tiles, -(-geo.co // tco),
        geo.batches * row_tiles * col_tiles, -(-geo.ci // tci), 0, gather,
        rows if gather else window(rows, geo.sh, geo.kh, geo.dh),
        window(cols, geo.sw, geo.kw, geo.dw),
    )  # fmt: skip


@view_stage
def pooled_plan_of(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64]
) -> PooledPlan:
    """Plan a schedule: tiles of results and outputs, scratchpad slots, and reused lines.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values, shape (knobs,).
    """
    t = pooled_tiling(geo, knobs)
    wgt_slots = knobs[6]
    # given as a number of slots, so that weights are never loaded as a stream
    if wgt_slots == RESIDENT:
        wgt_slots = t.nk if t.order == CHANNELS_OUTER else t.co_tiles * t.nk
    operations = operations_of(geo, epilogue)
    slots = slots_of(geo, m, t, operations, knobs[5], wgt_slots, knobs[7])
    # The hardware loops run over pixels only, so that a run of micro-ops is a run of weights.
    sums = LoweringPlan(
        geo, m, lay, epilogue, t, operations, slots, LoopPlan(0, 1, True, True), knobs[9], 1,
        epilogue[:0],
    )  # fmt: skip
    th, tw = knobs[0], knobs[1]
    rows, cols = axis_of(geo.pool_kh, geo.pool_sh, th), axis_of(geo.pool_kw, geo.pool_sw, tw)
    by_row = count_maxima(geo.pool_kh, geo.pool_sh, th, th)
    by_col = count_maxima(geo.pool_kw, geo.pool_sw, tw, tw)
    tiling = PoolTiling(
        th, tw, t.tco, t.row_tiles, t.col_tiles, t.co_tiles, t.places, 1, 1, t.ih, t.iw
    )
    pool = PoolPlan(
        geo, m, lay, epilogue, tiling,
        PoolSlots(slots.inp, slots.inp_size, slots.acc, slots.acc_size), rows, cols, False,
        by_row * t.tw + by_col * th <= by_col * t.th + by_row * tw,
    )  # fmt: skip
    carried = 0
    if carries(geo, knobs, t.col_tiles, t.co_tiles):
        carried = geo.pool_kh - geo.pool_sh
    # A single line can be read in its old place if no maximum is written to it.
    read_there = carried == 1 and not rows.single and rows.home > 0
    return PooledPlan(sums, pool, carried, read_there)


@helper
def carries(geo: Geometry, knobs: NDArray[np.int64], col_tiles: int, co_tiles: int) -> bool:
    """Return whether tiles reuse convolution results of the tile above them.

    This requires that pooling windows overlap, that the tile above is the previous tile of the
    program, that its results are still in the accumulators, and that reusing a result is cheaper
    than computing it.

    Args:
        geo: geometry of the workload.
        knobs: knob values, shape (knobs,) or (knobs, n). Outside of compiled code, the other
            arguments may be arrays for n schedules as well.
        col_tiles: number of tiles along columns.
        co_tiles: number of tiles along output blocks.
    """
    in_order = (col_tiles == 1) & ((knobs[4] == CHANNELS_OUTER) | (co_tiles == 1))
    cheaper = geo.ci * geo.kh * geo.kw > COPY_CYCLES
    return in_order & (knobs[7] > 1) & cheaper & (geo.pool_kh > geo.pool_sh)


@helper
def pooled_tile_at(plan: PooledPlan, number: int, tiles: int) -> PooledTile:
    """Return a tile of the max-pool's output.

    Args:
        plan: plan of the convolution with its max-pool.
        number: position of the tile in the program, counted from 0.
        tiles: number of tiles of the program.
    """
    geo, t, p = plan.sums.geo, plan.sums.tiling, plan.pool.tiling
    at = place_at(t, number)
    row = 0 if at.row_tile == 0 else t.first_rows + (at.row_tile - 1) * p.th
    rows = min(t.first_rows if at.row_tile == 0 else p.th, geo.oh - row)
    col = at.col_tile * p.tw
    cols = min(p.tw, geo.ow - col)
    lines, line = length(plan.pool.rows, rows), length(plan.pool.cols, cols)
    y0, x0 = row * geo.pool_sh - geo.pool_top, col * geo.pool_sw - geo.pool_left
    carried = plan.carried > 0 and at.row_tile > 0
    sides = Sides(
        plan.carried if carried else max(0, -y0), max(0, y0 + lines - geo.sums_h),
        max(0, -x0), max(0, x0 + line - geo.sums_w),
    )  # fmt: skip
    sums_rows, sums_cols = lines - sides.top - sides.bottom, line - sides.left - sides.right
    co = at.co_tile * t.tco
    cos, pitch = min(t.tco, geo.co - co), length(plan.pool.rows, p.th) * line
    slot = number % plan.sums.slots.acc
    acc = slot * plan.sums.slots.acc_size
    there = geo.out_blocks - at.group * geo.co - co
    plane = at.image * geo.out_blocks + at.group * geo.co + co
    sums = SumsTile(
        number, tiles, at.group, at.image, at.group * t.places + at.pixels, at.co_tile,
        y0 + sides.top, sums_rows, x0 + sides.left, sums_cols, co, cos,
        sums_rows if t.gather else window(sums_rows, geo.sh, geo.kh, geo.dh),
        window(sums_cols, geo.sw, geo.kw, geo.dw), pitch, slot, acc, 0, there,
    )  # fmt: skip
    out = PoolTile(
        number, 0, plane, cos, row, rows, col, cols, lines, line, lines, line, pitch, 0, slot, 0,
        acc,
    )  # fmt: skip
    return PooledTile(sums, out, sides, carried)
