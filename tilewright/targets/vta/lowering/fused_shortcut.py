"""Lowers convolutions with a shortcut: both are summed in the accumulators.

So the shortcut's result is neither stored nor loaded. A tile begins with the shortcut's reduction
and epilogue. They leave the shortcut's result times the power of two it counts by. The
convolution's own products are added to that. The pipeline is that of extended schedules.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import RESIDUALS
from tilewright.targets.vta.isa import Layout
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.extended import prepare
from tilewright.targets.vta.lowering.failures import OK, UOP_CAPACITY
from tilewright.targets.vta.lowering.fused_avg_pool import average_uops, end_averaged
from tilewright.targets.vta.lowering.fused_shortcut_plan import (
    SummedPlan,
    summed_plan_of,
    with_vectors,
)
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.plan import LoweringPlan, slots_failure
from tilewright.targets.vta.lowering.program_state import ProgramState
from tilewright.targets.vta.lowering.reduction_steps import (
    MAX_KERNELS,
    Cursor,
    Rings,
    take_step,
    with_uops,
)
from tilewright.targets.vta.lowering.tile_codegen import finish
from tilewright.targets.vta.lowering.tiles import (
    FULL,
    GemmProgram,
    TilePiece,
    begin_tile,
    end_tile,
    epilogue_of,
    load_bias,
    tile_at,
)
from tilewright.targets.vta.njit_args import allocating_helper, helper, stage, unowned, view_stage
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload


def check_summed(workload: Workload, is_extended: bool) -> None:
    """Raises `WorkloadError` for a shortcut that has no lowering: in another space than the
    extended one, with other tensors added to the same sums."""
    if workload.shortcut is None:
        return
    if not is_extended:
        raise WorkloadError(
            f"{workload}: only the extended space sums a shortcut in the accumulators; use it, or "
            "make the shortcut a layer of its own"
        )
    if any(op.kind in ("add", *RESIDUALS) for op in workload.epilogue):
        raise WorkloadError(
            f"{workload}: a tensor is added to its sums, and a shortcut, too; make one of the two "
            "a layer of its own"
        )


@allocating_helper
def lower_summed(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one config; `knobs` (knobs,) are the knob *values*, `epilogue`
    (steps, 3) is of `epilogue_steps`, the shortcut's first. Returns a failure code.

    `out` (instructions, 2) and `uops` (micro-ops,) are filled; `state` holds the counts.
    There are no options.
    """
    instruction_writer.start(state)
    plan = summed_plan_of(geo, m, lay, unowned(epilogue), knobs)
    slots = plan.own.slots
    failure = slots_failure(
        m, plan.own.tiling, with_vectors(plan.own.operations, plan.vectors), slots
    )
    if failure != OK:
        return failure
    # Lent with their owners: an array whose last use is `unowned` is freed before the call.
    inp_ring = np.full((slots.inp, 2), -1, np.int64)
    wgt_ring = np.full((slots.wgt, 2), -1, np.int64)
    none = np.full(1, -1, np.int64)
    store_of = np.full(slots.acc, -1, np.int64)
    keys, at = np.empty((MAX_KERNELS, 5), np.int64), np.empty(MAX_KERNELS, np.int64)
    beside_keys, beside_at = np.empty((MAX_KERNELS, 5), np.int64), np.empty(MAX_KERNELS, np.int64)
    return _write(
        plan,
        GemmProgram(state, out, uops, store_of),
        Rings(inp_ring, wgt_ring, none, none, keys, at),
        Rings(inp_ring, wgt_ring, none, none, beside_keys, beside_at),
    )


@helper
def _write(plan: SummedPlan, program: GemmProgram, rings: Rings, beside_rings: Rings) -> int:
    """The program of a plan, tile by tile, step by step."""
    own, beside, state = plan.own, plan.beside, program.state
    tiles = own.geo.groups * own.tiling.places * own.tiling.co_tiles
    n_uops = own.slots.acc + average_uops(own)
    if n_uops > min(own.m.uop_built, program.uops.shape[0]):
        return UOP_CAPACITY
    cursor = Cursor(0, 0, 0, 0, -1, 0, 0, 0, n_uops)
    other = cursor
    prepare(_with_all_vectors(plan), program, tiles)
    for number in range(tiles):
        tile, first = tile_at(own, number, tiles), tile_at(beside, number, tiles)
        n_uops = begin_tile(beside, program, first, cursor.n_uops)
        if n_uops == FULL:
            return UOP_CAPACITY
        other = _turned(other, with_uops(cursor, cursor.freed, n_uops))
        for k in range(own.tiling.first_step):
            kernel, other = take_step(beside, program, beside_rings, other, first, k)
            if kernel == FULL:
                return UOP_CAPACITY
        if not beside.operations.lifted:
            load_bias(beside, program, first)
        whole = TilePiece(0, first.cos, 0, first.rows, 0)
        n_uops = epilogue_of(beside, program, first, whole, other.n_uops)
        if n_uops == FULL:
            return UOP_CAPACITY
        cursor = _turned(cursor, with_uops(other, other.freed, n_uops))
        for k in range(own.tiling.first_step, own.tiling.nk):
            kernel, cursor = take_step(own, program, rings, cursor, tile, k)
            if kernel == FULL:
                return UOP_CAPACITY
        if own.geo.average_taps:
            n_uops = end_averaged(own, program, tile, cursor.n_uops)
        else:
            n_uops = end_tile(own, program, tile, cursor.n_uops)
        if n_uops == FULL:
            return UOP_CAPACITY
        cursor = with_uops(cursor, cursor.freed, n_uops)
        if state.problem:
            break
    return finish(state, program.out, cursor.n_uops, own.m.uop_bytes)


@stage
def _turned(own: Cursor, by: Cursor) -> Cursor:
    """A cursor of own kernels where another has turned the rings that they share."""
    return Cursor(
        by.inp_next, by.wgt_next, by.inp_hint, by.wgt_hint, by.freed, by.loaded, own.kernels,
        own.kernel_hint, by.n_uops,
    )  # fmt: skip


@view_stage
def _with_all_vectors(plan: SummedPlan) -> LoweringPlan:
    """What `prepare` loads the vectors of both by: they lie one behind the other."""
    own = plan.own
    return LoweringPlan(
        own.geo, own.m, own.lay, own.epilogue, own.tiling,
        with_vectors(own.operations, plan.vectors), own.slots, own.loops, own.ramp, own.tail,
        own.behind,
    )  # fmt: skip
