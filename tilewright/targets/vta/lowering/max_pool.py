"""Lowers max-pool layers: the GEMM core copies data to the accumulators, and the ALU takes maxima.

The GEMM multiplies by an identity matrix, and the ALU writes each maximum in place. A program is a
sequence of output tiles. The slots of the input scratchpad and of the accumulators form rings. The
LOAD of the next tile and the STOREs of the previous tile run in parallel with the ALU, which takes
most of the time. The first and the last tile can be computed in parts, so that the first GEMM
starts early and the last STORE is short.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.instruction_format import (
    LOAD,
    PUSH_NEXT,
    PUSH_PREV,
    UOP,
    WGT,
    Layout,
    pack_uop,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.extended import balanced
from tilewright.targets.vta.lowering.geometry import Geometry, window
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import OK
from tilewright.targets.vta.lowering.max_pool_codegen import (
    MAX_RUNS,
    UOPS,
    PoolProgram,
    PoolTile,
    bring_pixels,
    first_output,
    in_place,
    lower_padding,
    maxima_of_columns,
    maxima_of_rows,
    store_rows,
)
from tilewright.targets.vta.lowering.max_pool_plan import (
    PoolPlan,
    length,
    pool_failure,
    pool_plan_of,
)
from tilewright.targets.vta.lowering.tile_instructions import LOAD_LATENCY, finish, load_window
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, stage, unowned
from tilewright.targets.vta.spec import Machine
from tilewright.targets.workload import Workload

POOL_KNOBS = ("tile_h", "tile_w", "tile_c", "inp_slots", "acc_slots", "head", "tail")

_IN_PLACE = {"shr", "shl", "min", "max", "offset"}
_L, _C, _S = 0, 1, 2


def pool_space(geo: Geometry, name: str) -> Space:
    """Create the schedule space of a max-pool layer, under the name of the requested space.

    The knobs are:

    - `tile_h`, `tile_w`, `tile_c`: tile sizes in output rows, output columns and channel blocks.
      The last tile takes the remainder.
    - `inp_slots`, `acc_slots`: number of slots in each scratchpad's ring.
    - `head`, `tail`: number of parts in which the first and the last tile are computed.
    """
    values = (
        balanced(geo.oh), balanced(geo.ow, 4), balanced(geo.groups), (1, 2, 3), (1, 2),
        (1, 2, 4), (1, 2, 4),
    )  # fmt: skip
    return Space(name, tuple(Knob(n, v) for n, v in zip(POOL_KNOBS, values, strict=True)))


def check_pool(workload: Workload) -> None:
    """Check that a max-pool layer can be lowered.

    Raises:
        WorkloadError: the windows are dilated, or the epilogue reads tensors.
    """
    if max(workload.dilation_h, workload.dilation_w) > 1:
        raise WorkloadError(
            f"{workload}: a max_pool with dilation is not supported; run the layer on the CPU"
        )
    for step in workload.epilogue:
        if step.kind not in _IN_PLACE:
            raise WorkloadError(
                f"{workload}: the epilogue of a max_pool can only use constants, not "
                f"'{step.kind}'; make the sum a layer of its own"
            )


@allocating_helper
def lower_pool(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one schedule of a max-pool layer.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations with constants, as rows (operand kind, opcode, immediate) of
            `epilogue_steps`, shape (steps, 3).
        knobs: knob values (not indices), shape (7,).
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.
        options: unused.

    Returns:
        The failure code; OK if the program was written.
    """
    instruction_writer.start(state)
    plan = pool_plan_of(geo, m, lay, unowned(epilogue), knobs)
    failure = pool_failure(plan)
    if failure != OK:
        return failure
    # Lent with their owners: an array whose last use is `unowned` is freed before the call.
    counts = np.zeros(2, np.int64)
    run_keys = np.empty((MAX_RUNS, 4), np.int64)
    run_at = np.empty(MAX_RUNS, np.int64)
    steps = np.empty((max(geo.kh, geo.kw) + 32, 4), np.int64)
    read_by = np.full(plan.slots.inp, -1, np.int64)
    store_of = np.full(plan.slots.acc, -1, np.int64)
    program = PoolProgram(state, out, uops, counts, run_keys, run_at, steps, read_by, store_of)
    return _write(plan, program)


@helper
def _write(plan: PoolPlan, program: PoolProgram) -> int:
    """Write the program of a max-pool layer, tile by tile, and return its failure code.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
    """
    prepare(plan, program)
    for number in range(plan.tiling.tiles):
        tile = tile_at(plan, number)
        load_tile(plan, program, tile)
        reset_tile(plan, program, tile)
        instruction_writer.pop(program.state, program.out, _L, _C)
        bring_pixels(plan, program, tile)
        program.read_by[tile.i_slot] = program.state.instructions - 1
        lower_padding(plan, program, tile)
        if plan.rows_first:
            maxima_of_rows(plan, program, tile, -1)
            maxima_of_columns(plan, program, tile)
        else:
            maxima_of_columns(plan, program, tile)
            maxima_of_rows(plan, program, tile, -1)
        end_tile(plan, program, tile)
        if program.state.problem:
            break
    return finish(program.state, program.out, program.counts[UOPS], plan.m.uop_bytes)


