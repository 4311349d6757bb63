"""Writes the beginning and the end of each output tile of an extended schedule.

A tile begins with the initial values of its accumulators, and ends with the epilogue and the store.
The module also computes the positions of tiles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU_ADD,
    ALU_MAX,
    LOAD,
    OUT,
    PUSH_NEXT,
    PUSH_PREV,
    STORE,
    pack_uop,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_ASIDE,
    EPILOGUE_BACK,
    EPILOGUE_BIAS,
    EPILOGUE_IMMEDIATE,
    EPILOGUE_RESIDUAL,
    EPILOGUE_TAKE,
    EPILOGUE_TENSOR,
    window,
)
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.tile_and_buffer_plan import (
    CHANNELS_OUTER,
    GemmTiling,
    LoweringPlan,
)
from tilewright.targets.vta.lowering.tile_instructions import (
    alu,
    epilogue_piece,
    one_uop,
    tile_transfer,
)
from tilewright.targets.vta.numba_decorators import stage

_C, _S = 1, 2

FULL = -1  # result of functions whose micro-ops do not fit the scratchpad


class GemmProgram(NamedTuple):
    """Output buffers of a program that is being written, and the use of the accumulator slots.

    `instruction_writer` writes the instructions.
    """

    state: ProgramState
    out: NDArray[np.uint64]
    uops: NDArray[np.uint64]
    store_of: NDArray[np.int64]  # the last STORE that reads each accumulator slot


class GemmTile(NamedTuple):
    """An output tile: its rows, columns and output blocks, and its position in the accumulators."""

    number: int  # number of tiles before this one
    tiles: int  # number of tiles in the program
    group: int  # channel group of the convolution
    image: int
    place: int  # index of its pixels among all tiles of pixels
    co_tile: int  # index along the output blocks
    row: int  # first output row; `rows`: number of output rows
    rows: int
    col: int  # first output column; `cols`: number of output columns
    cols: int
    co: int  # first output block; `cos`: number of output blocks
    cos: int
    ih: int  # number of input rows that the tile reads; `iw`: input columns
    iw: int
    pitch: int  # distance of two output blocks, in accumulators
    slot: int  # accumulator slot
    acc: int  # index of the slot's first accumulator
    first_out: int  # index of the tile's first output element in DRAM
    there: int  # output blocks of the tile that exist in DRAM, at most `cos`


class TilePiece(NamedTuple):
    """One piece of a tile's epilogue: a range of output blocks and a range of their rows."""

    block: int  # first output block; `blocks`: number of output blocks
    blocks: int
    row: int  # first row; `rows`: number of rows
    rows: int
    offset: int  # number of the tile's accumulators before this piece


class Place(NamedTuple):
    """Position of a tile: its group, its image, and its index along rows, columns and blocks."""

    group: int
    image: int
    row_tile: int
    col_tile: int
    co_tile: int
    pixels: int  # number of tiles of pixels of this group before it


@stage
def place_at(t: GemmTiling, number: int) -> Place:
    """Return the position of a tile: its channel group, image, and index along each axis.

    Args:
        t: sizes and numbers of the tiles.
        number: position of the tile in the program, counted from 0.
    """
    channels_outer = t.order == CHANNELS_OUTER
    outer, inner = t.places, t.co_tiles
    if channels_outer:
        outer, inner = inner, outer
    a_index, b_index = number // inner % outer, number % inner
    co_tile = a_index if channels_outer else b_index
    pixel_tile = b_index if channels_outer else a_index
    return Place(
        number // (outer * inner), pixel_tile // (t.row_tiles * t.col_tiles),
        pixel_tile // t.col_tiles % t.row_tiles, pixel_tile % t.col_tiles, co_tile, pixel_tile,
    )  # fmt: skip


