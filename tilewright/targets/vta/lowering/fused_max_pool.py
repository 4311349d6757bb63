"""Lowers max-pools that are fused with a convolution: the convolution's accumulators are pooled.

Bias, shift and clips apply only to the pooled values, because the maxima are computed first. A tile
consists of the initial values of its accumulators, the GEMMs, the maxima, the epilogue and the
stores.

A phase is the set of columns with the same position modulo the stride of the pool. Columns are
stored phase by phase, and a GEMM instruction computes one phase. The program is pipelined like a
schedule of the extended space, and a tile ends like a tile of a max-pool layer. A tile of whole
rows reuses the convolution results that it shares with the tile above, if that tile was computed
just before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.instruction_format import (
    ALU_MIN,
    ALU_SHR,
    PUSH_NEXT,
    PUSH_PREV,
    Layout,
    pack_uop,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.extended import (
    EXTENDED_KNOBS,
    balanced,
    extended_space,
    prepare,
)
from tilewright.targets.vta.lowering.fused_max_pool_plan import (
    PooledPlan,
    PooledTile,
    pooled_plan_of,
    pooled_tile_at,
)
from tilewright.targets.vta.lowering.geometry import EPILOGUE_BIAS, Geometry
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import EMPTY_WINDOW, OK
from tilewright.targets.vta.lowering.max_pool_codegen import (
    MAX_RUNS,
    UOPS,
    Sides,
    alu_run,
    columns_in_padding,
    find_run,
    first_output,
    in_place,
    lines_in_padding,
    maxima_of_columns,
    maxima_of_rows,
    maximum,
    new_run,
    store_rows,
)
from tilewright.targets.vta.lowering.max_pool_codegen import PoolProgram as PoolProgram
from tilewright.targets.vta.lowering.max_pool_plan import before, numbers
from tilewright.targets.vta.lowering.output_tiles import (
    GemmProgram,
    load_bias,
    stored_blocks,
    vector_of,
)
from tilewright.targets.vta.lowering.reduction_steps import (
    Cursor,
    ReductionStep,
    Rings,
    find_slots,
    in_blocks,
    load_input,
    load_weights,
    mark_read,
)
from tilewright.targets.vta.lowering.tile_and_buffer_plan import slots_failure
from tilewright.targets.vta.lowering.tile_instructions import LOAD_LATENCY, finish, write_kernel
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, unowned
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

_VECTOR, _GEMM = 2, 3  # kinds of micro-op runs; `pool_pieces` uses the kinds 0 and 1
_L, _C, _S = 0, 1, 2


class Writing(NamedTuple):
    """Output buffers of a program that is being written, and contents of the scratchpad slots."""

    program: GemmProgram
    maxima: PoolProgram  # the same program, in the form that the max-pool functions take
    rings: Rings


@helper
def begin_tile(plan: PooledPlan, w: Writing, tile: PooledTile) -> None:
    """Write the instructions that initialise a tile's accumulators.

    They run after the last STORE from the tile's accumulator slot. The initial value is zero, or
    the smallest possible value where the pool has padding. Convolution results that are reused from
    the tile above are copied, unless they can be read in their old place.

    Args:
        plan: plan of the convolution with its max-pool.
        w: the program that is being written; changed in place.
        tile: the output tile.
    """
    state, out = w.program.state, w.program.out
    state.tiles += 1
    sums, o, sides = tile.sums, tile.out, tile.sides
    if w.program.store_of[sums.slot] >= 0:
        instruction_writer.flag(state, out, w.program.store_of[sums.slot], PUSH_PREV)
        instruction_writer.pop(state, out, _S, _C)
    if sums.number >= plan.sums.slots.acc:
        reset_sums(plan, w, tile)
    if tile.carried and plan.read_there:
        sides = Sides(0, sides.bottom, sides.left, sides.right)
    # -2^15, and shifted to the left as far as accumulators reach
    for opcode, immediate in ((ALU_MIN, -(1 << 15)), (ALU_SHR, 16 - plan.sums.m.acc_bits)):
        lines_in_padding(plan.pool, w.maxima, o, sides, opcode, immediate)
        columns_in_padding(
            plan.pool, w.maxima, o, sides, plan.sums.geo.pool_sw, tile.sides.top, sums.rows,
            opcode, immediate,
        )  # fmt: skip
    if tile.carried and not plan.read_there:
        source = line_above(plan, tile)
        maximum(plan.pool, w.maxima, o, o.acc, source, 1, 0, 0, plan.carried * o.line, 1, 1)


@helper
def reset_sums(plan: PooledPlan, w: Writing, tile: PooledTile) -> None:
    """Write the GEMM that sets a tile's accumulators to zero.

    A line of results that the tile above has computed, and that this tile reads there, is left out.

    Args:
        plan: plan of the convolution with its max-pool.
        w: the program that is being written; changed in place.
        tile: the output tile.
    """
    sums, o = tile.sums, tile.out
    bgn, end, count, blocks, pitch = sums.slot, sums.slot + 1, o.lines * o.line, sums.cos, o.pitch
    if tile.carried and plan.read_there:
        at, line = o.acc + o.line, o.line
        bgn = alu_run(
            w.maxima, plan.sums.lay, line, pitch, plan.pool.tiling.tc, at, at,
            plan.sums.m.uop_built,
        )  # fmt: skip
        if bgn < 0:
            return
        end, count, blocks = bgn + sums.cos, count - line, 1
    instruction_writer.gemm(
        w.program.state, w.program.out, plan.sums.lay, 1, bgn, end, blocks, count,
        pitch if blocks > 1 else 0, 1 if count > 1 else 0, 0, 0, 0, 0,
    )  # fmt: skip


@helper
def line_above(plan: PooledPlan, tile: PooledTile) -> int:
    """Return the index of the first accumulator that a tile reuses from the tile above it.

    The reused accumulators hold the last lines of the convolution results of that tile.

    Args:
        plan: plan of the convolution with its max-pool.
        tile: the output tile.
    """
    above = pooled_tile_at(plan, tile.sums.number - 1, tile.sums.tiles).out
    return above.acc + (above.lines - plan.carried) * above.line


@helper
def run_step(plan: PooledPlan, w: Writing, tile: PooledTile, step: ReductionStep) -> None:
    """Write a reduction step: the loads of its weights, if they are not loaded yet, and its GEMMs.

    In the first steps of the program, loads and GEMMs may be split into parts.

    Args:
        plan: plan of the convolution with its max-pool.
        w: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step, with the slots of its operands.
    """
    sums = tile.sums
    pixels, block = sums.rows * sums.cols, step.cis * plan.sums.geo.kh * plan.sums.geo.kw
    whole = sums.cos * block
    beats = max(1, plan.sums.m.wgt_bytes // plan.sums.m.bus_bytes)
    part = whole
    if step.load_wgt and step.sequence < plan.sums.ramp:
        part = 1 if step.sequence == 0 else -(-part // 4)
    done = 0
    while done < whole:
        part = in_blocks(part, block, done, whole)
        if step.load_wgt:
            load_weights(plan.sums, w.program, sums, step, block, done, part)
        if step.load_inp or step.load_wgt:
            instruction_writer.push(w.program.state, w.program.out, _L, _C)
            instruction_writer.pop(w.program.state, w.program.out, _L, _C)
        gemms(plan, w, tile, step, done, part)
        done += part
        part = max(part + 1, (part * pixels - LOAD_LATENCY) // beats)


@helper
def gemms(
    plan: PooledPlan, w: Writing, tile: PooledTile, step: ReductionStep, done: int, part: int
) -> None:
    """Write the GEMMs for a part of a step's weights: one per phase of the columns.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        w: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step.
        done: number of weight elements of the step before the part.
        part: number of weight elements of the part.
    """
    cols, o, sides = plan.pool.cols, tile.out, tile.sides
    phases = 1 if cols.single else cols.stride
    for phase in range(phases):
        width = o.line if cols.single else numbers(cols, phase, o.cols)
        first = max(0, -(-(sides.left - phase) // phases))
        last = min(width, -(-(o.line - sides.right - phase) // phases))
        if first >= last:
            continue
        start = 0 if cols.single else before(cols, phase, o.cols)
        dst = o.acc + sides.top * o.line + start + first
        src = (phase + first * phases - sides.left) * plan.sums.geo.sw
        at = kernel_of(plan, w, tile, step, dst, step.i_slot * plan.sums.slots.inp_size + src)
        if at < 0:
            return
        gemm_of(plan, w, tile, at + done, at + done + part, last - first, phases)


@helper
def kernel_of(
    plan: PooledPlan, w: Writing, tile: PooledTile, step: ReductionStep, dst: int, src: int
) -> int:
    """Return the micro-ops of a step's GEMM, and write them if they do not exist yet.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        w: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step.
        dst: first accumulator.
        src: first input element.

    Returns:
        The position of the first micro-op, or -1 if they do not fit into the scratchpad.
    """
    geo, t, line = plan.sums.geo, plan.sums.tiling, tile.out.line
    kind = _GEMM + step.cis + (step.wgt_at << 16) + (tile.sums.iw << 32)
    at = find_run(w.maxima, kind, line, dst, src)
    if at < 0:
        size = t.tco * step.cis * geo.kh * geo.kw
        at = new_run(w.maxima, kind, line, dst, src, size, plan.sums.m.uop_built)
        if at >= 0:
            write_kernel(
                geo, plan.sums.lay, w.program.uops, at, -1, -1, t.tco, step.cis, tile.sums.pitch,
                t.ih, tile.sums.iw, dst, src, step.wgt_at, plan.sums.slots.wgt_places,
            )  # fmt: skip
    return at


@helper
def gemm_of(
    plan: PooledPlan, w: Writing, tile: PooledTile, bgn: int, end: int, width: int, phases: int
) -> None:
    """Write a GEMM on the rows of a tile and on adjacent columns of one phase.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        w: the program that is being written; changed in place.
        tile: the output tile.
        bgn: first micro-op.
        end: end of the micro-ops, exclusive.
        width: number of columns.
        phases: number of phases, which is also the distance between two columns of a phase in the
            image.
    """
    geo, rows = plan.sums.geo, tile.sums.rows
    d0, s0, d1, s1 = 0, 0, 0, 0
    if rows > 1:
        d0, s0 = tile.out.line, (1 if plan.sums.tiling.gather else geo.sh) * tile.sums.iw
    if width > 1:
        d1, s1 = 1, phases * geo.sw
    instruction_writer.gemm(
        w.program.state, w.program.out, plan.sums.lay, 0, bgn, end, rows, width, d0, d1, s0, s1,
        0, 0,
    )  # fmt: skip


@helper
def end_tile(plan: PooledPlan, w: Writing, tile: PooledTile) -> None:
    """Write the end of a tile: the maxima of its windows, their epilogue, and the stores.

    Args:
        plan: plan of the convolution with its max-pool.
        w: the program that is being written; changed in place.
        tile: the output tile.
    """
    o, state, out = tile.out, w.program.state, w.program.out
    above = line_above(plan, tile) if tile.carried and plan.read_there else -1
    if plan.pool.rows_first:
        maxima_of_rows(plan.pool, w.maxima, o, above)
        maxima_of_columns(plan.pool, w.maxima, o)
    else:
        maxima_of_columns(plan.pool, w.maxima, o)
        maxima_of_rows(plan.pool, w.maxima, o, above)
    epilogue = plan.sums.epilogue
    load_bias(plan.sums, w.program, tile.sums)
    at, pitch = first_output(plan.pool, o), plan.pool.rows.stride * o.line
    for e in range(epilogue.shape[0]):
        if epilogue[e, 0] == EPILOGUE_BIAS:
            source = vector_of(plan.sums, tile.sums, epilogue[e, 2])
            with_vector(plan, w, tile, at, pitch, source, epilogue[e, 1])
        else:
            in_place(
                plan.pool, w.maxima, o, at, o.rows, pitch, o.cols, epilogue[e, 1], epilogue[e, 2]
            )
    instruction_writer.flag(state, out, state.instructions - 1, PUSH_NEXT)
    instruction_writer.pop(state, out, _C, _S)
    blocks = stored_blocks(tile.sums, 0, o.blocks)
    if blocks > 0:
        store_rows(plan.pool, w.maxima, o, blocks)
    else:
        instruction_writer.commit_pops(state, out, _S)
    w.program.store_of[tile.sums.slot] = state.instructions - 1


@helper
def with_vector(
    plan: PooledPlan, w: Writing, tile: PooledTile, at: int, pitch: int, src: int, opcode: int
) -> None:
    """Write an ALU operation whose second operand has one value per channel, such as a bias.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        w: the program that is being written.
        tile: the output tile.
        at: first accumulator.
        pitch: distance between two rows in accumulators.
        src: accumulator that holds the values of the first channel block.
        opcode: the ALU operation.
    """
    o = tile.out
    run = find_run(w.maxima, _VECTOR, o.line, at, src)
    if run < 0:
        size = plan.sums.tiling.tco
        run = new_run(w.maxima, _VECTOR, o.line, at, src, size, plan.sums.m.uop_built)
        if run < 0:
            return
        for b in range(size):
            word = pack_uop(plan.sums.lay, at + b * o.pitch, src + b, 0)
            w.program.uops[run + b] = word
    instruction_writer.alu(
        w.program.state, w.program.out, plan.sums.lay, run, run + o.blocks, o.rows, o.cols,
        pitch if o.rows > 1 else 0, 1 if o.cols > 1 else 0, 0, 0, opcode, 0, 0,
    )  # fmt: skip


POOLED_KNOBS = EXTENDED_KNOBS[:-1]
"""Knobs of a convolution with a fused max-pool: the knobs of the extended space except for `tail`,
which divides the last epilogue into pieces."""

_ACCUMULATORS = {"bias", "offset", "shr", "shr_channel", "shl", "min", "max"}


def pooled_space(geo: Geometry) -> Space:
    """Create the schedule space of a convolution with a fused max-pool.

    It has the knobs of the extended space except `tail`. `tile_h` and `tile_w` are in output pixels
    of the pool.
    """
    knobs = {knob.name: knob for knob in extended_space(geo).knobs}
    knobs["tile_w"] = Knob("tile_w", balanced(geo.ow, 4))
    return Space("extended", tuple(knobs[name] for name in POOLED_KNOBS))


def check_pooled(workload: Workload, is_extended: bool) -> None:
    """Check that a workload's max-pool, if it has one, can be fused with its convolution.

    Args:
        workload: the workload.
        is_extended: whether the schedule space is the extended one.

    Raises:
        WorkloadError: the space is not the extended one, the pooling windows leave gaps, or the
            epilogue reads a tensor.
    """
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
            f"{workload}: its windows skip sums, which would be computed in vain; make the "
            "max-pool a layer of its own"
        )
    tensor = next((op.kind for op in workload.epilogue if op.kind not in _ACCUMULATORS), None)
    if tensor is not None:
        raise WorkloadError(
            f"{workload}: '{tensor}' adds a tensor to the sums, but they are pooled before; "
            "make the max-pool a layer of its own"
        )


@allocating_helper
def lower_pooled(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one schedule of a convolution with a fused max-pool.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations without tensors, as rows (operand kind, opcode, immediate) of
            `epilogue_steps`, shape (steps, 3).
        knobs: knob values (not indices), shape (10,).
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.
        options: unused.

    Returns:
        The failure code; OK if the program was written.
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
    """Write the program of a plan, tile by tile and step by step, and return its failure code.

    Args:
        plan: plan of the convolution with its max-pool.
        w: the program that is being written; changed in place.
    """
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
            # The reused results are copied before the epilogue changes them.
            if following.carried and not plan.read_there:
                begin_tile(plan, w, following)
        end_tile(plan, w, tile)
        if state.problem:
            break
    return finish(state, w.program.out, w.maxima.counts[UOPS], plan.sums.m.uop_bytes)
