"""Writes the instructions of one tile of a max-pool.

The instructions copy pixels to the accumulators, overwrite padding with the smallest value, take
maxima along an axis, apply element-wise operations, and store the result.

In the accumulators, a line holds the pixels of one image row that some output of the tile reads.
Its pixels are sorted by phase (position modulo the stride, see `max_pool_plan`), so that an ALU
instruction iterates over adjacent elements. Every channel block has its own lines. Micro-ops
iterate over the blocks, and hardware loops iterate over lines and columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import ALU_ADD, ALU_MAX, OUT, STORE, Layout, pack_uop
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import UOP_CAPACITY
from tilewright.targets.vta.lowering.max_pool_plan import (
    AHEAD,
    COUNT,
    FROM,
    INTO,
    PoolPlan,
    before,
    maxima_of,
    numbers,
)
from tilewright.targets.vta.numba_decorators import helper, stage

MAX_RUNS = 512

RUNS, UOPS = 0, 1  # indices into `PoolProgram.counts`


class PoolProgram(NamedTuple):
    """Output buffers of a program that is being written, and the use of its slots and micro-ops.

    `instruction_writer` writes the instructions. A run is a range of consecutive micro-ops.
    """

    state: ProgramState
    out: NDArray[np.uint64]
    uops: NDArray[np.uint64]
    counts: NDArray[np.int64]  # number of runs of micro-ops, and of micro-ops, shape (2,)
    run_keys: NDArray[np.int64]  # shape (MAX_RUNS, 4), see `find_run`
    run_at: NDArray[np.int64]  # first micro-op of each run
    steps: NDArray[np.int64]  # buffer for the steps of `maxima_of`
    read_by: NDArray[np.int64]  # the last GEMM that reads each input slot
    store_of: NDArray[np.int64]  # the last STORE that reads each accumulator slot


class PoolTile(NamedTuple):
    """Position and size of a max-pool's output tile, and its slots in the scratchpads."""

    number: int  # number of tiles before this one
    image: int
    block: int  # first channel block; `blocks`: number of channel blocks
    blocks: int
    row: int  # first output row; `rows`: number of output rows
    rows: int
    col: int  # first output column; `cols`: number of output columns
    cols: int
    ih: int  # number of input rows that the tile reads; `iw`: input columns
    iw: int
    lines: int  # number of lines in the accumulators; `line`: their length
    line: int
    pitch: int  # distance between two blocks in accumulators
    i_slot: int  # input slot; `a_slot`: accumulator slot
    a_slot: int
    inp: int  # first element of the input slot; `acc`: first accumulator
    acc: int


@stage
def find_run(program: PoolProgram, kind: int, line: int, dst: int, src: int) -> int:
    """Find consecutive micro-ops (a run) that were written before.

    Args:
        program: the program that is being written.
        kind: kind of the run.
        line: length of the tile's lines in the accumulators.
        dst: first accumulator.
        src: first source element.

    Returns:
        The position of the run's first micro-op, or -1 if there is no such run.
    """
    keys = program.run_keys
    found = -1
    for k in range(program.counts[RUNS]):
        if keys[k, 0] == dst and keys[k, 1] == src and keys[k, 2] == kind and keys[k, 3] == line:
            found = program.run_at[k]
            break
    return found


@stage
def new_run(
    program: PoolProgram, kind: int, line: int, dst: int, src: int, size: int, room: int
) -> int:
    """Reserve space for a new run of consecutive micro-ops.

    If they do not fit, the failure is recorded in the state of the program.

    Args:
        program: the program that is being written; changed in place.
        kind: kind of the run.
        line: length of the tile's lines.
        dst: first accumulator.
        src: first source element.
        size: number of micro-ops of the run.
        room: capacity for micro-ops.

    Returns:
        The position of the first micro-op, or -1 if they do not fit.
    """
    k, at = program.counts[RUNS], program.counts[UOPS]
    if k >= MAX_RUNS or at + size > min(room, program.uops.shape[0]):
        program.state.problem = UOP_CAPACITY
        at = -1
    else:
        keys = program.run_keys
        keys[k, 0], keys[k, 1], keys[k, 2], keys[k, 3] = dst, src, kind, line
        program.run_at[k] = at
        program.counts[RUNS] = k + 1
        program.counts[UOPS] = at + size
    return at