@stage
def tile_at(plan: PoolPlan, number: int) -> PoolTile:
    """Return a tile of a max-pool's program.

    The first and the last tile can be divided into parts, which count as tiles of the program.

    Args:
        plan: plan of the max-pool's schedule.
        number: position of the tile in the program, counted from 0.
    """
    geo, t = plan.geo, plan.tiling
    part, parts = 0, 1
    index = number - (t.first_parts - 1)
    if number < t.first_parts:
        index, part, parts = 0, number, t.first_parts
    elif number >= t.tiles - t.last_parts:
        part, parts = number - (t.tiles - t.last_parts), t.last_parts
        index = number - part - (t.first_parts - 1)
    col = index % t.col_tiles * t.tw
    row = index // t.col_tiles % t.row_tiles * t.th
    block = index // (t.col_tiles * t.row_tiles) % t.block_tiles * t.tc
    image = index // (t.col_tiles * t.row_tiles * t.block_tiles)
    whole = min(t.th, geo.oh - row)
    rows = whole * (part + 1) // parts - whole * part // parts
    row += whole * part // parts
    cols = min(t.tw, geo.ow - col)
    line = length(plan.cols, cols)
    i_slot, a_slot = number % plan.slots.inp, number % plan.slots.acc
    return PoolTile(
        number, image, block, min(t.tc, geo.groups - block), row, rows, col, cols,
        rows if plan.gather else window(rows, geo.sh, geo.kh, 1), window(cols, geo.sw, geo.kw, 1),
        length(plan.rows, rows), line, length(plan.rows, t.th) * line, i_slot, a_slot,
        i_slot * plan.slots.inp_size, a_slot * plan.slots.acc_size,
    )  # fmt: skip


@stage
def prepare(plan: PoolPlan, program: PoolProgram) -> None:
    """Write the instructions before the first tile.

    They load the micro-ops and the identity matrix, and may reset all accumulator slots.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
    """
    geo, m, slots, state, out = plan.geo, plan.m, plan.slots, program.state, program.out
    state.inp_used = slots.inp * slots.inp_size
    state.wgt_used = 1
    state.acc_used = slots.acc * slots.acc_size
    # All micro-ops are loaded by the first instruction; its size is filled in at the end.
    instruction_writer.memory(
        state, out, LOAD, UOP, 0, geo.uop_base, 1, 1, 1, 0, 0, 0, 0, m.uop_bytes
    )
    # Each accumulator slot needs only one micro-op for its reset.
    for slot in range(slots.acc):
        program.uops[slot] = pack_uop(plan.lay, slot * slots.acc_size, 0, 0)
    program.counts[UOPS] = slots.acc
    instruction_writer.memory(
        state, out, LOAD, WGT, 0, geo.wgt_base + geo.identity_at, 1, 1, 1, 0, 0, 0, 0, m.wgt_bytes
    )
    if resets_all(plan):
        count = slots.acc * slots.acc_size
        instruction_writer.gemm(
            state, out, plan.lay, 1, 0, 1, 1, count, 0, 1 if count > 1 else 0, 0, 0, 0, 0
        )  # fmt: skip


@stage
def resets_all(plan: PoolPlan) -> bool:
    """Return whether all accumulator slots are reset while the first tile is loaded.

    This is the case if the reset takes no longer than the load.

    Args:
        plan: plan of the max-pool's schedule.
    """
    slots, first = plan.slots, tile_at(plan, 0)
    pixels = first.blocks * first.ih * first.iw * plan.m.inp_bytes + plan.m.wgt_bytes
    return (
        plan.tiling.tiles >= slots.acc
        and slots.acc * slots.acc_size <= pixels // plan.m.bus_bytes + LOAD_LATENCY
    )


@stage
def load_tile(plan: PoolPlan, program: PoolProgram, tile: PoolTile) -> None:
    """Write the LOADs of a tile's inputs, after the last GEMM that reads their scratchpad slot.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    geo, state, out = plan.geo, program.state, program.out
    state.tiles += 1
    state.steps += 1
    if program.read_by[tile.i_slot] >= 0:
        instruction_writer.flag(state, out, program.read_by[tile.i_slot], PUSH_PREV)
        instruction_writer.pop(state, out, _C, _L)
    load_window(
        state, out, geo, plan.m, plan.gather, tile.image * geo.groups + tile.block, tile.blocks,
        tile.blocks, tile.row * geo.sh - geo.pad_top, tile.col * geo.sw - geo.pad_left, tile.ih,
        tile.iw, plan.tiling.ih, tile.inp,
    )  # fmt: skip
    instruction_writer.push(state, out, _L, _C)


@stage
def reset_tile(plan: PoolPlan, program: PoolProgram, tile: PoolTile) -> None:
    """Write the reset of a tile's accumulators, after the last STORE from their slot.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    state, out = program.state, program.out
    if program.store_of[tile.a_slot] >= 0:
        instruction_writer.flag(state, out, program.store_of[tile.a_slot], PUSH_PREV)
        instruction_writer.pop(state, out, _S, _C)
    if tile.number >= plan.slots.acc or not resets_all(plan):
        pixels = tile.lines * tile.line
        instruction_writer.gemm(
            state, out, plan.lay, 1, tile.a_slot, tile.a_slot + 1, tile.blocks, pixels,
            tile.pitch if tile.blocks > 1 else 0, 1 if pixels > 1 else 0, 0, 0, 0, 0,
        )  # fmt: skip


@stage
def end_tile(plan: PoolPlan, program: PoolProgram, tile: PoolTile) -> None:
    """Write the epilogue and the stores of a tile.

    Args:
        plan: plan of the max-pool's schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    epilogue, state, out = plan.epilogue, program.state, program.out
    at, pitch = first_output(plan, tile), plan.rows.stride * tile.line
    for e in range(epilogue.shape[0]):
        in_place(
            plan, program, tile, at, tile.rows, pitch, tile.cols, epilogue[e, 1], epilogue[e, 2]
        )
    instruction_writer.flag(state, out, state.instructions - 1, PUSH_NEXT)
    instruction_writer.pop(state, out, _C, _S)
    store_rows(plan, program, tile, tile.blocks)
    program.store_of[tile.a_slot] = state.instructions - 1