@stage
def tile_at(plan: LoweringPlan, number: int, tiles: int) -> GemmTile:
    """Return an output tile with its sizes and its accumulators.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        number: position of the tile in the program, counted from 0.
        tiles: number of tiles of the program.
    """
    geo, t = plan.geo, plan.tiling
    at = place_at(t, number)
    g, n, row_tile = at.group, at.image, at.row_tile
    row = 0 if row_tile == 0 else t.first_rows + (row_tile - 1) * t.th
    rows = min(t.first_rows if row_tile == 0 else t.th, geo.oh - row)
    col = at.col_tile * t.tw
    cols = min(t.tw, geo.ow - col)
    co = at.co_tile * t.tco
    slot = number % plan.slots.acc
    return GemmTile(
        number, tiles, g, n, g * t.places + at.pixels, at.co_tile, row, rows, col, cols, co,
        min(t.tco, geo.co - co), rows if t.gather else window(rows, geo.sh, geo.kh, geo.dh),
        window(cols, geo.sw, geo.kw, geo.dw), t.th * cols, slot, slot * plan.slots.acc_size,
        (n * geo.out_blocks + g * geo.co + co) * geo.oh * geo.ow + row * geo.ow + col,
        geo.out_blocks - g * geo.co - co,
    )  # fmt: skip


@stage
def stored_blocks(tile: GemmTile, first: int, blocks: int) -> int:
    """Return how many of a range of a tile's output blocks exist in DRAM and are stored.

    Args:
        tile: the output tile.
        first: first block of the range.
        blocks: number of blocks of the range.
    """
    return max(0, min(blocks, tile.there - first))


@stage
def load_tensor(plan: LoweringPlan, program: GemmProgram, tile: GemmTile, acc: int) -> None:
    """Write the LOADs of the tensor that the epilogue adds to a tile.

    Output blocks that are not stored have no data in the tensor. For them, the last stored block is
    loaded.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        acc: first accumulator to load to.
    """
    geo, blocks = plan.geo, stored_blocks(tile, 0, tile.cos)
    base = geo.add_base + tile.first_out
    if blocks > 0:
        tile_transfer(
            program.state, program.out, geo, LOAD, ACC, acc, base, blocks, tile.rows, tile.cols,
            tile.pitch, plan.m.acc_bytes,
        )  # fmt: skip
    for c in range(blocks, tile.cos):
        tile_transfer(
            program.state, program.out, geo, LOAD, ACC, acc + c * tile.pitch,
            base + (tile.there - 1) * geo.oh * geo.ow, 1, tile.rows, tile.cols, tile.pitch,
            plan.m.acc_bytes,
        )  # fmt: skip


@stage
def begin_tile(plan: LoweringPlan, program: GemmProgram, tile: GemmTile, n_uops: int) -> int:
    """Write the instructions that initialise a tile's accumulators, after the last STORE from them.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tile: the output tile.
        n_uops: number of micro-ops so far.

    Returns:
        The new number of micro-ops, or FULL if they do not fit into the scratchpad.
    """
    state, out = program.state, program.out
    state.tiles += 1
    if program.store_of[tile.slot] >= 0:
        instruction_writer.flag(state, out, program.store_of[tile.slot], PUSH_PREV)
        instruction_writer.pop(state, out, _S, _C)
    if plan.operations.lifted:
        load_bias(plan, program, tile)
        pixels = tile.rows * tile.cols
        at, n_uops = uop_of(plan, program, tile.acc, bias_of(plan, tile), n_uops)
        alu(state, out, plan.lay, at, tile.cos, pixels, tile.pitch, EPILOGUE_BIAS, ALU_MAX, 0)
    elif plan.operations.starts_with_tensor:
        load_tensor(plan, program, tile, tile.acc)
    elif tile.number >= plan.slots.acc:
        pixels = tile.rows * tile.cols
        instruction_writer.gemm(
            state, out, plan.lay, 1, tile.slot, tile.slot + 1, tile.cos, pixels,
            tile.pitch if tile.cos > 1 else 0, 1 if pixels > 1 else 0, 0, 0, 0, 0,
        )  # fmt: skip
    return n_uops


