"""Writes the reduction steps of an extended schedule.

A step multiplies a part of the input channels with their weights. It loads the operands that are
not in the scratchpads yet, and then runs one GEMM. The loads and the GEMM are split into parts
where this lets compute start or end earlier.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import LOAD, PUSH_PREV, WGT
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.output_tiles import FULL, GemmProgram, GemmTile
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    LoweringPlan,
    extra_iterations,
    micro_ops_of_block,
)
from tilewright.targets.vta.lowering.tile_instructions import (
    COMPUTE_LATENCY,
    KEY,
    LOAD_LATENCY,
    READER,
    find,
    gemm,
    last_part,
    load_stream,
    load_window,
    stream_part,
    write_kernel,
)
from tilewright.targets.vta.numba_decorators import stage

MAX_KERNELS = 512

_L, _C = 0, 1


class Rings(NamedTuple):
    """Contents of the scratchpad slots, and the micro-op kernels that have been written.

    The slots of a scratchpad are filled in turn, like a ring. A kernel is the range of micro-ops of
    one reduction step. `tile_instructions` describes the columns of the arrays `inp` and `wgt`.
    """

    inp: NDArray[np.int64]
    wgt: NDArray[np.int64]
    reader: NDArray[np.int64]  # last GEMM that reads each place of a stream of weights
    residual: NDArray[np.int64]  # last GEMM that reads each slot of the residual
    kernel_keys: NDArray[np.int64]  # slots and sizes for which each kernel was written
    kernel_at: NDArray[np.int64]  # first micro-op of each kernel


class Cursor(NamedTuple):
    """Next scratchpad slots to fill, and the progress of the program that is being written."""

    inp_next: int  # next input slot to fill; `wgt_next`: next weight slot
    wgt_next: int
    inp_hint: int  # slots at which the search for the next operands begins
    wgt_hint: int
    freed: int  # index of the last GEMM for which the load module has waited
    loaded: int  # number of weight elements of a stream that are loaded
    kernels: int  # number of micro-op kernels that are written
    kernel_hint: int  # kernel at which the search for the next kernel begins
    n_uops: int  # number of micro-ops that are written


class ReductionStep(NamedTuple):
    """One step of a tile's reduction over input channels, with the slots of its operands."""

    k: int  # index of the step in its tile
    ci: int  # first input block; `cis`: number of input blocks
    cis: int
    sequence: int  # number of steps of the program before this one
    i_slot: int  # input slot; `w_slot`: weight slot
    w_slot: int
    load_inp: bool  # whether the inputs have to be loaded; `load_wgt`: the weights
    load_wgt: bool
    used: int  # elements of a stream of weights that earlier steps use
    wgt_at: int  # first element of the weights in the scratchpad


@stage
def with_uops(cursor: Cursor, freed: int, n_uops: int) -> Cursor:
    """Return a cursor with another number of micro-ops and another last finished GEMM.

    Args:
        cursor: the cursor.
        freed: index of the last GEMM for which the load module has waited.
        n_uops: number of micro-ops that are written.
    """
    return Cursor(
        cursor.inp_next, cursor.wgt_next, cursor.inp_hint, cursor.wgt_hint, freed,
        cursor.loaded, cursor.kernels, cursor.kernel_hint, n_uops,
    )  # fmt: skip


@stage
def take_step(
    plan: LoweringPlan, program: GemmProgram, rings: Rings, cursor: Cursor, tile: GemmTile, k: int
) -> tuple[int, Cursor]:
    """Write one step of a tile's reduction: its loads and its GEMM.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots, and the micro-op kernels; changed in place.
        cursor: next slots to fill, and progress of the program.
        tile: the output tile.
        k: index of the reduction step.

    Returns:
        The index of the step's micro-op kernel, or FULL if it does not fit; and the new cursor.
    """
    program.state.steps += 1
    step, cursor = find_slots(plan, program, rings, cursor, tile, k)
    if step.load_inp:
        load_input(plan, program, tile, step)
    kernel, cursor = kernel_of(plan, program, rings, cursor, tile, step)
    if kernel != FULL:
        at = rings.kernel_at[kernel]
        if plan.slots.streamed:
            cursor = run_streamed_step(plan, program, rings, cursor, tile, step, at)
        else:
            run_step(plan, program, tile, step, at)
        mark_read(program, rings, step)
    return kernel, cursor


