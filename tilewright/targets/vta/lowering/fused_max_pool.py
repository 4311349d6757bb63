"""Lowers convolutions whose sums are pooled while they are accumulators.

The maximum comes first, then bias, shift and clips of pooled sums alone. The pipeline is that of
extended schedules; a tile ends as that of a max-pool does. Columns lie phase by phase, so a GEMM
has an instruction a phase. A tile of whole rows reuses the sums that it shares with the tile above,
if that was computed just before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.isa import Layout
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.extended import KNOBS as EXTENDED_KNOBS
from tilewright.targets.vta.lowering.extended import balanced, extended_space, prepare
from tilewright.targets.vta.lowering.failures import EMPTY_WINDOW, OK
from tilewright.targets.vta.lowering.fused_max_pool_codegen import (
    Writing,
    begin_tile,
    end_tile,
    run_step,
)
from tilewright.targets.vta.lowering.fused_max_pool_plan import (
    PooledPlan,
    pooled_plan_of,
    pooled_tile_at,
)
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.max_pool_codegen import MAX_RUNS, UOPS
from tilewright.targets.vta.lowering.max_pool_codegen import PoolProgram as PoolProgram
from tilewright.targets.vta.lowering.plan import slots_failure
from tilewright.targets.vta.lowering.program_state import ProgramState
from tilewright.targets.vta.lowering.reduction_steps import (
    Cursor,
    Rings,
    find_slots,
    load_input,
    mark_read,
)
from tilewright.targets.vta.lowering.tile_codegen import finish
from tilewright.targets.vta.lowering.tiles import GemmProgram
from tilewright.targets.vta.njit_args import allocating_helper, helper, unowned
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

KNOBS = EXTENDED_KNOBS[:-1]
"""Those of the extended space, but for the pieces of the last epilogue."""

_ACCUMULATORS = {"bias", "offset", "shr", "shr_channel", "shl", "min", "max"}


def pooled_space(geo: Geometry) -> Space:
    """The knobs of the extended space for a convolution whose sums are pooled. `tile_h` and
    `tile_w` count what the pool leaves."""
    knobs = {knob.name: knob for knob in extended_space(geo).knobs}
    knobs["tile_w"] = Knob("tile_w", balanced(geo.ow, 4))
    return Space("extended", tuple(knobs[name] for name in KNOBS))


def check_pooled(workload: Workload, is_extended: bool) -> None:
    """Raises `WorkloadError` for pooled sums that have no lowering: in another space than the
    extended one, with windows that leave sums out, with a tensor in the epilogue."""
    pool = workload.pool
    if pool is None:
        return
    if not is_extended:
        raise WorkloadError(
            f"{workload}: only the extended space pools the sums of a convolution; use it, or make "
            "the max-pool a layer of its own"
        )
    if pool.stride_h > pool.kernel_h or pool.stride_w > pool.kernel_w:
        raise WorkloadError(
            f"{workload}: its windows leave sums out, which would be computed for nothing; make "
            "the max-pool a layer of its own"
        )
    tensor = next((op.kind for op in workload.epilogue if op.kind not in _ACCUMULATORS), None)
    if tensor is not None:
        raise WorkloadError(
            f"{workload}: '{tensor}' adds a tensor to the sums, which are pooled before; make the "
            "max-pool a layer of its own"
        )


@allocating_helper
def lower_pooled(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one config; `knobs` (10,) are the knob *values*, `epilogue` (steps, 3)
    is of `epilogue_steps`, without tensors. Returns a failure code.

    `out` (instructions, 2) and `uops` (micro-ops,) are filled; `state` holds the counts.
    There are no options.
    """
    instruction_writer.start(state)
    plan = pooled_plan_of(geo, m, lay, unowned(epilogue), knobs)
    slots = plan.sums.slots
    failure = slots_failure(m, plan.sums.tiling, plan.sums.operations, slots)
    if failure != OK:
        return failure
    # Lent with their owners: an array whose last use is `unowned` is freed before the call.
    inp_ring = np.full((slots.inp, 2), -1, np.int64)
    wgt_ring = np.full((slots.wgt, 2), -1, np.int64)
    none = np.full(1, -1, np.int64)
    store_of = np.full(slots.acc, -1, np.int64)
    counts = np.zeros(2, np.int64)
    run_keys = np.empty((MAX_RUNS, 4), np.int64)
    run_at = np.empty(MAX_RUNS, np.int64)
    steps = np.empty((max(geo.pool_kh, geo.pool_kw) + 32, 4), np.int64)
    program = GemmProgram(state, out, uops, store_of)
    maxima = PoolProgram(state, out, uops, counts, run_keys, run_at, steps, none, store_of)
    rings = Rings(inp_ring, wgt_ring, none, none, run_keys, run_at)
    return _write(plan, Writing(program, maxima, rings))


@helper
def _write(plan: PooledPlan, w: Writing) -> int:
    """The program of a plan, tile by tile, step by step."""
    t, slots, state = plan.sums.tiling, plan.sums.slots, w.program.state
    tiles = plan.sums.geo.groups * t.places * t.co_tiles
    cursor = Cursor(0, 0, 0, 0, -1, 0, 0, 0, slots.acc)
    prepare(plan.sums, w.program, tiles)
    w.maxima.counts[UOPS] = slots.acc
    for number in range(tiles):
        tile = pooled_tile_at(plan, number, tiles)
        if tile.sums.rows < 1 or tile.sums.cols < 1:
            state.problem = EMPTY_WINDOW
            break
        if not tile.carried or plan.read_there:
            begin_tile(plan, w, tile)
        for k in range(t.nk):
            state.steps += 1
            step, cursor = find_slots(plan.sums, w.program, w.rings, cursor, tile.sums, k)
            if step.load_inp:
                load_input(plan.sums, w.program, tile.sums, step)
            run_step(plan, w, tile, step)
            mark_read(w.program, w.rings, step)
        if number + 1 < tiles:
            following = pooled_tile_at(plan, number + 1, tiles)
            # What it takes over is copied as the GEMMs left it.
            if following.carried and not plan.read_there:
                begin_tile(plan, w, following)
        end_tile(plan, w, tile)
        if state.problem:
            break
    return finish(state, w.program.out, w.maxima.counts[UOPS], plan.sums.m.uop_bytes)