@helper
def alu_run(
    program: PoolProgram, lay: Layout, line: int, pitch: int, blocks: int, dst: int, src: int,
    room: int,
) -> int:  # fmt: skip
    """Return the micro-ops of an ALU operation on one accumulator of each block.

    They are written if they do not exist yet.

    Args:
        program: the program that is being written; changed in place.
        lay: bit positions of the instruction fields.
        line: length of the tile's lines.
        pitch: distance between two blocks in accumulators.
        blocks: number of blocks.
        dst: destination in the first block.
        src: source in the first block.
        room: capacity for micro-ops.

    Returns:
        The position of the first micro-op, or -1 if they do not fit.
    """
    at = find_run(program, 0, line, dst, src)
    if at < 0:
        at = new_run(program, 0, line, dst, src, blocks, room)
        if at >= 0:
            for b in range(blocks):
                program.uops[at + b] = pack_uop(lay, dst + b * pitch, src + b * pitch, 0)
    return at


@helper
def in_place(
    plan: PoolPlan, program: PoolProgram, tile: PoolTile, at: int, lines: int, pitch: int,
    width: int, opcode: int, immediate: int,
) -> None:  # fmt: skip
    """Write an ALU operation with a constant on adjacent elements of several lines.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written; changed in place.
        tile: the tile; the operation applies to all its blocks.
        at: first accumulator in the first block.
        lines: number of lines.
        pitch: distance between two lines in accumulators.
        width: number of adjacent elements per line.
        opcode: ALU operation.
        immediate: the constant.
    """
    alu(plan, program, tile, at, at, lines, pitch, pitch, width, 1, 1, opcode, 1, immediate)


@helper
def maximum(
    plan: PoolPlan, program: PoolProgram, tile: PoolTile, dst: int, src: int, n0: int, d0: int,
    s0: int, n1: int, d1: int, s1: int,
) -> None:  # fmt: skip
    """Write an ALU instruction that computes acc[dst] = max(acc[dst], acc[src]) in two loops.

    The RTL forbids that an iteration reads what the previous iteration wrote. This never happens
    here: a source comes after its destination, or it belongs to an earlier phase, whose length
    keeps the two further than one iteration apart.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written; changed in place.
        tile: the tile; the operation applies to all its blocks.
        dst: first destination in the first block.
        src: first source in the first block.
        n0: iterations of the outer loop.
        d0: destination step per outer iteration.
        s0: source step per outer iteration.
        n1: iterations of the inner loop.
        d1: destination step per inner iteration.
        s1: source step per inner iteration.
    """
    alu(plan, program, tile, dst, src, n0, d0, s0, n1, d1, s1, ALU_MAX, 0, 0)


@helper
def alu(
    plan: PoolPlan, program: PoolProgram, tile: PoolTile, dst: int, src: int, n0: int, d0: int,
    s0: int, n1: int, d1: int, s1: int, opcode: int, use_imm: int, imm: int,
) -> None:  # fmt: skip
    """Write an ALU instruction on all blocks of a tile, in two nested loops.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written; changed in place.
        tile: the output tile.
        dst: first destination in the first block.
        src: first source in the first block.
        n0: iterations of the outer loop.
        d0: destination step per outer iteration.
        s0: source step per outer iteration.
        n1: iterations of the inner loop.
        d1: destination step per inner iteration.
        s1: source step per inner iteration.
        opcode: ALU operation.
        use_imm: 1 if the second operand is the immediate, else 0.
        imm: the immediate.
    """
    at = alu_run(
        program, plan.lay, tile.line, tile.pitch, plan.tiling.tc, dst, src, plan.m.uop_built
    )
    if at < 0:
        return
    if n0 == 1:
        d0, s0 = 0, 0
    if n1 == 1:
        d1, s1 = 0, 0
    instruction_writer.alu(
        program.state, program.out, plan.lay, at, at + tile.blocks, n0, n1, d0, d1, s0, s1, opcode,
        use_imm, imm,
    )  # fmt: skip


