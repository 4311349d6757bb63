"""Matrix products with tile instructions: the loops that convolutions and dense layers share.

The depth is the dimension over which products are summed. A step is the part of the depth that one
tile holds. A block is a rectangle of tiles of the result. The loops are:

    parallel                          copy the data to a buffer from which tiles can be loaded
    parallel (matrix, shares of the rows, shares of the columns)
      blocks of rows, blocks of columns       or in the opposite order
        steps of the depth
          tiles down × across
        epilogue                      on the block, while it is in the first-level cache

If the weights of a block of columns do not fit the first-level cache, the depth is cut into pieces,
and all blocks of rows are multiplied by one piece before the next piece:

      blocks of columns, pieces of the depth, blocks of rows
        load the sums so far, steps of the piece, store the sums or finish the block

Blocks overlap at the end: see `targets.cpu.kernels.loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.amx_tiles import (
    BFLOAT16,
    TILE,
    TileNumbers,
    TileUnit,
    tile_unit,
)
from tilewright.targets.cpu.kernels.dense import tile_starts
from tilewright.targets.cpu.kernels.int8_dot_product import wrapping_sum
from tilewright.targets.cpu.kernels.kernel import DoesNotApply, KnobValues
from tilewright.targets.cpu.kernels.loops import loop_within, share, split_index, tile_start, tiles
from tilewright.targets.cpu.kernels.tile_arithmetic import SECOND_CACHE, SHARES, even_parts
from tilewright.targets.cpu.spec import CpuSpec

tirx = lazy_module("tvm.tirx")
ir_builder = lazy_module("tvm.script.ir_builder")
T = lazy_module("tvm.script.ir_builder.tirx")

NEAR = 3 << 13
"""Maximum size in bytes of the weights that a piece of the depth reads for one block of columns. It
is half of the 48 KiB first-level cache of a Xeon with AMX, so that the weights stay in this cache.
When both operands were in the second-level cache, tiles reached 1,500 of 3,000 GFLOP/s (`python -m
benchmarks.cpu.peak --precision bf16`)."""
RESIDENT = 5 << 18
"""Size in bytes of the data rows that stay in the second-level cache of 2 MiB (measured like
`NEAR`)."""
FEWEST_BLOCKS = 4
"""Minimum number of blocks of rows per task for which the depth is cut into pieces. All of these
blocks read the same weights. With fewer blocks, storing the accumulators between the pieces costs
more than it saves (measured like `NEAR`)."""
SUMS = 4
"""Maximum number of accumulator tiles per block. The other tile registers hold operands."""


@dataclass(frozen=True)
class TileBlocks:
    """Sizes of products of (rows, depth) by (depth, columns), whose results are cut into blocks.

    A block consists of `down` × `across` tiles.

    Attributes:
        matrices: number of products, each with its own rows.
        lines: number of groups into which the rows of a matrix are divided. A block lies within one
            group. The number is 1, or the number of rows of an image.
        rows: matrix rows per line.
        columns: columns of a product.
        steps: number of steps of the depth.
        words: 32-bit words of the depth per step.
        down: number of tiles of a block from top to bottom.
        across: number of tiles of a block from left to right.
        height: rows per tile.
    """

    matrices: int
    lines: int
    rows: int
    columns: int
    steps: int
    words: int
    down: int
    across: int
    height: int

    @property
    def block_rows(self) -> int:
        """Number of rows per block."""
        return self.down * self.height

    @property
    def block_columns(self) -> int:
        """Number of columns per block."""
        return self.across * TILE

    @property
    def row_blocks(self) -> int:
        """Number of blocks of rows per matrix."""
        return self.lines * tiles(self.rows, self.block_rows)

    @property
    def column_blocks(self) -> int:
        """Number of blocks of columns per matrix."""
        return tiles(self.columns, self.block_columns)

    def row_block(self, index: Expression) -> tuple[Expression, Expression]:
        """Return the line and the first row, within the line, of a block.

        Args:
            index: number of the block of rows.
        """
        if self.lines == 1:
            return 0, tile_start(index, self.rows, self.block_rows)
        blocks_per_line = tiles(self.rows, self.block_rows)
        return tirx.indexdiv(index, blocks_per_line), tile_start(
            tirx.indexmod(index, blocks_per_line), self.rows, self.block_rows
        )

    def first_column(self, index: Expression) -> Expression:
        """Return the first column of a block.

        Args:
            index: number of the block of columns.
        """
        if self.columns < self.block_columns:
            return 0
        return tile_start(index, self.columns, self.block_columns)


def blocks_of(
    matrices: int, lines: int, rows: int, columns: int, depth: tuple[int, int], v: KnobValues
) -> TileBlocks:
    """Derive the blocks from a config.

    Args:
        matrices: number of products.
        lines: number of groups of a matrix's rows: see `TileBlocks.lines`.
        rows: matrix rows per line.
        columns: columns of a product.
        depth: number of steps of the depth, and 32-bit words per step.
        v: the config, by knob name.

    Raises:
        DoesNotApply: the block has more than `SUMS` tiles.
    """
    down = min(v["tiles_down"], rows)
    across = min(v["tiles_across"], tiles(columns, TILE))
    if down * across > SUMS:
        raise DoesNotApply(f"{down} × {across} tiles of sums, over {SUMS}")
    height = tiles(even_parts(rows, down * TILE), down)
    if down * height > rows:  # the last block must not begin before the first row
        down, height = 1, min(TILE, rows)
    return TileBlocks(matrices, lines, rows, columns, *depth, down, across, height)


def knobs(row_blocks: int, columns: int) -> tuple[Knob, ...]:
    """Return the knobs of a product with tile instructions.

    Args:
        row_blocks: largest number of blocks of rows.
        columns: columns of the product.
    """
    return (
        Knob("tiles_down", (1, 2)),
        Knob("tiles_across", (1, 2, 4)),
        Knob("row_shares", tuple(s for s in SHARES if s <= row_blocks)),
        Knob("column_shares", tuple(s for s in SHARES if s <= tiles(columns, TILE))),
        Knob("rows_inside", (0, 1)),
    )


def baseline_values(
    space: tuple[Knob, ...], b: TileBlocks, spec: CpuSpec, bytes_of: tuple[int, int]
) -> dict[str, int]:
    """Choose the rule schedule, whose blocks have 2 × 2 tiles.

    The threads divide the operand that can be cut into more shares, where a thread gets at most one
    share. If both operands can be cut into equally many shares, the threads divide the larger one.
    The loop order reads the larger operand once. If the weights are larger, the data are read again
    for every block of columns. Data that do not fit the second-level cache are then divided into
    shares of rows that fit.

    Args:
        space: the knobs.
        b: the product in blocks of 2 × 2 tiles.
        spec: the processor.
        bytes_of: bytes of a matrix's data and bytes of its weights.

    Returns:
        The value of each knob, by its name.
    """
    choices = {knob.name: knob.values for knob in space}
    data, weights = bytes_of
    by_columns = weights > data
    threads = tiles(spec.threads, b.matrices)

    def by_rows(wanted: int) -> int:
        return _largest_choice(choices["row_shares"], min(wanted, b.row_blocks))

    shares = (
        by_rows(threads),
        _largest_choice(choices["column_shares"], min(threads, b.column_blocks)),
    )
    if by_columns and shares[1] >= shares[0]:
        shares = 1, shares[1]
    elif shares[0] >= shares[1]:
        shares = shares[0], 1
    else:
        shares = 1, shares[1]
    if by_columns and data > SECOND_CACHE:
        shares = by_rows(max(shares[0], tiles(data, RESIDENT))), shares[1]
    values = {name: choices_of_knob[0] for name, choices_of_knob in choices.items()}
    return values | {
        "tiles_down": 2, "tiles_across": 2, "row_shares": shares[0], "column_shares": shares[1],
        "rows_inside": int(by_columns),
    }  # fmt: skip


def _largest_choice(choices: Sequence[int], wanted: int) -> int:
    """Return the largest choice that is at most `wanted`, or at most 1 if `wanted` is smaller."""
    return max(value for value in choices if value <= max(1, wanted))


_Share = tuple[Expression, int, int]
"""One share of a dimension: index of the share, number of shares, and number of blocks that the
shares divide."""
_Task = tuple[Expression, _Share, _Share]
"""One parallel task: index of the matrix, share of the rows, and share of the columns."""
_BlockPlace = tuple[Expression, tuple[Expression, Expression], Expression]
"""Position of a block of the result: index of the matrix, (line, first row) of the block, and index
of the block of columns. A line is a row of an image, or the whole matrix."""


class TileOperands(Protocol):
    """Protocol of the operands of a matrix product with tile instructions.

    Each operator implements it: the protocol says where tiles are loaded from and how results are
    stored.

    Attributes:
        numbers: element type of the tiles.
        data: buffer of the copied data.
        weights: buffer of 32-bit words, which contains the tiles. For integers, minus the sum of
            the weights of each column precedes the tiles (`pack_columns`).
        row: distance in `data` from one row of a tile to the next, in values.
        own_weights: whether each matrix has its own weights.
    """

    def take(self) -> None:
        """Declare the function's parameters."""

    def pack(self) -> None:
        """Add loops that copy the data to the layout from which tiles are loaded.

        If the second operand is an activation, it is copied as well. Constant weights were packed
        when the library was built.
        """

    def step(
        self, matrix: Expression, place: tuple[Expression, Expression], at: Expression
    ) -> Expression:
        """Return the index in `data` at which the first row of a block begins.

        Args:
            matrix: number of the product.
            place: line and first row of the block.
            at: number of the step along the depth.
        """

    def finish(
        self,
        sums: TirBuffer,
        matrix: Expression,
        place: tuple[Expression, Expression],
        across: Expression,
    ) -> None:
        """Add loops that apply the epilogue to a block's sums and store the output.

        Args:
            sums: the block's sums, a buffer of shape (rows, columns).
            matrix: number of the product.
            place: line and first row of the block.
            across: number of the block of columns.
        """

    numbers: TileNumbers
    data: TirBuffer
    weights: TirBuffer
    row: int
    own_weights: bool


