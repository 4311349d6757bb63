"""Kernels for matrix products with tile instructions.

They compute dense layers in bfloat16 and int8, and products of two activations in bfloat16.
"""

from __future__ import annotations

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import amx_product
from tilewright.targets.cpu.kernels.amx_product import (
    TileBlocks,
    blocks_of,
    correct_zero_point,
    pack_columns,
    product_function,
    weight_words,
)
from tilewright.targets.cpu.kernels.amx_tiles import TILE, WORD, numbers_of, pair_bfloat16
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Arguments, split_index, tiles
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")


class MatmulTiles:
    """`Kernel` for `dense` in bfloat16 and int8, and for `batch_matmul` in bfloat16.

    For `dense`, data have shape (rows, in) and the output (rows, out). For `batch_matmul`, data
    have shape (batch, rows, depth), the second operand (batch, depth, columns) and the output
    (batch, rows, columns).
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether the kernel computes this workload.

        The matrices of a batched product must fill a tile, because copying smaller matrices takes
        longer than multiplying them with vectors.

        Args:
            workload: the workload.
        """
        if workload.operator == "batch_matmul":
            rows = _sizes(workload)[1]
            return workload.dtype == "bfloat16" and min(rows, workload.out_channels) >= TILE
        return workload.operator == "dense" and workload.dtype in ("bfloat16", "int8")

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a product with tile instructions: see `amx_product.knobs`.

        Args:
            workload: the workload.
            spec: the processor.
        """
        rows = _sizes(workload)[1]
        return amx_product.knobs(tiles(rows, TILE), workload.out_channels)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        space = self.knobs(workload, spec)
        b, _ = product_of(workload)
        column = b.steps * b.words * WORD
        sizes = b.rows * column, column * b.columns
        return amx_product.baseline_values(space, b, spec, sizes)

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (rows, in) or (batch, rows, depth)."""
        return (*_batch_axes(workload), _sizes(workload)[1], workload.in_channels)

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (rows, out) or (batch, rows, columns)."""
        return (*_batch_axes(workload), _sizes(workload)[1], workload.out_channels)

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, so that `schedule` has nothing to do.
        """
        b = _blocks(workload, values)
        return product_function(b, values, spec, _Matrices(workload, spec, b))

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Return `function` unchanged, because `define` has already written its loops."""
        return function

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack the weights of a dense layer for tiles: see `pack_columns`.

        The second operand of a batched product is returned unchanged, because the kernel packs it.

        Args:
            weights: shape (out, in) or (out, in, 1, 1) for a dense layer, (batch, depth, columns)
                for a batched product.
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            Int32 array of shape (words,), or the second operand of shape (batch, depth, columns).
        """
        w = workload
        if w.operator == "batch_matmul":
            return weights.reshape(w.batch, w.in_channels, w.out_channels)
        b = _blocks(w, values)
        matrix = weights.reshape(w.out_channels, w.in_channels).T
        numbers = numbers_of(w)
        missing = b.steps * b.words * numbers.each - w.in_channels
        return pack_columns(np.pad(matrix, ((0, missing), (0, 0))), b, numbers)


def product_of(workload: Workload) -> tuple[TileBlocks, int]:
    """Return the matrix product that computes a workload with tile instructions.

    Args:
        workload: a dense layer or a batched product.

    Returns:
        The sizes of the product, cut into blocks of 2 × 2 tiles, and the number of values that the
        kernel copies first.
    """
    b = _blocks(workload, {"tiles_down": 2, "tiles_across": 2})
    depth = b.steps * b.words * numbers_of(workload).each
    copied = b.matrices * b.rows * depth
    if workload.operator == "batch_matmul":
        copied += b.matrices * b.columns * depth
    return b, copied


def _batch_axes(w: Workload) -> tuple[int, ...]:
    """Return the leading axis of a batched product's shape, (batch,), or () for a dense layer."""
    return (w.batch,) if w.operator == "batch_matmul" else ()


def _sizes(w: Workload) -> tuple[int, int]:
    """Return the number of matrices that a workload multiplies, and the rows of each matrix."""
    return (w.batch, w.height) if w.operator == "batch_matmul" else (1, w.batch)


def _blocks(w: Workload, v: KnobValues) -> TileBlocks:
    matrices, rows = _sizes(w)
    numbers = numbers_of(w)
    step_numbers = min(numbers.in_row, numbers.whole_words(w.in_channels))
    depth = tiles(w.in_channels, step_numbers), step_numbers // numbers.each
    return blocks_of(matrices, 1, rows, w.out_channels, depth, v)