@helper
def bring_pixels(plan: PoolPlan, program: PoolProgram, tile: PoolTile) -> None:
    """Write the GEMMs that copy a tile's pixels from the input scratchpad to the accumulators.

    The GEMMs multiply by the identity matrix. Phases (columns with the same position modulo the
    stride) of equal length share a GEMM instruction. Rows between the windows, which no output
    reads, are not copied. There may therefore be fewer lines than input rows.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    geo, cols = plan.geo, plan.cols
    sets, lines, from_row = 1, tile.lines, 1
    if not plan.gather and plan.rows.stride < geo.sh and not plan.rows.single:
        sets, lines, from_row = plan.rows.kernel, tile.rows, geo.sh
    if cols.single:
        bring_phases(plan, program, tile, 0, 1, cols.kernel, 1, sets, lines, from_row)
    else:
        some = cols.last + 1
        width = numbers(cols, 0, tile.cols)
        bring_phases(plan, program, tile, 0, some, width, geo.sw, sets, lines, from_row)
        if some < cols.stride:
            bring_phases(
                plan, program, tile, some, cols.stride, width - 1, geo.sw, sets, lines, from_row
            )


@helper
def bring_phases(
    plan: PoolPlan, program: PoolProgram, tile: PoolTile, begin: int, end: int, width: int,
    step: int, sets: int, lines: int, from_row: int,
) -> None:  # fmt: skip
    """Write a GEMM that copies the pixels of consecutive phases to the accumulators.

    A phase consists of the columns with the same position modulo the stride of the pool.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written.
        tile: the output tile.
        begin: first phase.
        end: phase after the last one.
        width: number of pixels per phase and line.
        step: distance between two pixels of a phase in the input.
        sets: number of sets of lines.
        lines: number of lines per set.
        from_row: distance between two lines of a set, in input rows.
    """
    dst = tile.acc + before(plan.cols, begin, tile.cols)
    src = tile.inp + begin
    size = sets * (end - begin)
    at = find_run(program, 1, tile.line, dst, src)
    if at < 0:
        at = new_run(program, 1, tile.line, dst, src, size * plan.tiling.tc, plan.m.uop_built)
        if at < 0:
            return
        k = at
        for b in range(plan.tiling.tc):
            for s in range(sets):
                for p in range(begin, end):
                    program.uops[k] = pack_uop(
                        plan.lay,
                        tile.acc + b * tile.pitch + s * tile.line + before(plan.cols, p, tile.cols),
                        tile.inp + (b * plan.tiling.ih + s) * tile.iw + p,
                        0,
                    )
                    k += 1
    instruction_writer.gemm(
        program.state, program.out, plan.lay, 0, at, at + size * tile.blocks, lines, width,
        sets * tile.line if lines > 1 else 0, 1 if width > 1 else 0,
        from_row * tile.iw if lines > 1 else 0, step if width > 1 else 0, 0, 0,
    )  # fmt: skip


class Sides(NamedTuple):
    """Number of lines and columns of a tile that lie in the padding, for each side of the image."""

    top: int
    bottom: int
    left: int
    right: int


@helper
def lower_padding(plan: PoolPlan, program: PoolProgram, tile: PoolTile) -> None:
    """Write ALU operations that set the padding of a tile to the smallest input value.

    A LOAD fills the padding with zeros, to which the smallest input value is added.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    geo = plan.geo
    lowest = -(1 << (plan.m.inp_bits - 1))
    y0, x0 = tile.row * geo.sh - geo.pad_top, tile.col * geo.sw - geo.pad_left
    bottom = 0 if plan.gather else max(0, y0 + tile.ih - geo.h)
    sides = Sides(max(0, -y0), bottom, max(0, -x0), max(0, x0 + tile.iw - geo.w))
    lines_in_padding(plan, program, tile, sides, ALU_ADD, lowest)
    columns_in_padding(plan, program, tile, sides, geo.sw, 0, tile.lines, ALU_ADD, lowest)


@helper
def lines_in_padding(
    plan: PoolPlan, program: PoolProgram, tile: PoolTile, sides: Sides, opcode: int, immediate: int
) -> None:
    """Write ALU operations with a constant on the lines of a tile that lie in the padding.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        sides: number of lines in the padding, above and below.
        opcode: the ALU operation.
        immediate: the constant.
    """
    for side in range(2):
        count = sides.bottom if side else sides.top
        if count > 0:
            at = tile.acc + ((tile.lines - sides.bottom) * tile.line if side else 0)
            in_place(plan, program, tile, at, 1, 0, count * tile.line, opcode, immediate)


