"""Kernel for dense layers in int8, with dot-product instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.dense import Dense, tile_starts
from tilewright.targets.cpu.kernels.epilogue import data_zero, row_inputs, with_row_epilogue
from tilewright.targets.cpu.kernels.int8_dot_product import (
    FOURS,
    SIGNED_FOURS,
    TWOS,
    DotProduct,
    check_dots,
    dot_product,
    vector,
    vector_of,
    wrapping_sum,
)
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Nest, tile_start, tiles
from tilewright.targets.cpu.kernels.matrix_product import GemmShape, Share, multiply
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")


class DenseInt8(Dense):
    """`Kernel` for `dense` in int8. Data have shape (rows, in), the output (rows, out)."""

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a dense layer in int8."""
        return workload.operator == "dense" and workload.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a dense layer's matrix product.

        The knob `pack_data`, which selects whether a kernel packs the data, is fixed to 1 if the
        dot-product instruction needs packed data: see `must_pack`.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor has no dot products.
        """
        check_dots(workload, spec)
        pack = (1,) if must_pack(workload, dot_product(spec)) else (0, 1)
        return tuple(
            replace(knob, values=pack) if knob.name == "pack_data" else knob
            for knob in GemmShape.for_workload(workload, spec).knobs(packed=True)
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        shape, products = GemmShape.for_workload(workload, spec), dot_product(spec).products
        float_values = shape.baseline_values(spec, packed=True, products=products)
        return {**float_values, "pack_data": 1}

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function."""
        w, p, dot = workload, GemmShape.for_workload(workload, spec), dot_product(spec)
        width, out = p.width(values), self.out_shape(workload, spec)
        data = te.placeholder(self.data_shape(w, spec), w.data_dtype, name="data")
        shape = share_of(dot).weights_shape(p, values)
        weights = te.placeholder(shape, "int32", name="weights")
        inputs = row_inputs(w, out)
        k = te.reduce_axis((0, w.in_channels), "k")

        def product(row: Expression, column: Expression) -> Expression:
            tile = tirx.indexdiv(column, width)
            tile_column = column - tirx.min(tile * width, w.out_channels - width)
            vectors, lane = tirx.indexdiv(tile_column, p.lanes), tirx.indexmod(tile_column, p.lanes)
            weight = dot.weight_at(weights, tile, k, vectors * vector_of(p.lanes) + lane)
            number = tirx.Cast("int32", data[row, k]) - data_zero(inputs)
            return te.sum(number * weight, axis=k)

        result = with_row_epilogue(w, te.compute(out, product, name="sums"), inputs)
        return te.create_prim_func([data, weights, *inputs.values(), result])

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, because TVM's `Schedule` cannot express overlapping tiles.
        `function`, the unscheduled kernel from `define`, is ignored.
        """
        share = share_of(dot_product(spec))
        return multiply(workload, GemmShape.for_workload(workload, spec), values, True, share)

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack weights for dot products: see `DotProduct.pack`.

        Zeros fill up incomplete vectors.

        Args:
            weights: shape (out, in).
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            Int32 array of shape (tiles, 1 + steps, lanes of a tile).
        """
        w, p, dot = workload, GemmShape.for_workload(workload, spec), dot_product(spec)
        starts = tile_starts(w.out_channels, p.width(values))
        columns = starts[:, None] + np.arange(p.width(values))
        lanes, count = vector_of(p.lanes), values["tile_vectors"]
        numbers = dot.steps(w.in_channels) * dot.numbers
        padded = np.zeros((len(starts), numbers, count, lanes), np.int16)
        by_tile = weights.reshape(w.out_channels, w.in_channels)[columns].transpose(0, 2, 1)
        padded[:, : w.in_channels, :, : p.lanes] = by_tile.reshape(
            *by_tile.shape[:2], count, p.lanes
        )
        return dot.pack(padded.reshape(*padded.shape[:2], count * lanes), w.dequantises)


def must_pack(w: Workload, dot: DotProduct) -> bool:
    """Return whether a kernel has to pack the data before it can multiply them.

    This is the case if the input channels do not fill whole dot products, or if the instruction
    multiplies 16-bit numbers, to which the data have to be widened.

    Args:
        w: the workload.
        dot: the dot-product instruction.
    """
    return w.in_channels % dot.numbers > 0 or dot is TWOS