@stage
def load_bias(plan: LoweringPlan, program: GemmProgram, tile: GemmTile) -> None:
    """Write the LOAD of a tile's biases and shift amounts, unless they stay in the scratchpad.

    The LOAD has one row for the biases and one row for the shift amounts.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tile: the output tile.
    """
    vectors = plan.operations.vectors
    if vectors > 0 and not plan.slots.bias_resident:
        stride = plan.geo.groups * plan.geo.co if vectors > 1 else tile.cos
        instruction_writer.memory(
            program.state, program.out, LOAD, ACC, plan.slots.bias_at,
            plan.geo.bias_base + tile.group * plan.geo.co + tile.co, vectors, tile.cos, stride,
            0, 0, 0, 0, plan.m.acc_bytes,
        )  # fmt: skip


@stage
def bias_of(plan: LoweringPlan, tile: GemmTile) -> int:
    """Return the index of the first accumulator that holds a tile's biases.

    The biases precede all other vectors (values per channel).

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        tile: the output tile.
    """
    return vector_of(plan, tile, 0)


@stage
def vector_of(plan: LoweringPlan, tile: GemmTile, number: int) -> int:
    """Return the index of the first accumulator that holds a vector for a tile.

    A vector has one value per channel, such as the biases or the shift amounts.

    Args:
        plan: plan of the schedule.
        tile: the output tile.
        number: number of the vector; the biases come first.
    """
    at, pitch = 0, tile.cos
    if plan.slots.bias_resident:
        at, pitch = tile.group * plan.geo.co + tile.co, plan.geo.groups * plan.geo.co
    return plan.slots.bias_at + number * pitch + at


@stage
def uop_of(
    plan: LoweringPlan, program: GemmProgram, accumulator: int, source: int, n_uops: int
) -> tuple[int, int]:
    """Return the position of an ALU micro-op, and write it if it does not exist yet.

    Args:
        plan: plan of the schedule: its tiles and scratchpad slots.
        program: the program that is being written; changed in place.
        accumulator: first accumulator (destination).
        source: first accumulator of the second operand.
        n_uops: number of micro-ops so far.

    Returns:
        The position, and the new number of micro-ops; this number is FULL if the micro-op does not
        fit into the scratchpad.
    """
    word = pack_uop(plan.lay, accumulator, source, 0)
    at = one_uop(program.uops, word, n_uops, plan.slots.acc)
    if at < n_uops:
        return at, n_uops
    if n_uops + 1 > min(plan.m.uop_built, program.uops.shape[0]):
        return 0, FULL
    program.uops[at] = word
    return at, n_uops + 1


@stage
def end_tile(plan: LoweringPlan, program: GemmProgram, tile: GemmTile, n_uops: int) -> int:
    """Write the epilogue and the store of a tile. The last tile is written in pieces.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tile: the output tile.
        n_uops: number of micro-ops so far.

    Returns:
        The new number of micro-ops, or FULL if they do not fit into the scratchpad.
    """
    geo, state, out = plan.geo, program.state, program.out
    if not plan.operations.lifted:
        load_bias(plan, program, tile)
    cuts = plan.tail if tile.number == tile.tiles - 1 else 1
    pieces, c0, r0 = 0, 0, 0
    while c0 < tile.cos:
        blocks, rows = epilogue_piece(
            plan.m, plan.operations.in_place, cuts, pieces, tile.cos, tile.rows, c0, r0
        )
        piece = TilePiece(c0, blocks, r0, rows, c0 * tile.pitch + r0 * tile.cols)
        n_uops = epilogue_of(plan, program, tile, piece, n_uops)
        if n_uops == FULL:
            return FULL
        instruction_writer.flag(state, out, state.instructions - 1, PUSH_NEXT)
        instruction_writer.pop(state, out, _C, _S)
        stored = stored_blocks(tile, c0, blocks)
        if stored > 0:
            tile_transfer(
                state, out, geo, STORE, OUT, tile.acc + piece.offset,
                geo.out_base + tile.first_out + c0 * geo.oh * geo.ow + r0 * geo.ow, stored, rows,
                tile.cols, tile.pitch, plan.m.out_bytes,
            )  # fmt: skip
        else:
            instruction_writer.commit_pops(state, out, _S)
        r0 += rows
        if r0 == tile.rows:
            c0 += blocks
            r0 = 0
        pieces += 1
    program.store_of[tile.slot] = state.instructions - 1
    return n_uops