@stage
def find_slots(
    plan: LoweringPlan, program: GemmProgram, rings: Rings, cursor: Cursor, tile: GemmTile, k: int
) -> tuple[ReductionStep, Cursor]:
    """Find the scratchpad slots that hold a step's operands, or assign the next slots to them.

    The next LOAD then waits until the last GEMMs that read the assigned slots have finished.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots, and the micro-op kernels; changed in place.
        cursor: next slots to fill, and progress of the program.
        tile: the output tile.
        k: index of the reduction step.

    Returns:
        The step with its slots, and the new cursor.
    """
    t, slots = plan.tiling, plan.slots
    inp_key = tile.place * t.nk + k
    wgt_key = (tile.group * t.co_tiles + tile.co_tile) * t.nk + k
    i_slot = find(rings.inp, inp_key, cursor.inp_hint)
    w_slot = 0 if slots.streamed else find(rings.wgt, wgt_key, cursor.wgt_hint)
    load_inp, load_wgt = i_slot < 0, w_slot < 0
    inp_next, wgt_next = cursor.inp_next, cursor.wgt_next
    needs = -1
    if load_inp:
        i_slot = inp_next
        inp_next = (inp_next + 1) % slots.inp
        needs = rings.inp[i_slot, READER]
        rings.inp[i_slot, KEY] = inp_key
    if load_wgt:
        w_slot = wgt_next
        wgt_next = (wgt_next + 1) % slots.wgt
        needs = max(needs, rings.wgt[w_slot, READER])
        rings.wgt[w_slot, KEY] = wgt_key
    freed = wait_for_reader(program, needs, cursor.freed)
    used = tile.number * t.tco * plan.geo.ci * plan.geo.kh * plan.geo.kw
    wgt_at = used % plan.slots.wgt_places if slots.streamed else w_slot * slots.wgt_size
    ci = (k - t.first_step) * t.tci
    step = ReductionStep(
        k, ci, min(t.tci, plan.geo.ci - ci), tile.number * t.nk + k, i_slot, w_slot, load_inp,
        load_wgt, used, wgt_at,
    )  # fmt: skip
    cursor = Cursor(
        inp_next, wgt_next, i_slot + 1, w_slot + 1, freed, cursor.loaded, cursor.kernels,
        cursor.kernel_hint, cursor.n_uops,
    )  # fmt: skip
    return step, cursor


@stage
def wait_for_reader(program: GemmProgram, reader: int, freed: int) -> int:
    """Make the next LOAD wait for the last GEMM that read its slot.

    Args:
        program: the program that is being written.
        reader: index of this GEMM among the instructions.
        freed: index of the last GEMM for which the load module has already waited.

    Returns:
        The new value of `freed`.
    """
    if reader <= freed:
        return freed
    instruction_writer.flag(program.state, program.out, reader, PUSH_PREV)
    instruction_writer.pop(program.state, program.out, _C, _L)
    return reader


@stage
def load_input(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, step: ReductionStep
) -> None:
    """Write the LOADs of a step's input window.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step, with the slots of its operands.
    """
    geo, t = plan.geo, plan.tiling
    block = tile.group * geo.ci + step.ci
    load_window(
        program.state, program.out, geo, plan.m, t.gather, tile.image * geo.inp_blocks + block,
        step.cis, geo.inp_blocks - block, tile.row * geo.sh - geo.pad_top,
        tile.col * geo.sw - geo.pad_left, tile.ih, tile.iw, t.ih,
        step.i_slot * plan.slots.inp_size,
    )  # fmt: skip


@stage
def kernel_of(
    plan: LoweringPlan,
    program: GemmProgram,
    rings: Rings,
    cursor: Cursor,
    tile: GemmTile,
    step: ReductionStep,
) -> tuple[int, Cursor]:
    """Return the micro-op kernel of a reduction step, and write it if it does not exist yet.

    A kernel is a range of micro-ops. It depends on the step's slots and sizes.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots, and the micro-op kernels; changed in place.
        cursor: next slots to fill, and progress of the program.
        tile: the output tile.
        step: the reduction step, with the slots of its operands.

    Returns:
        The index of the kernel, or FULL if it does not fit; and the new cursor.
    """
    kernel = find_kernel(rings, cursor, tile, step)
    kernels, n_uops = cursor.kernels, cursor.n_uops
    if kernel < 0 and kernels < MAX_KERNELS:
        count = micro_ops_of_block(plan, step.cis)
        if plan.loops.co_unrolled:
            count *= plan.tiling.tco
        if n_uops + count <= min(plan.m.uop_built, program.uops.shape[0]):
            kernel = kernels
            keys = rings.kernel_keys
            keys[kernel, 0], keys[kernel, 1], keys[kernel, 2] = tile.slot, step.i_slot, step.wgt_at
            keys[kernel, 3], keys[kernel, 4] = step.cis, tile.cols
            rings.kernel_at[kernel] = n_uops
            write_kernel(
                plan.geo, plan.lay, program.uops, n_uops, plan.loops.hw0, plan.loops.hw1,
                plan.tiling.tco, step.cis, tile.pitch, plan.tiling.ih, tile.iw, tile.acc,
                step.i_slot * plan.slots.inp_size, step.wgt_at, plan.slots.wgt_places,
            )  # fmt: skip
            kernels += 1
            n_uops += count
    cursor = Cursor(
        cursor.inp_next, cursor.wgt_next, cursor.inp_hint, cursor.wgt_hint, cursor.freed,
        cursor.loaded, kernels, kernel + 1, n_uops,
    )  # fmt: skip
    return kernel, cursor