class DotShare(Share):
    """Version of `Share`, the builder of one parallel task of a matrix product, for int8.

    A task computes part of the rows and columns of a matrix product. The depth is the dimension
    over which products are summed. At each step of the depth, one dot-product instruction per
    vector of accumulators multiplies two or four inputs of a row by a vector of packed weights. The
    packed weights also contain the initial values of the accumulators.
    """

    sums_type = "int32"
    dot = FOURS

    @staticmethod
    def weights_shape(p: GemmShape, v: KnobValues) -> tuple[int, ...]:
        """Return the shape of the packed weights: (tiles of columns, 1 + steps, lanes of a tile).

        The elements are 32-bit words. The additional first step holds the initial accumulators.

        Args:
            p: sizes of the product.
            v: the config, as knob values by knob name.
        """
        return tiles(p.columns, p.width(v)), 1 + p.depth, v["tile_vectors"] * vector_of(p.lanes)

    def vector_of(self, p: GemmShape) -> int:
        """Return the number of int32 accumulators per vector.

        Args:
            p: sizes of the product.
        """
        return vector_of(p.lanes)

    def begin(self, column: Expression, at: Expression) -> Expression:
        """Return the initial value of an accumulator, which is read from the packed weights.

        Args:
            column: index of the tile of columns.
            at: index of the accumulator within a row of the tile.
        """
        buffer, place = self._packed_tile(column)
        return self.dot.begin(self.a.workload, buffer[(*place, 0, at)], self.a.zero, 1)

    def _packed_tile(self, column: Expression) -> tuple[TirBuffer, list[Expression]]:
        """Return the buffer of packed weights, and the leading index that selects a tile in it.

        The buffer is the function's parameter if the weights were packed in advance. Otherwise it
        is the copy that this task has packed.

        Args:
            column: index of the tile of columns.
        """
        if self.weights is None:
            return self.a.weights, [column]
        return self.weights, [column - self.columns[0]]

    def plus(self, one: Expression, other: Expression) -> Expression:
        """Add two int32 accumulators with wrap-around."""
        return wrapping_sum(one, other)

    def number(self, row: Expression, r: Expression, k: Expression) -> Expression:
        """Return the two or four inputs of one row that a dot product takes, as one int32.

        Args:
            row: index of the tile of rows.
            r: row within the tile.
            k: index of the step of the depth, which is one dot product long.
        """
        w, data, place = self.a.workload, self.a.data, [*self.lead, self.first_row(row) + r]
        step_numbers, zero = self.dot.numbers, self.a.zero
        if w.in_channels % step_numbers == 0:
            return self.dot.loaded(w, data, [*place, k * step_numbers], zero)
        return self.dot.gather_numbers(w, data, [*place, 0], zero, k * step_numbers, w.in_channels)

    def add(
        self, sums: list[TirBuffer], row: Expression, column: Expression, k: Expression
    ) -> None:
        """Add the products of one step of the depth to the accumulators of a register tile.

        Args:
            sums: one buffer of accumulators per row of the tile.
            row: index of the tile of rows.
            column: index of the tile of columns.
            k: index of the step of the depth.
        """
        packed, place = self._packed_tile(column)
        for r, buffer in enumerate(sums):
            step = self.left(row, r, k)
            for c in range(self.v["tile_vectors"]):
                at = c * self.vector
                weights = vector(packed, [*place, 1 + k, at], self.vector)
                self.dot.add(buffer, at, step, weights, self.vector)

    def pack_weights(self) -> TirBuffer:
        """Add loops that pack the second operand, an activation, for the columns of this task.

        Returns:
            The packed operand, an int32 buffer of shape (tiles of columns, 1 + steps, lanes of a
            tile). Index 0 of the second axis holds the initial accumulators.
        """
        lanes, vectors, step_numbers = self.p.lanes, self.v["tile_vectors"], self.dot.numbers
        depth, width = int(self.a.weights.shape[-2]), vectors * self.vector
        packed = T.alloc_buffer((self.most_columns, 1 + self.p.depth, width), "int32")
        zero, ones = tirx.const(0, "int32"), tirx.const(self.dot.unit_step, "int32")
        flip = self.dot.flip(self.a.workload.data_dtype)
        with T.serial(*self.columns) as column:
            tile_index = column - self.columns[0]
            weight_sums = T.alloc_buffer((width,), "int32")
            with Nest.tile(vectors, self.vector) as (c, i):
                T.buffer_store(weight_sums, zero, [c * self.vector + i])

            def step(k: Expression, numbers: int) -> None:
                with Nest.tile(vectors, lanes) as (c, i):
                    start = tile_start(column, self.p.columns, self.width)
                    source = start + c * lanes + i
                    word_bits = zero
                    for number in range(numbers):
                        value = self.a.weights[(*self.lead, k * step_numbers + number, source)]
                        word_bits = tirx.bitwise_or(word_bits, self.dot.place_number(value, number))
                    T.buffer_store(packed, word_bits, [tile_index, 1 + k, c * self.vector + i])
                for c in range(vectors if flip else 0):
                    at = c * self.vector
                    words = vector(packed, [tile_index, 1 + k, at], self.vector)
                    self.dot.add(weight_sums, at, ones, words, self.vector)

            with T.serial(0, depth // step_numbers) as k:
                step(k, step_numbers)
            if depth % step_numbers:
                step(depth // step_numbers, depth % step_numbers)
            with Nest.tile(vectors, self.vector) as (c, i):
                at = c * self.vector + i
                flip_offset = tirx.const(flip, "int32")
                T.buffer_store(packed, zero - weight_sums[at] * flip_offset, [tile_index, 0, at])
        return packed


class _TwosShare(DotShare):
    """Version of `DotShare` for instructions that add two products per accumulator."""

    dot = TWOS


class _SignedFoursShare(DotShare):
    """Version of `DotShare` for instructions that add four signed products per accumulator."""

    dot = SIGNED_FOURS


def share_of(dot: DotProduct) -> type[DotShare]:
    """Return the subclass of `Share` that builds the parallel tasks of an int8 matrix product.

    Args:
        dot: the dot-product instruction that the tasks use.
    """
    return {TWOS: _TwosShare, FOURS: DotShare, SIGNED_FOURS: _SignedFoursShare}[dot]
