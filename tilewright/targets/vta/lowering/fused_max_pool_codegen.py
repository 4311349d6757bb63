"""Writes the instructions of a tile of pooled sums.

These are first values, GEMMs a phase of the columns, maxima, the epilogue of these, stores.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.targets.vta.isa import ALU_MIN, ALU_SHR, PUSH_NEXT, PUSH_PREV, pack_uop
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.fused_max_pool_plan import (
    PooledPlan,
    PooledTile,
    pooled_tile_at,
)
from tilewright.targets.vta.lowering.geometry import EPILOGUE_BIAS
from tilewright.targets.vta.lowering.max_pool_codegen import PoolProgram as PoolProgram
from tilewright.targets.vta.lowering.max_pool_codegen import (
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
from tilewright.targets.vta.lowering.max_pool_plan import before, numbers
from tilewright.targets.vta.lowering.reduction_steps import (
    ReductionStep,
    Rings,
    in_blocks,
    load_weights,
)
from tilewright.targets.vta.lowering.tile_codegen import LOAD_LATENCY, write_kernel
from tilewright.targets.vta.lowering.tiles import GemmProgram, load_bias, stored_blocks, vector_of
from tilewright.targets.vta.njit_args import helper

_VECTOR, _GEMM = 2, 3  # kinds of runs of micro-ops; those of `pool_pieces` are 0 and 1
_L, _C, _S = 0, 1, 2


class Writing(NamedTuple):
    """What is written, and what is known of slots and micro-ops."""

    program: GemmProgram
    maxima: PoolProgram  # the same program, as the pieces of a max-pool see it
    rings: Rings


@helper
def begin_tile(plan: PooledPlan, w: Writing, tile: PooledTile) -> None:
    """The accumulators' first value, once the last STORE from their slot is done: zero; where the
    pool's padding is, the least there is; and what is taken over."""
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
    """Zero in all accumulators of a tile, but for the line that it reads elsewhere."""
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
    """Where the lines begin that a tile takes over."""
    above = pooled_tile_at(plan, tile.sums.number - 1, tile.sums.tiles).out
    return above.acc + (above.lines - plan.carried) * above.line


@helper
def run_step(plan: PooledPlan, w: Writing, tile: PooledTile, step: ReductionStep) -> None:
    """Weights, if they are to be loaded, and GEMMs; in parts at the beginning, if asked to."""
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
    """A GEMM a phase of the columns, by a part of a step's weights after `done` elements."""
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
    """The run of micro-ops of a step, from these elements on, written if it is new, or -1."""
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
    """A GEMM over micro-ops, rows, and `width` columns of a phase."""
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
    """Maxima, epilogue of what they leave, and store."""
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
    """An operation with one value a channel, from `src` on, on `at` and what follows in rows
    `pitch` apart."""
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