@stage
def find_kernel(rings: Rings, cursor: Cursor, tile: GemmTile, step: ReductionStep) -> int:
    """Return the index of the micro-op kernel that was written for the same slots and sizes.

    The search starts at the expected kernel, because kernels recur in the same order. The result is
    FULL if there is no such kernel.

    Args:
        rings: contents of the scratchpad slots, and the micro-op kernels.
        cursor: next slots to fill, and progress of the program.
        tile: the output tile.
        step: the reduction step, with the slots of its operands.
    """
    keys, j = rings.kernel_keys, cursor.kernel_hint
    for _ in range(cursor.kernels):
        if j >= cursor.kernels:
            j = 0
        if (
            keys[j, 0] == tile.slot and keys[j, 1] == step.i_slot and keys[j, 2] == step.wgt_at
            and keys[j, 3] == step.cis and keys[j, 4] == tile.cols
        ):  # fmt: skip
            return j
        j += 1
    return FULL


@stage
def gemm_of(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, step: ReductionStep, bgn: int,
    end: int, fresh: bool,
) -> None:  # fmt: skip
    """Write the GEMM of a reduction step, or of a part of the step.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step.
        bgn: first micro-op.
        end: end of the micro-ops, exclusive.
        fresh: whether the GEMM waits for the last LOAD.
    """
    if fresh:
        # The token is pushed by the last load, which is also the last instruction here.
        instruction_writer.push(program.state, program.out, _L, _C)
        instruction_writer.pop(program.state, program.out, _L, _C)
    gemm(
        program.state, program.out, plan.lay, plan.geo, bgn, end, plan.loops.hw0, plan.loops.hw1,
        tile.rows, tile.cols, tile.cos, step.cis, tile.pitch, plan.tiling.ih, tile.iw,
        plan.tiling.gather,
    )  # fmt: skip


@stage
def cycles_later(plan: LoweringPlan, tile: GemmTile) -> int:
    """Return the compute cycles of all later tiles, without their GEMMs.

    These are the cycles for resets and epilogues.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        tile: the output tile.
    """
    pixels = tile.rows * tile.cols
    return (
        (tile.tiles - 1 - tile.number) * (1 + extra_iterations(plan.operations)) * tile.cos * pixels
    )