@helper
def columns_in_padding(
    plan: PoolPlan, program: PoolProgram, tile: PoolTile, sides: Sides, stride: int,
    first_line: int, lines: int, opcode: int, immediate: int,
) -> None:  # fmt: skip
    """Write ALU operations with a constant on the columns of a tile that lie in the padding.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written; changed in place.
        tile: the output tile.
        sides: number of columns in the padding, left and right.
        stride: horizontal stride of the windows.
        first_line: first line.
        lines: number of lines.
        opcode: ALU operation.
        immediate: the constant.
    """
    cols = plan.cols
    step = 1 if cols.single else stride
    for phase in range(1 if cols.single else min(cols.stride, stride)):
        width = cols.kernel if cols.single else numbers(cols, phase, tile.cols)
        for side in range(2):
            first = 0
            # number of the phase's columns that are padding
            count = -(-(sides.left - phase) // step)
            if side:
                first = max(0, -(-(tile.iw - sides.right - phase) // step))
                count = width - first
            if count > 0:
                at = tile.acc + first_line * tile.line + before(cols, phase, tile.cols) + first
                in_place(plan, program, tile, at, lines, tile.line, count, opcode, immediate)


@stage
def first_output(plan: PoolPlan, tile: PoolTile) -> int:
    """Return the index of the accumulator that holds a tile's first output.

    The next row of outputs is as many lines further as there are phases of rows. A phase is a
    position modulo the stride.

    Args:
        plan: plan of the max-pool's schedule.
        tile: the output tile.
    """
    return tile.acc + plan.rows.home * tile.line + before(plan.cols, plan.cols.home, tile.cols)


@helper
def maxima_of_rows(plan: PoolPlan, program: PoolProgram, tile: PoolTile, above: int) -> None:
    """Write the maxima over the rows of each window, which combine whole lines of accumulators.

    If the maxima over columns have been taken before, only the columns that hold these maxima are
    combined. Otherwise, all columns are combined.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        above: position of the line that replaces the tile's first line, which only the first row of
            outputs reads; -1 for none.
    """
    rows, line = plan.rows, tile.line
    column, width = 0, line
    if not plan.rows_first:
        column, width = before(plan.cols, plan.cols.home, tile.cols), tile.cols
    first = tile.acc + column
    if rows.single:
        if rows.kernel > 1:
            maximum(plan, program, tile, first, first + line, rows.kernel - 1, 0, line, width, 1, 1)
        return
    steps = program.steps
    for k in range(maxima_of(rows, tile.rows, steps)):
        source = steps[k, FROM] + steps[k, AHEAD] * rows.stride
        dst, src, count = first + steps[k, INTO] * line, first + source * line, steps[k, COUNT]
        if above >= 0 and source == 0:
            maximum(plan, program, tile, dst, above + column, 1, 0, 0, width, 1, 1)
            dst, src, count = dst + rows.stride * line, src + rows.stride * line, count - 1
        if count > 0:
            maximum(
                plan, program, tile, dst, src, count, rows.stride * line, rows.stride * line,
                width, 1, 1,
            )  # fmt: skip


@helper
def maxima_of_columns(plan: PoolPlan, program: PoolProgram, tile: PoolTile) -> None:
    """Write the maxima over the columns of each window.

    If the maxima over rows have been taken before, only the lines that hold these maxima are
    processed. Otherwise, all lines are processed.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    cols = plan.cols
    first, lines, pitch = tile.acc, tile.lines, tile.line
    if plan.rows_first:
        first, lines, pitch = (
            tile.acc + plan.rows.home * tile.line, tile.rows, plan.rows.stride * tile.line
        )  # fmt: skip
    if cols.single:
        if cols.kernel > 1:
            maximum(
                plan, program, tile, first, first + 1, cols.kernel - 1, 0, 1, lines, pitch, pitch
            )
        return
    steps = program.steps
    for k in range(maxima_of(cols, tile.cols, steps)):
        source = before(cols, steps[k, FROM], tile.cols) + steps[k, AHEAD]
        maximum(
            plan, program, tile, first + before(cols, steps[k, INTO], tile.cols), first + source,
            lines, pitch, pitch, steps[k, COUNT], 1, 1,
        )  # fmt: skip


@helper
def store_rows(plan: PoolPlan, program: PoolProgram, tile: PoolTile, blocks: int) -> None:
    """Write one STORE per output row of a tile.

    A STORE cannot write several rows, because other accumulators lie between them.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        blocks: number of first channel blocks of the tile to store.
    """
    geo, first = plan.geo, first_output(plan, tile)
    for b in range(blocks):
        plane = (tile.image * geo.groups + tile.block + b) * geo.oh
        for row in range(tile.rows):
            instruction_writer.memory(
                program.state, program.out, STORE, OUT,
                first + b * tile.pitch + row * plan.rows.stride * tile.line,
                geo.out_base + (plane + tile.row + row) * geo.ow + tile.col,
                1, tile.cols, tile.cols, 0, 0, 0, 0, plan.m.out_bytes,
            )  # fmt: skip