def product_function(
    b: TileBlocks, v: KnobValues, spec: CpuSpec, operands: TileOperands
) -> PrimFunc:
    """Build the TensorIR function of a product.

    Its loops are written explicitly, so that the function needs no schedule.

    Args:
        b: the blocks.
        v: the config, by knob name.
        spec: the processor.
        operands: the operands.
    """
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        operands.take()
        operands.pack()
        _build_tasks(b, v, spec, operands)
    return builder.get()


def _build_tasks(b: TileBlocks, v: KnobValues, spec: CpuSpec, operands: TileOperands) -> None:
    """Add the parallel loop over tasks to the function, with the loops of each task.

    A task computes the blocks of one share of the rows and one share of the columns of a matrix.
    """
    by_rows, by_columns = v["row_shares"], v["column_shares"]
    unit = tile_unit(operands.numbers, spec)(operands.numbers, b.down, b.across, b.height, b.words)
    with T.parallel(0, b.matrices * by_rows * by_columns) as chunk:
        matrix, row, column = split_index(chunk, b.matrices, by_rows, by_columns)
        rows = row, by_rows, b.row_blocks
        columns = column, by_columns, b.column_blocks
        unit.begin()
        pieces = _pieces(b, b.row_blocks // by_rows) if v["rows_inside"] else 1
        if pieces > 1:
            _build_pieces(b, operands, unit, (matrix, rows, columns), pieces)
        else:
            loops = [loop_within(*rows), loop_within(*columns)]
            order = loops[::-1] if v["rows_inside"] else loops
            with order[0] as outer, order[1] as inner:
                down, across = (inner, outer) if v["rows_inside"] else (outer, inner)
                at = matrix, b.row_block(down), across
                unit.clear()
                _build_steps(b, operands, unit, at, (0, b.steps))
                operands.finish(unit.sums(), *at)
        unit.end()


def _pieces(b: TileBlocks, blocks: int) -> int:
    """Return the number of pieces into which a task cuts the depth; 1 if cutting does not pay off.

    Args:
        b: the blocks.
        blocks: number of blocks of rows per task.
    """
    weights = 4 * b.steps * b.words * b.block_columns
    return min(tiles(weights, NEAR), b.steps) if blocks >= FEWEST_BLOCKS else 1


def _build_pieces(
    b: TileBlocks, operands: TileOperands, unit: TileUnit, at: _Task, pieces: int
) -> None:
    """Build the loops of a task whose depth is cut into pieces.

    Each piece is multiplied by all blocks of rows before the next piece begins. The sums are stored
    between the pieces.

    Args:
        b: the blocks.
        operands: the operands.
        unit: builder of the instructions that multiply tiles.
        at: matrix, share of the rows and share of the columns of the task.
        pieces: number of pieces.
    """
    matrix, rows, columns = at
    block_size = b.block_rows * b.block_columns
    stored_sums = T.alloc_buffer(
        (tiles(b.row_blocks, rows[1]) * block_size,), operands.numbers.sums
    )
    with loop_within(*columns) as across, T.serial(0, pieces) as piece, loop_within(*rows) as down:
        place = (down - share(*rows)[0]) * block_size
        block_place = matrix, b.row_block(down), across
        with T.If(piece == 0):
            with T.Then():
                unit.clear()
            with T.Else():
                unit.resume(stored_sums, place)
        _build_steps(b, operands, unit, block_place, share(piece, pieces, b.steps))
        with T.If(piece < pieces - 1):
            with T.Then():
                unit.keep(stored_sums, place)
            with T.Else():
                operands.finish(unit.sums(), *block_place)


def _build_steps(
    b: TileBlocks,
    operands: TileOperands,
    unit: TileUnit,
    at: _BlockPlace,
    steps: tuple[Expression, Expression],
) -> None:
    """Build the loop that adds the products of some steps of the depth to a block's sums.

    Args:
        b: the blocks.
        operands: the operands.
        unit: builder of the instructions that multiply tiles.
        at: matrix, (line, first row) and number of the block of columns.
        steps: the first step, and the step after the last.
    """
    matrix, place, across = at
    tile = b.words * TILE * b.across
    with T.serial(*steps) as step:
        data = operands.step(matrix, place, step)
        places = [data + i * b.height * operands.row for i in range(b.down)]
        weights = (
            (matrix * b.column_blocks if operands.own_weights else 0) + across
        ) * b.steps + step
        start = first_word(b, operands.numbers) + weights * tile
        unit.step(operands.data, places, operands.row, operands.weights, start)


def first_word(b: TileBlocks, numbers: TileNumbers) -> int:
    """Return the index, in 32-bit words, at which the tiles begin in a buffer of packed weights.

    Args:
        b: the blocks.
        numbers: element type of the tiles.
    """
    return 0 if numbers is BFLOAT16 else b.column_blocks * b.block_columns


def weight_words(b: TileBlocks, numbers: TileNumbers) -> int:
    """Return the number of 32-bit words of a matrix's packed weights.

    Args:
        b: the blocks.
        numbers: element type of the tiles.
    """
    return first_word(b, numbers) + b.column_blocks * b.steps * b.words * TILE * b.across


def pack_columns(matrix: Array, b: TileBlocks, numbers: TileNumbers) -> NDArray[np.int32]:
    """Pack weights for tiles.

    The words are ordered by blocks of columns, steps of the depth, tiles of a block, words of a
    step, and columns of a tile. For integers, they are preceded by minus the sum of each column,
    which serves to correct for the zero point of the data.

    Args:
        matrix: the weights, shape (depth, columns).
        b: the blocks.
        numbers: element type of the tiles.

    Returns:
        Int32 array of shape (words,).
    """
    width = b.block_columns
    if b.columns < width:
        matrix = np.pad(matrix, ((0, 0), (0, width - b.columns)))
    starts = tile_starts(matrix.shape[1], width)[:, None] + np.arange(width)
    by_block = matrix[:, starts].reshape(b.steps, numbers.each * b.words, -1, b.across, TILE)
    words = numbers.pack_words(by_block.transpose(2, 0, 3, 1, 4)).ravel()
    if numbers is BFLOAT16:
        return words
    sums = -matrix.astype(np.int32).sum(axis=0, dtype=np.int32)
    return np.concatenate([sums[starts].ravel(), words])


def correct_zero_point(
    b: TileBlocks,
    operands: TileOperands,
    value: Expression,
    zero: Expression,
    across: Expression,
    column: Expression,
) -> Expression:
    """Correct a sum of products for the zero point of the data.

    The zero point times the sum of the column's weights is subtracted.

    Args:
        b: the blocks.
        operands: the operands.
        value: the sum of products, an int32.
        zero: the zero point, an int32.
        across: number of the block of columns.
        column: column within the block.

    Returns:
        The corrected sum.
    """
    weights = operands.weights[across * b.block_columns + column]
    return wrapping_sum(value, weights * zero)