@stage
def run_step(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, step: ReductionStep, kernel_at: int
) -> None:
    """Write the loads of a step's weights, if they are not loaded yet, and its GEMM.

    Both may be split into parts at the beginning and at the end of the program.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step, with the slots of its operands.
        kernel_at: first micro-op of the step's kernel.
    """
    pixels, block = tile.rows * tile.cols, step.cis * plan.geo.kh * plan.geo.kw
    # number of weight elements, which is also the number of micro-ops if all loops are unrolled
    whole = tile.cos * block
    beats = max(1, plan.m.wgt_bytes // plan.m.bus_bytes)
    left = (tile.tiles * plan.tiling.nk - step.sequence) * whole  # weight elements that remain
    later, compute_bound = cycles_later(plan, tile), plan.slots.compute_bound
    split = step.load_wgt and plan.loops.unrolled and plan.ramp > 0
    part = whole
    if split and compute_bound:
        split = step.sequence < plan.ramp
        if split:
            part = 1 if step.sequence == 0 else -(-part // 4)
    elif split:
        split = last_part(left, later, pixels, beats) < part
    count = micro_ops_of_block(plan, step.cis) * (tile.cos if plan.loops.co_unrolled else 1)
    done = 0
    while done < whole:
        if split and not compute_bound:
            part = last_part(left - done, later, pixels, beats)
            rest = whole - done if part >= block else block - done % block
            part = -(-rest // -(-rest // part))  # equal parts leave no tiny remainder
        part = in_blocks(part, block, done, whole)
        if step.load_wgt:
            load_weights(plan, program, tile, step, block, done, part)
        bgn, end = kernel_at, kernel_at + count
        if split:
            bgn, end = kernel_at + done, kernel_at + done + part
        gemm_of(plan, program, tile, step, bgn, end, step.load_inp or step.load_wgt)
        done += part
        part = max(part + 1, (part * pixels - LOAD_LATENCY) // beats)


@stage
def in_blocks(part: int, block: int, done: int, whole: int) -> int:
    """Return the length of the next part of a step's weights, in elements.

    A part lies inside one output block, or consists of whole output blocks.

    Args:
        part: desired length.
        block: number of elements per output block.
        done: number of elements before the part.
        whole: number of elements of the step.
    """
    if done % block or part < block:
        part = min(part, block - done % block)
    else:
        part = min(part // block * block, whole - done)
    return part


@stage
def load_weights(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, step: ReductionStep, block: int,
    done: int, part: int,
) -> None:  # fmt: skip
    """Write the LOAD of a part of a reduction step's weights.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written; changed in place.
        tile: the output tile.
        step: the reduction step.
        block: number of weight elements per output block.
        done: number of weight elements of the step before the part.
        part: number of weight elements of the part.
    """
    geo, blocks = plan.geo, part // block
    row = (tile.group * geo.co + tile.co + done // block) * geo.ci + step.ci
    instruction_writer.region(
        program.state, program.out, LOAD, WGT, step.wgt_at + done,
        geo.wgt_base + row * geo.kh * geo.kw + done % block, 1, 0, max(1, blocks),
        geo.ci * geo.kh * geo.kw, block if blocks else part, plan.m.wgt_bytes,
    )  # fmt: skip


@stage
def run_streamed_step(
    plan: LoweringPlan, program: GemmProgram, rings: Rings, cursor: Cursor, tile: GemmTile,
    step: ReductionStep, kernel_at: int,
) -> Cursor:  # fmt: skip
    """Write a step whose weights pass through the scratchpad as a stream.

    There is one GEMM per loaded part of the stream.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots; changed in place.
        cursor: next slots to fill, and progress of the program.
        tile: the output tile.
        step: the reduction step.
        kernel_at: first micro-op of the step's kernel.

    Returns:
        The new cursor.
    """
    whole = tile.cos * step.cis * plan.geo.kh * plan.geo.kw
    freed, loaded, done = cursor.freed, cursor.loaded, 0
    while done < whole:
        first = step.used + done
        fresh = loaded == first
        if fresh:
            left = plan.geo.co * plan.geo.ci * plan.geo.kh * plan.geo.kw - loaded
            size = stream_part(plan.slots.wgt_places, loaded, left, wanted_part(plan, tile, left))
            freed = load_stream(
                program.state, program.out, plan.geo, plan.m, rings.reader, loaded, size, freed
            )
            loaded += size
        part = min(loaded - first, whole - done)
        gemm_of(plan, program, tile, step, kernel_at + done, kernel_at + done + part, fresh)
        for place in range(first, first + part):
            rings.reader[place % plan.slots.wgt_places] = program.state.instructions - 1
        done += part
    return Cursor(
        cursor.inp_next, cursor.wgt_next, cursor.inp_hint, cursor.wgt_hint, freed, loaded,
        cursor.kernels, cursor.kernel_hint, cursor.n_uops,
    )  # fmt: skip


@stage
def wanted_part(plan: LoweringPlan, tile: GemmTile, left: int) -> int:
    """Return how many weight elements the next LOAD of a stream of weights should load.

    Args:
        plan: plan of the schedule.
        tile: the output tile.
        left: number of weight elements that remain to be loaded.
    """
    if plan.ramp == 0:
        return left
    instructions = (tile.tiles - 1 - tile.number) * (1 + extra_iterations(plan.operations))
    later = cycles_later(plan, tile) + instructions * COMPUTE_LATENCY
    beats = max(1, plan.m.wgt_bytes // plan.m.bus_bytes)
    return min(left, last_part(left, later, tile.rows * tile.cols, beats))


@stage
def mark_read(program: GemmProgram, rings: Rings, step: ReductionStep) -> None:
    """Record the last GEMM of a step as the last reader of the step's scratchpad slots.

    Args:
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots, and the micro-op kernels; changed in place.
        step: the reduction step, with the slots of its operands.
    """
    at = program.state.instructions - 1
    rings.inp[step.i_slot, READER] = at
    rings.wgt[step.w_slot, READER] = at