class _Matrices:
    """Operands of a matrix product with tile instructions: data, weights and output.

    The class implements `TileOperands`, which says where tiles are loaded from and how results are
    stored.
    """

    def __init__(self, w: Workload, spec: CpuSpec, b: TileBlocks) -> None:
        self.w, self.b, self.spec, self.numbers = w, b, spec, numbers_of(w)
        self.own_weights = w.operator == "batch_matmul"
        self.row = self.numbers.each * b.words
        self.rows = (*_batch_axes(w), b.rows)

    def take(self) -> None:
        """Declare the data, weights, epilogue operands and output as parameters of the function."""
        w, b = self.w, self.b
        self.size = weight_words(b, self.numbers)
        activation_shape = (w.batch, w.in_channels, w.out_channels)
        weights = (activation_shape, "float32") if self.own_weights else ((self.size,), "int32")
        self.a = Arguments(
            w, (*self.rows, w.in_channels), weights[0], (b.columns,), (*self.rows, b.columns),
            weights[1],
        )  # fmt: skip

    def pack(self) -> None:
        """Copy the data in the order in which tiles are loaded.

        The order is: matrices, steps of the depth (each as long as one tile), rows, values of a
        step. If the second operand is an activation, it is packed as well.
        """
        b, width = self.b, self.row
        self.data = T.alloc_buffer((b.matrices * b.steps * b.rows * width,), self.numbers.kind)
        with T.parallel(0, b.matrices * b.steps) as index, T.serial(0, b.rows) as row:
            matrix, step = split_index(index, b.matrices, b.steps)
            place = [matrix, row] if self.own_weights else [row]
            start = (index * b.rows + row) * width
            self._copy_row(place, step, start)
        if self.own_weights:
            self._pack_weights()
        else:
            self.weights = self.a.weights

    def _copy_row(self, place: list[Expression], step: Expression, start: Expression) -> None:
        """Add loops that copy the values of one row that belong to one step of the depth.

        Args:
            place: indices of the row in the data.
            step: number of the step along the depth.
            start: index in the copy at which the values are stored.
        """
        width, depth = self.row, self.w.in_channels
        last_numbers = depth - (self.b.steps - 1) * width

        def move(first: Expression, count: int) -> None:
            for begin in range(0, count, TILE):
                lanes = min(TILE, count - begin)
                with T.vectorized(0, lanes) as i:
                    value = self.a.data[(*place, first + begin + i)]
                    value = self.numbers.to_tile_form(value, lanes, self.spec)
                    T.buffer_store(self.data, value, [start + begin + i])
            if count < width:
                with T.vectorized(0, width - count) as i:
                    zero = tirx.const(0, self.numbers.kind)
                    T.buffer_store(self.data, zero, [start + count + i])

        if last_numbers == width:
            move(step * width, width)
        elif self.b.steps == 1:
            move(0, last_numbers)
        else:
            with T.If(step < self.b.steps - 1):
                with T.Then():
                    move(step * width, width)
                with T.Else():
                    move(depth - last_numbers, last_numbers)

    def _pack_weights(self) -> None:
        """Add loops that pack the second operand of a batched product, which is an activation.

        The packed values are ordered by matrices, blocks of columns, steps of the depth, tiles of a
        block, words, and columns of a tile.
        """
        b = self.b
        self.weights = T.alloc_buffer((b.matrices * self.size,), "int32")
        with T.parallel(0, b.matrices * b.column_blocks * b.steps) as index:
            matrix, block, step = split_index(index, b.matrices, b.column_blocks, b.steps)
            first = b.first_column(block)
            with T.serial(0, b.words) as word:
                k = (step * b.words + word) * self.numbers.each
                for tile in range(b.across):
                    start = ((index * b.across + tile) * b.words + word) * TILE
                    left = min(TILE, b.columns - tile * TILE)
                    self._pack_pair(start, (matrix, k, first + tile * TILE), max(left, 0))

    def _pack_pair(
        self, start: Expression, place: tuple[Expression, Expression, Expression], count: int
    ) -> None:
        """Add statements that pack two adjacent rows of the second operand into 32-bit words.

        Args:
            start: index in the packed operand at which the words are stored.
            place: matrix, first of the two rows, and first column.
            count: number of columns that exist. Rows and columns beyond the operand's end are
                packed as zeros.
        """
        depth, (matrix, k, column) = self.w.in_channels, place
        zero = tirx.const(0, "float32")

        def number(row: Expression, i: Expression) -> Expression:
            value = self.a.weights[matrix, tirx.min(row, depth - 1), column + i]
            if depth == self.b.steps * self.b.words * self.numbers.each:
                return self.a.weights[matrix, row, column + i]
            return tirx.Select(row < depth, value, zero)

        if count:
            with T.vectorized(0, count) as i:
                value = pair_bfloat16(number(k, i), number(k + 1, i), count, self.spec)
                T.buffer_store(self.weights, value, [start + i])
        if count < TILE:
            with T.vectorized(0, TILE - count) as i:
                T.buffer_store(self.weights, tirx.const(0, "int32"), [start + count + i])

    def step(
        self, matrix: Expression, place: tuple[Expression, Expression], at: Expression
    ) -> Expression:
        """Return the index in the copied data at which a block of the product begins.

        Args:
            matrix: index of the product.
            place: line (always 0) and first row of the block.
            at: index of the step along the depth.
        """
        return ((matrix * self.b.steps + at) * self.b.rows + place[1]) * self.row

    def finish(
        self,
        sums: TirBuffer,
        matrix: Expression,
        place: tuple[Expression, Expression],
        across: Expression,
    ) -> None:
        """Add loops that apply the epilogue to accumulators: see `TileOperands.finish`."""
        b, column = self.b, self.b.first_column(across)
        width = min(b.block_columns, b.columns)
        with T.serial(0, b.block_rows) as r:
            row = [matrix, place[1] + r] if self.own_weights else [place[1] + r]
            for at in range(0, width, TILE):
                with T.vectorized(0, min(TILE, width - at)) as i:
                    value = sums[r, at + i]
                    if self.w.dequantises:
                        value = correct_zero_point(b, self, value, self.a.zero, across, at + i)
                    self.a.finish(value, (*row, column + at + i), (column + at + i,))
