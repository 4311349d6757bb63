"""Writes products of matrices by tiles of AMX: what convolutions and dense layers have in common.

    parallel                          data copied to where tiles can be loaded from
    parallel (matrix, shares of the rows, shares of the columns)
      blocks of rows, blocks of columns       or the other way round
        steps of the depth
          tiles down × across
        bias, residual, clip          of the block, while it is in the first cache

Where a block of columns has more weights than the first cache, many blocks of rows multiply a piece
of the depth before the next:

      blocks of columns, pieces of the depth, blocks of rows
        sums so far, steps of the piece, sums or what comes of them

Blocks overlap at the end, see `targets.cpu.kernels.loops`.
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
from tilewright.targets.cpu.kernels.loops import share, split_index, tile_start, tiles, within
from tilewright.targets.cpu.kernels.tile_arithmetic import SECOND_CACHE, SHARES, even_parts
from tilewright.targets.cpu.spec import CpuSpec

tirx = lazy_module("tvm.tirx")
ir_builder = lazy_module("tvm.script.ir_builder")
T = lazy_module("tvm.script.ir_builder.tirx")

NEAR = 3 << 13
"""Bytes of the weights of a block of columns that stay in the first cache: half of the 48 KiB of a
Xeon with AMX. With both operands in the second cache, tiles reached 1,500 of 3,000 GFLOP/s (`python
-m benchmarks.cpu.peak --precision bf16`)."""
RESIDENT = 5 << 18
"""Bytes of the rows that stay in the second cache, of 2 MiB (measured as `NEAR`)."""
FEWEST_BLOCKS = 4
"""Of rows that read the same weights, for which sums are worth keeping (measured as `NEAR`)."""
SUMS = 4
"""Tiles of sums at most: those of the operands are held beside."""


@dataclass(frozen=True)
class TileBlocks:
    """How `matrices` products of `rows` × depth by depth × `columns` are cut, each on its own rows
    in `lines` (1, or rows of an image that tiles do not run across): `down` × `across` tiles of
    `height` rows; `steps` of `words` of the depth."""

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
        """Rows of a block."""
        return self.down * self.height

    @property
    def block_columns(self) -> int:
        """Columns of a block."""
        return self.across * TILE

    @property
    def row_blocks(self) -> int:
        """Of a matrix."""
        return self.lines * tiles(self.rows, self.block_rows)

    @property
    def column_blocks(self) -> int:
        """Of a matrix."""
        return tiles(self.columns, self.block_columns)

    def row_block(self, index: Expression) -> tuple[Expression, Expression]:
        """The line of a block, and its first row."""
        if self.lines == 1:
            return 0, tile_start(index, self.rows, self.block_rows)
        each = tiles(self.rows, self.block_rows)
        return tirx.indexdiv(index, each), tile_start(
            tirx.indexmod(index, each), self.rows, self.block_rows
        )

    def first_column(self, index: Expression) -> Expression:
        """Of a block."""
        if self.columns < self.block_columns:
            return 0
        return tile_start(index, self.columns, self.block_columns)


def blocks_of(
    matrices: int, lines: int, rows: int, columns: int, depth: tuple[int, int], v: KnobValues
) -> TileBlocks:
    """Of a config; `depth` is (steps, words of a step). Raises `DoesNotApply`."""
    down = min(v["tiles_down"], rows)
    across = min(v["tiles_across"], tiles(columns, TILE))
    if down * across > SUMS:
        raise DoesNotApply(f"{down} × {across} tiles of sums, over {SUMS}")
    height = tiles(even_parts(rows, down * TILE), down)
    if down * height > rows:  # the last block must not begin before the first row
        down, height = 1, min(TILE, rows)
    return TileBlocks(matrices, lines, rows, columns, *depth, down, across, height)


def knobs(row_blocks: int, columns: int) -> tuple[Knob, ...]:
    """The decisions of a schedule, for at most so many blocks of rows."""
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
    """A good config without any measurement, two tiles by two: the larger operand, of `bytes_of`
    (data, weights) of a matrix, is read once and shared between the threads. Rows that are read
    for every block of columns stay in the second cache, a share of them at a time."""
    choices = {knob.name: knob.values for knob in space}
    data, weights = bytes_of
    by_columns = weights > data
    threads = tiles(spec.threads, b.matrices)

    def by_rows(wanted: int) -> int:
        return _nearest(choices["row_shares"], min(wanted, b.row_blocks))

    shares = by_rows(threads), _nearest(choices["column_shares"], min(threads, b.column_blocks))
    if by_columns and shares[1] >= shares[0]:
        shares = 1, shares[1]
    elif shares[0] >= shares[1]:
        shares = shares[0], 1
    else:
        shares = 1, shares[1]
    if by_columns and data > SECOND_CACHE:
        shares = by_rows(max(shares[0], tiles(data, RESIDENT))), shares[1]
    values = {name: found[0] for name, found in choices.items()}
    return values | {
        "tiles_down": 2, "tiles_across": 2, "row_shares": shares[0], "column_shares": shares[1],
        "rows_inside": int(by_columns),
    }  # fmt: skip


def _nearest(choices: Sequence[int], wanted: int) -> int:
    """The largest that is no larger than `wanted`, at least 1."""
    return max(value for value in choices if value <= max(1, wanted))


_Share = tuple[Expression, int, int]
"""The number of a share, how many there are, and of how many blocks."""
_Task = tuple[Expression, _Share, _Share]
"""A matrix, its share of the rows and its share of the columns."""
_BlockPlace = tuple[Expression, tuple[Expression, Expression], Expression]
"""A matrix, the line and the first row of a block, and the number of its block of columns."""


class TileOperands(Protocol):
    """What an operator says of its operands while its function is being written."""

    def take(self) -> None:
        """Writes the parameters."""

    def pack(self) -> None:
        """Writes loops that put data, and weights that are no constants, where tiles are loaded
        from."""

    def step(
        self, matrix: Expression, place: tuple[Expression, Expression], at: Expression
    ) -> Expression:
        """Where the first row of a block's data lies for step `at`; `place` is the block's line and
        first row."""

    def finish(
        self,
        sums: TirBuffer,
        matrix: Expression,
        place: tuple[Expression, Expression],
        across: Expression,
    ) -> None:
        """Writes what comes of a block's `sums`, a buffer (rows, columns); `across` is the number
        of its block of columns."""

    numbers: TileNumbers
    data: TirBuffer
    weights: TirBuffer
    """Words: of each column, where integers are multiplied, minus the sum of its weights
    (`pack_columns`); then tiles."""
    row: int
    """Numbers from a row of a tile of data to the next."""
    own_weights: bool
    """Whether each matrix has weights of its own."""


def product_function(
    b: TileBlocks, v: KnobValues, spec: CpuSpec, operands: TileOperands
) -> PrimFunc:
    """The function of TensorIR with all loops written out, which are their own schedule."""
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        operands.take()
        operands.pack()
        _write(b, v, spec, operands)
    return builder.get()


def _write(b: TileBlocks, v: KnobValues, spec: CpuSpec, operands: TileOperands) -> None:
    """The tasks and the loops of each."""
    by_rows, by_columns = v["row_shares"], v["column_shares"]
    unit = tile_unit(operands.numbers, spec)(operands.numbers, b.down, b.across, b.height, b.words)
    with T.parallel(0, b.matrices * by_rows * by_columns) as chunk:
        matrix, row, column = split_index(chunk, b.matrices, by_rows, by_columns)
        rows = row, by_rows, b.row_blocks
        columns = column, by_columns, b.column_blocks
        unit.begin()
        pieces = _pieces(b, b.row_blocks // by_rows) if v["rows_inside"] else 1
        if pieces > 1:
            _by_pieces(b, operands, unit, (matrix, rows, columns), pieces)
        else:
            loops = [within(*rows), within(*columns)]
            order = loops[::-1] if v["rows_inside"] else loops
            with order[0] as outer, order[1] as inner:
                down, across = (inner, outer) if v["rows_inside"] else (outer, inner)
                at = matrix, b.row_block(down), across
                unit.clear()
                _steps(b, operands, unit, at, (0, b.steps))
                operands.finish(unit.sums(), *at)
        unit.end()


def _pieces(b: TileBlocks, blocks: int) -> int:
    """How many the depth is cut into for so many blocks of rows."""
    weights = 4 * b.steps * b.words * b.block_columns
    return min(tiles(weights, NEAR), b.steps) if blocks >= FEWEST_BLOCKS else 1


def _by_pieces(
    b: TileBlocks, operands: TileOperands, unit: TileUnit, at: _Task, pieces: int
) -> None:
    """The loops of a task (matrix, share of the rows, share of the columns) whose depth is cut into
    pieces."""
    matrix, rows, columns = at
    each = b.block_rows * b.block_columns
    kept = T.alloc_buffer((tiles(b.row_blocks, rows[1]) * each,), operands.numbers.sums)
    with within(*columns) as across, T.serial(0, pieces) as piece, within(*rows) as down:
        place = (down - share(*rows)[0]) * each
        where = matrix, b.row_block(down), across
        with T.If(piece == 0):
            with T.Then():
                unit.clear()
            with T.Else():
                unit.resume(kept, place)
        _steps(b, operands, unit, where, share(piece, pieces, b.steps))
        with T.If(piece < pieces - 1):
            with T.Then():
                unit.keep(kept, place)
            with T.Else():
                operands.finish(unit.sums(), *where)


def _steps(
    b: TileBlocks,
    operands: TileOperands,
    unit: TileUnit,
    at: _BlockPlace,
    steps: tuple[Expression, Expression],
) -> None:
    """Products of a block, of `steps` (begin, end)."""
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
    """Where tiles of weights begin."""
    return 0 if numbers is BFLOAT16 else b.column_blocks * b.block_columns


def weight_words(b: TileBlocks, numbers: TileNumbers) -> int:
    """Of all packed weights of a matrix."""
    return first_word(b, numbers) + b.column_blocks * b.steps * b.words * TILE * b.across


def pack_columns(matrix: Array, b: TileBlocks, numbers: TileNumbers) -> NDArray[np.int32]:
    """(numbers of the depth, columns) → (words,): see `TileOperands.weights`; then blocks of
    columns, steps, tiles of a block, words of a step, columns of a tile."""
    width = b.block_columns
    if b.columns < width:
        matrix = np.pad(matrix, ((0, 0), (0, width - b.columns)))
    starts = tile_starts(matrix.shape[1], width)[:, None] + np.arange(width)
    by_block = matrix[:, starts].reshape(b.steps, numbers.each * b.words, -1, b.across, TILE)
    words = numbers.packed(by_block.transpose(2, 0, 3, 1, 4)).ravel()
    if numbers is BFLOAT16:
        return words
    sums = -matrix.astype(np.int32).sum(axis=0, dtype=np.int32)
    return np.concatenate([sums[starts].ravel(), words])


def corrected(
    b: TileBlocks,
    operands: TileOperands,
    value: Expression,
    zero: Expression,
    across: Expression,
    column: Expression,
) -> Expression:
    """A sum of products less the zero point of the data times the weights; `column` is its place
    in the block of columns `across`."""
    weights = operands.weights[across * b.block_columns + column]
    return wrapping_sum(value, weights * zero)
