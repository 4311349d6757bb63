"""Lowers convolutions with a fused shortcut, a second convolution whose result is added.

Both results are summed in the accumulators, so the result of the shortcut is neither stored nor
loaded. A tile begins with the shortcut's reduction and epilogue, which leave the shortcut's result
in the accumulators. The products of the convolution are then added to it. The program is pipelined
like a schedule of the extended space. The reduction steps of both convolutions use the same rings
of scratchpad slots, and a slot has the size of the larger operand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.epilogue import RESIDUALS
from tilewright.targets.vta.instruction_format import Layout
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.extended import prepare
from tilewright.targets.vta.lowering.fused_avg_pool import average_uops, end_averaged
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import OK, UOP_CAPACITY
from tilewright.targets.vta.lowering.output_tiles import (
    FULL,
    GemmProgram,
    TilePiece,
    begin_tile,
    end_tile,
    epilogue_of,
    load_bias,
    tile_at,
)
from tilewright.targets.vta.lowering.reduction_steps import (
    MAX_KERNELS,
    Cursor,
    Rings,
    take_step,
    with_uops,
)
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    BufferSlots,
    GemmTiling,
    LoweringPlan,
    Operations,
    average_steps,
    hardware_loops,
    operations_of,
    own_steps,
    slots_failure,
    slots_of,
    tiling_of,
)
from tilewright.targets.vta.lowering.tile_instructions import finish
from tilewright.targets.vta.numba_decorators import (
    allocating_helper,
    helper,
    stage,
    unowned,
    view_stage,
)
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload


class SummedPlan(NamedTuple):
    """Plan of a convolution with a shortcut (a second convolution whose result is added).

    A vector holds one value per channel, such as the biases or the shift amounts.

    Attributes:
        own: plan of the convolution.
        beside: plan of the shortcut. It has the same tiles and scratchpad slots, but its vectors
            are stored after those of the convolution.
        vectors: number of vectors of both convolutions together.
    """

    own: LoweringPlan
    beside: LoweringPlan
    vectors: int


@helper
def beside_of(geo: Geometry) -> Geometry:
    """Return the geometry of the shortcut as a convolution of its own.

    Its addresses lie in the memory of the convolution to which the shortcut belongs. Sizes in bytes
    are 0, because no lowering reads them.
    """
    return Geometry(
        geo.batches, geo.groups, geo.beside_ci, geo.co, geo.beside_h, geo.beside_w, geo.oh, geo.ow,
        1, 1, geo.beside_sh, geo.beside_sw, 1, 1, 0, 0, 0, 0, geo.res_base, geo.beside_wgt_base,
        geo.beside_bias_base, geo.add_base, geo.out_base, geo.uop_base, False, geo.beside_lift,
        geo.beside_lowest, geo.insn_bytes_at, 0, 0, 0, 0, 0, geo.res_base, 0, -1, geo.oh, geo.ow,
        1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, geo.beside_ci, geo.out_blocks,
        0,
    )  # fmt: skip


@helper
def reduction_of(t: GemmTiling, steps: int, first: int) -> GemmTiling:
    """Return the same tiles with a different number of reduction steps.

    Args:
        t: the tiles.
        steps: new number of reduction steps per tile.
        first: index of the first step that belongs to the convolution and not to its shortcut.
    """
    return GemmTiling(
        t.th, t.tw, t.tco, t.tci, t.order, t.first_rows, t.row_tiles, t.col_tiles, t.co_tiles,
        t.places, steps, first, t.gather, t.ih, t.iw,
    )  # fmt: skip


@helper
def shared_slots(
    own: Geometry, m: Machine, t: GemmTiling, beside: GemmTiling, operations: Operations,
    knobs: NDArray[np.int64],
) -> BufferSlots:  # fmt: skip
    """Divide the scratchpads into slots that both convolutions use, even if the slots do not fit.

    Weights are never streamed, because the weights of the two convolutions are not stored in the
    order in which a tile reads them.

    Args:
        own: geometry of the convolution.
        m: the machine.
        t: tiles of the convolution.
        beside: tiles of the shortcut.
        operations: operations of the epilogue, with the vectors of both convolutions.
        knobs: knob values, shape (knobs,).
    """
    s = slots_of(own, m, t, operations, knobs[5], knobs[6], knobs[7])
    return BufferSlots(
        s.inp, max(s.inp_size, beside.tci * beside.ih * beside.iw), s.wgt, s.wgt_size, s.acc,
        s.acc_size, s.bias_at, s.bias_resident, False, s.compute_bound, s.wgt_places, 0, 0, 1, 1,
    )  # fmt: skip


@helper
def vectors_behind(s: BufferSlots, places: int) -> BufferSlots:
    """Return the same scratchpad slots, with the bias and shift vectors at later accumulators.

    Args:
        s: the slots.
        places: number of accumulators by which the vectors move.
    """
    return BufferSlots(
        s.inp, s.inp_size, s.wgt, s.wgt_size, s.acc, s.acc_size, s.bias_at + places,
        s.bias_resident, s.streamed, s.compute_bound, s.wgt_places, s.res, s.res_size,
        s.res_blocks, s.res_rows,
    )  # fmt: skip


@helper
def with_vectors(o: Operations, vectors: int) -> Operations:
    """Return the same epilogue operations with another number of vectors (biases, shift amounts).

    Args:
        o: the operations.
        vectors: the new number of vectors.
    """
    return Operations(
        vectors, o.starts_with_tensor, o.tensors, o.in_place, o.residual, o.shift, o.lifted
    )


@view_stage
def summed_plan_of(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64]
) -> SummedPlan:
    """Plan a schedule of a convolution with a shortcut.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: rows of `epilogue_steps` for both convolutions, the shortcut's first, shape
            (steps, 3).
        knobs: knob values, shape (knobs,).
    """
    beside = beside_of(geo)
    first, second = epilogue[: geo.beside_steps], own_steps(geo, epilogue)
    before, behind = operations_of(beside, first), operations_of(geo, second)
    vectors = before.vectors + behind.vectors
    t, other = tiling_of(geo, knobs), tiling_of(beside, knobs)
    steps = other.nk + t.nk
    t, other = reduction_of(t, steps, other.nk), reduction_of(other, steps, 0)
    slots = shared_slots(geo, m, t, other, with_vectors(behind, vectors), knobs)
    places = behind.vectors * (geo.groups * geo.co if slots.bias_resident else t.tco)
    return SummedPlan(
        LoweringPlan(
            geo, m, lay, second, t, behind, slots, hardware_loops(geo, t, False), knobs[9],
            knobs[10], average_steps(geo, epilogue),
        ),
        LoweringPlan(
            beside, m, lay, first, other, before, vectors_behind(slots, places),
            hardware_loops(beside, other, False), knobs[9], knobs[10], first[:0],
        ),
        vectors,
    )  # fmt: skip


def check_summed(workload: Workload, is_extended: bool) -> None:
    """Check that a workload's shortcut, if it has one, can be fused with its convolution.

    Args:
        workload: the workload.
        is_extended: whether the schedule space is the extended one.

    Raises:
        WorkloadError: the space is not the extended one, or the epilogue adds another tensor.
    """
    if workload.shortcut is None:
        return
    if not is_extended:
        raise WorkloadError(
            f"{workload}: only the extended space sums a shortcut in the accumulators; use it, or "
            "make the shortcut a layer of its own"
        )
    if any(op.kind in ("add", *RESIDUALS) for op in workload.epilogue):
        raise WorkloadError(
            f"{workload}: its sums have both an added tensor and a shortcut; make one of the "
            "two a layer of its own"
        )


@allocating_helper
def lower_summed(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one schedule of a convolution with a shortcut.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: rows of `epilogue_steps`, the shortcut's first, shape (steps, 3).
        knobs: knob values (not indices), shape (knobs,).
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.
        options: unused.

    Returns:
        The failure code; OK if the program was written.
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
    """Write the program of a convolution with a shortcut, tile by tile and step by step.

    Args:
        plan: plans of the convolution and of its shortcut.
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots for the convolution; changed in place.
        beside_rings: the same slots for the shortcut, with its own micro-op kernels.

    Returns:
        The failure code; OK if the program was written.
    """
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
    """Combine two cursors after the convolution and its shortcut take turns.

    Args:
        own: cursor whose micro-op kernels are kept.
        by: cursor whose positions in the scratchpad slots are kept.
    """
    return Cursor(
        by.inp_next, by.wgt_next, by.inp_hint, by.wgt_hint, by.freed, by.loaded, own.kernels,
        own.kernel_hint, by.n_uops,
    )  # fmt: skip


@view_stage
def _with_all_vectors(plan: SummedPlan) -> LoweringPlan:
    """Return the convolution's plan with the vectors of both convolutions, for `prepare` to load.

    The vectors of the two convolutions are stored one after the other.

    Args:
        plan: plans of the convolution and of its shortcut.
    """
    own = plan.own
    return LoweringPlan(
        own.geo, own.m, own.lay, own.epilogue, own.tiling,
        with_vectors(own.operations, plan.vectors), own.slots, own.loops, own.ramp, own.tail,
        own.behind,
    )  # fmt: skip
