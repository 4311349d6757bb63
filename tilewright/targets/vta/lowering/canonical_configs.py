"""Finds configs that lead to the same program, by replacing knob values that have no effect.

Several values of a knob often lead to the same rows of the first tile, the same numbers of
scratchpad slots, or the same pieces of the last epilogue. Each such value is replaced by the first
value with the same effect. Configs that are equal after the replacement have the same plan
(`plan_of`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import Layout
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.output_tiles import tile_at
from tilewright.targets.vta.lowering.reduction_steps import cycles_later
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    CHANNELS_OUTER,
    RESIDENT,
    LoweringPlan,
    plan_of,
)
from tilewright.targets.vta.lowering.tile_instructions import epilogue_piece, last_part
from tilewright.targets.vta.numba_decorators import kernel, stage, unowned
from tilewright.targets.vta.spec import Machine

ORDER, INP_SLOTS, WGT_SLOTS, HEAD, RAMP, TAIL = 4, 5, 6, 8, 9, 10
_SLOTS = (2, 3)  # values of the slot knobs other than RESIDENT


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find duplicate rows of an array.

    Args:
        values: knob values (not indices), shape (n, knobs).

    Returns:
        The index of the first row of each set of equal rows, shape (rows,), and for each row the
        position of its set in this array, shape (n,).
    """
    ranges = [int(most) + 1 for most in values.max(axis=0, initial=0)]
    if math.prod(ranges) >= 1 << 63:
        return np.arange(len(values)), np.arange(len(values))
    keys = np.ravel_multi_index(tuple(values.T), ranges)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which


@kernel
def set_alike(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], values: NDArray[np.int64]
) -> None:
    """Replace knob values that have no effect by the first value that leads to the same plan.

    Rows that become equal have the same failure, program and counts.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        values: knob values (not indices), shape (n, knobs); changed in place.
    """
    for row in range(values.shape[0]):
        knobs = values[row]
        plan = plan_of(geo, m, lay, unowned(epilogue), unowned(knobs))
        t, slots = plan.tiling, plan.slots
        if t.first_rows == t.th:
            knobs[HEAD] = 1
        if t.places == 1 or t.co_tiles == 1:
            # The order of the two loops only affects the number of slots that RESIDENT stands for.
            knobs[ORDER] = CHANNELS_OUTER
            other = plan_of(geo, m, lay, unowned(epilogue), unowned(knobs))
            if other.slots != slots:
                knobs[ORDER] = t.order
        if knobs[INP_SLOTS] == RESIDENT and slots.inp in _SLOTS:
            knobs[INP_SLOTS] = slots.inp
        if knobs[WGT_SLOTS] == RESIDENT and slots.wgt in _SLOTS and not slots.streamed:
            knobs[WGT_SLOTS] = slots.wgt
        if plan.ramp > 0 and not slots.streamed and in_one_part(plan):
            knobs[RAMP] = 0
        if one_piece(plan):
            knobs[TAIL] = 1


@stage
def in_one_part(plan: LoweringPlan) -> bool:
    """Return whether the knob `ramp` has no effect, because weights are never loaded in parts.

    `reduction_steps.run_step` splits the loads of weights.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
    """
    if not plan.loops.unrolled:
        return plan.geo.column == 0  # for a column, the hardware loops depend on the knob
    if plan.slots.compute_bound or plan.geo.column != 0:
        return False
    t, block = plan.tiling, plan.geo.kh * plan.geo.kw
    beats = max(1, plan.m.wgt_bytes // plan.m.bus_bytes)
    tiles = plan.geo.groups * t.places * t.co_tiles
    for number in range(tiles - 1, -1, -1):
        tile = tile_at(plan, number, tiles)
        pixels, later = tile.rows * tile.cols, cycles_later(plan, tile)
        for k in range(t.nk - 1, -1, -1):
            whole = tile.cos * min(t.tci, plan.geo.ci - k * t.tci) * block
            left = (tiles * t.nk - number * t.nk - k) * whole
            if last_part(left, later, pixels, beats) < whole:
                return False
    return True


@stage
def one_piece(plan: LoweringPlan) -> bool:
    """Return whether the knob `tail` has no effect, because the last epilogue is not divided.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
    """
    tiles = plan.geo.groups * plan.tiling.places * plan.tiling.co_tiles
    last = tile_at(plan, tiles - 1, tiles)
    blocks, rows = epilogue_piece(
        plan.m, plan.operations.in_place, plan.tail, 0, last.cos, last.rows, 0, 0
    )
    return blocks == last.cos and rows == last.rows
