"""Adds residuals in extended schedules: int8 tensors that the GEMM core adds to the accumulators.

A residual is the input of a GEMM whose weights are an identity matrix, scaled by a power of two.
The GEMM follows the reduction of a tile. The loads of the residual follow the loads of the tile's
inputs and run in parallel with the tile's GEMMs. The residual therefore delays nothing at the start
of the program. If the scale requires a left shift, the residual is added first instead, because the
shift applies to the whole accumulator.
"""

from __future__ import annotations

from tilewright.targets.vta.instruction_format import ALU_SHR, INP, LOAD, WGT, pack_uop
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.geometry import EPILOGUE_IMMEDIATE
from tilewright.targets.vta.lowering.output_tiles import (
    FULL,
    GemmProgram,
    GemmTile,
    TilePiece,
    stored_blocks,
)
from tilewright.targets.vta.lowering.reduction_steps import (
    Cursor,
    Rings,
    wait_for_reader,
    with_uops,
)
from tilewright.targets.vta.lowering.tile_and_buffer_plan import LoweringPlan
from tilewright.targets.vta.lowering.tile_instructions import alu, one_uop
from tilewright.targets.vta.numba_decorators import stage

_L, _C = 0, 1


@stage
def add_residual(
    plan: LoweringPlan, program: GemmProgram, rings: Rings, cursor: Cursor, tile: GemmTile
) -> tuple[bool, Cursor]:
    """Write the loads and GEMMs that add a tile's residual, piece by piece, and its left shift.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        rings: contents of the scratchpad slots, and the micro-op kernels; changed in place.
        cursor: next slots to fill, and progress of the program.
        tile: the output tile.

    Returns:
        Whether its micro-ops fit into the scratchpad, and the new cursor.
    """
    state, out, slots = program.state, program.out, plan.slots
    if tile.number == 0:
        instruction_writer.memory(
            state, out, LOAD, WGT, slots.wgt_places, plan.geo.wgt_base + plan.geo.identity_at,
            1, 1, 1, 0, 0, 0, 0, plan.m.wgt_bytes,
        )  # fmt: skip
    cuts = -(-plan.tiling.th // slots.res_rows)
    number = tile.number * cuts * -(-plan.tiling.tco // slots.res_blocks)
    freed, n_uops, c0, r0 = cursor.freed, cursor.n_uops, 0, 0
    while c0 < tile.cos:
        blocks, rows = min(slots.res_blocks, tile.cos - c0), min(slots.res_rows, tile.rows - r0)
        stored = stored_blocks(tile, c0, blocks)
        if stored > 0:
            piece = TilePiece(c0, stored, r0, rows, c0 * tile.pitch + r0 * tile.cols)
            slot = number % slots.res
            freed = wait_for_reader(program, rings.residual[slot], freed)
            n_uops = add_piece(plan, program, tile, piece, slot, n_uops)
            if n_uops == FULL:
                break
            rings.residual[slot] = state.instructions - 1
        number += 1
        r0 += rows
        if r0 == tile.rows:
            c0 += blocks
            r0 = 0
    if plan.operations.shift:
        alu(
            state, out, plan.lay, tile.slot, tile.cos, tile.rows * tile.cols, tile.pitch,
            EPILOGUE_IMMEDIATE, ALU_SHR, -plan.operations.shift,
        )  # fmt: skip
    return n_uops != FULL, with_uops(cursor, freed, n_uops)


@stage
def add_piece(
    plan: LoweringPlan,
    program: GemmProgram,
    tile: GemmTile,
    piece: TilePiece,
    slot: int,
    n_uops: int,
) -> int:
    """Write the load and the GEMMs that add a piece of the residual to the accumulators.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        piece: the piece: output blocks and rows of the tile.
        slot: slot of the input scratchpad for the piece.
        n_uops: number of micro-ops so far.

    Returns:
        The new number of micro-ops, or FULL if they do not fit into the scratchpad.
    """
    state, out, geo, slots = program.state, program.out, plan.geo, plan.slots
    pixels, at = piece.rows * tile.cols, plan.m.inp_built - (slot + 1) * slots.res_size
    instruction_writer.region(
        state, out, LOAD, INP, at,
        geo.res_base + tile.first_out + piece.block * geo.oh * geo.ow + piece.row * geo.ow,
        piece.blocks, geo.oh * geo.ow, piece.rows, geo.ow, tile.cols, plan.m.inp_bytes,
    )  # fmt: skip
    instruction_writer.push(state, out, _L, _C)
    instruction_writer.pop(state, out, _L, _C)
    word = pack_uop(plan.lay, tile.acc + piece.offset, at, slots.wgt_places)
    uop = one_uop(program.uops, word, n_uops, slots.acc)
    if uop == n_uops:
        if n_uops + 1 > min(plan.m.uop_built, program.uops.shape[0]):
            return FULL
        program.uops[uop] = word
        n_uops += 1
    n0, d0, s0 = piece.blocks, tile.pitch, pixels
    if piece.blocks == 1:
        d0, s0 = 0, 0
    d1 = 1 if pixels > 1 else 0
    for _ in range(plan.operations.residual):
        instruction_writer.gemm(
            state, out, plan.lay, 0, uop, uop + 1, n0, pixels, d0, d1, s0, d1, 0, 0
        )
    return n_uops