@stage
def epilogue_of(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, piece: TilePiece, n_uops: int
) -> int:
    """Write the ALU operations of the epilogue for one piece of a tile.

    Args:
        plan: plan of the schedule: tiles, scratchpad slots and hardware loops.
        program: the program that is being written; changed in place.
        tile: the output tile.
        piece: the piece: output blocks and rows of the tile.
        n_uops: number of micro-ops so far.

    Returns:
        The new number of micro-ops, or FULL if they do not fit into the scratchpad.
    """
    epilogue, slots = plan.epilogue, plan.slots
    for e in range(epilogue.shape[0]):
        kind = epilogue[e, 0]
        if kind == EPILOGUE_RESIDUAL:
            continue  # written by `residual`
        if kind == EPILOGUE_TENSOR and plan.operations.starts_with_tensor:
            continue
        if kind == EPILOGUE_BIAS and epilogue[e, 1] == ALU_ADD and plan.operations.lifted:
            continue
        target = source = tile.acc + piece.offset
        form = kind
        if kind >= EPILOGUE_TAKE:
            copy = slots.acc * slots.acc_size * plan.operations.tensors + source
            form = EPILOGUE_IMMEDIATE if kind == EPILOGUE_ASIDE else EPILOGUE_TENSOR
            if kind == EPILOGUE_TAKE:
                n_uops = reset_copy(plan, program, tile, piece, copy, n_uops)
                if n_uops == FULL:
                    return FULL
            else:
                source = copy
            if kind != EPILOGUE_BACK:
                target = copy
        elif kind == EPILOGUE_BIAS:
            source = vector_of(plan, tile, epilogue[e, 2]) + piece.block
        elif kind == EPILOGUE_TENSOR:
            source = slots.acc * slots.acc_size + tile.slot * slots.acc_size + piece.offset
            if piece.offset == 0:
                load_tensor(plan, program, tile, source)
        at = tile.slot  # the micro-op written for this slot
        if kind != EPILOGUE_IMMEDIATE or piece.offset > 0:
            at, n_uops = uop_of(plan, program, target, source, n_uops)
            if n_uops == FULL:
                return FULL
        alu(
            program.state, program.out, plan.lay, at, piece.blocks, piece.rows * tile.cols,
            tile.pitch, form, epilogue[e, 1], epilogue[e, 2],
        )  # fmt: skip
    return n_uops


@stage
def reset_copy(
    plan: LoweringPlan, program: GemmProgram, tile: GemmTile, piece: TilePiece, copy: int,
    n_uops: int,
) -> int:  # fmt: skip
    """Write the reset of accumulators to which a piece of a tile is copied next.

    The caller then adds the piece to these accumulators.

    Args:
        plan: plan of the schedule.
        program: the program that is being written; changed in place.
        tile: the output tile.
        piece: the piece: output blocks and rows of the tile.
        copy: first accumulator of the copy.
        n_uops: number of micro-ops so far.

    Returns:
        The new number of micro-ops, or FULL if they do not fit into the scratchpad.
    """
    at, n_uops = uop_of(plan, program, copy, copy, n_uops)
    pixels = piece.rows * tile.cols
    if n_uops != FULL:
        instruction_writer.gemm(
            program.state, program.out, plan.lay, 1, at, at + 1, piece.blocks, pixels,
            tile.pitch if piece.blocks > 1 else 0, 1 if pixels > 1 else 0, 0, 0, 0, 0,
        )  # fmt: skip
    return n_uops
