"""Implements fully connected layers in int8, by dot products of four."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.dense import Dense, tile_starts
from tilewright.targets.cpu.kernels.gemm_shape import GemmShape
from tilewright.targets.cpu.kernels.int8_dot_product import (
    FLIP,
    FOUR,
    add_dots,
    byte_of_four,
    check_dots,
    flipped,
    fours,
    gathered,
    loaded,
    pack_fours,
    vector,
    vector_of,
    weight_at,
)
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Nest, tile_start, tiles
from tilewright.targets.cpu.kernels.matrix import Share, multiply
from tilewright.targets.cpu.kernels.shared import with_row_epilogue, wrapping_sum
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")


class DenseInt8(Dense):
    """As `Dense`, of int8."""

    def serves(self, workload: Workload) -> bool:
        """Any number of rows."""
        return workload.operator == "dense" and workload.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """See `targets.cpu.kernels.matrix`. Raises `WorkloadError` for a processor without dot
        products."""
        check_dots(workload, spec)
        pack = (1,) if workload.in_channels % FOUR else (0, 1)
        return tuple(
            replace(knob, values=pack) if knob.name == "pack_data" else knob
            for knob in GemmShape.of(workload, spec).knobs(packed=True)
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """The baseline of a kernel."""
        return {**GemmShape.of(workload, spec).baseline_values(spec, packed=True), "pack_data": 1}

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """Rows times packed columns, as a tensor expression."""
        w, p = workload, GemmShape.of(workload, spec)
        width = p.width(values)
        data = te.placeholder(self.data_shape(w, spec), "int8", name="data")
        shape = DotShare.weights_shape(p, values)
        weights = te.placeholder(shape, "int32", name="weights")
        k = te.reduce_axis((0, w.in_channels), "k")

        def product(row: Any, column: Any) -> Any:
            tile = tirx.indexdiv(column, width)
            inside = column - tirx.min(tile * width, w.out_channels - width)
            vectors, lane = tirx.indexdiv(inside, p.lanes), tirx.indexmod(inside, p.lanes)
            weight = weight_at(weights, tile, k, vectors * vector_of(p.lanes) + lane)
            return te.sum(tirx.Cast("int32", data[row, k]) * weight, axis=k)

        sums = te.compute(self.out_shape(w, spec), product, name="sums")
        inputs, out = with_row_epilogue(w, sums)
        return te.create_prim_func([data, weights, *inputs, out])

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """The loops written out; `function` says what they compute."""
        return multiply(workload, GemmShape.of(workload, spec), values, True, DotShare)

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> NDArray[Any]:
        """(out, in) → (tiles, 1 + in / 4, lanes of a tile), see
        `targets.cpu.kernels.int8_dot_product.pack_fours`; zeros where columns fill no vector."""
        w, p = workload, GemmShape.of(workload, spec)
        starts = tile_starts(w.out_channels, p.width(values))
        columns = starts[:, None] + np.arange(p.width(values))
        lanes, count = vector_of(p.lanes), values["tile_vectors"]
        whole = np.zeros((len(starts), fours(w.in_channels) * FOUR, count, lanes), np.int8)
        taken = weights.reshape(w.out_channels, w.in_channels)[columns].transpose(0, 2, 1)
        whole[:, : w.in_channels, :, : p.lanes] = taken.reshape(*taken.shape[:2], count, p.lanes)
        return pack_fours(whole.reshape(*whole.shape[:2], count * lanes))


class DotShare(Share):
    """A step is a dot product of four; of the data each number is four. Sums begin as the packed
    weights say."""

    sums_type = "int32"

    @staticmethod
    def weights_shape(p: GemmShape, v: KnobValues) -> tuple[int, ...]:
        return tiles(p.columns, p.width(v)), 1 + p.depth, v["tile_vectors"] * vector_of(p.lanes)

    def vector_of(self, p: GemmShape) -> int:
        return vector_of(p.lanes)

    def begin(self, column: Any, at: Any) -> Any:
        buffer, place = self._packed(column)
        return buffer[(*place, 0, at)]

    def _packed(self, column: Any) -> tuple[Any, list[Any]]:
        """Where the packed weights of a tile of columns are: a buffer, and the place in it."""
        if self.weights is None:
            return self.a.weights, [column]
        return self.weights, [column - self.columns[0]]

    def plus(self, one: Any, other: Any) -> Any:
        return wrapping_sum(one, other)

    def number(self, row: Any, r: int, k: Any) -> Any:
        data, place = self.a.data, [*self.lead, self.first_row(row) + r]
        depth = int(data.shape[-1])
        if depth % FOUR == 0:
            return flipped(loaded(data, [*place, k * FOUR]))
        return flipped(gathered(data, [*place, 0], k * FOUR, depth))

    def add(self, sums: list[Any], row: Any, column: Any, k: Any) -> None:
        packed, place = self._packed(column)
        for r, buffer in enumerate(sums):
            four = self.left(row, r, k)
            for c in range(self.v["tile_vectors"]):
                at = c * self.vector
                weights = vector(packed, [*place, 1 + k, at], self.vector)
                add_dots(buffer, at, four, weights, self.vector)

    def pack_weights(self) -> Any:
        """A buffer of the columns of the share, tile behind tile, in fours; before them, where
        their sums begin."""
        lanes, vectors = self.p.lanes, self.v["tile_vectors"]
        depth, each = int(self.a.weights.shape[-2]), vectors * self.vector
        packed = T.alloc_buffer((self.most_columns, 1 + self.p.depth, each), "int32")
        zero, ones = tirx.const(0, "int32"), tirx.const(FLIP, "int32")
        with T.serial(*self.columns) as column:
            place = column - self.columns[0]
            begin = T.alloc_buffer((each,), "int32")
            with Nest.tile(vectors, self.vector) as (c, i):
                T.buffer_store(begin, zero, [c * self.vector + i])

            def step(k: Any, numbers: int) -> None:
                with Nest.tile(vectors, lanes) as (c, i):
                    start = tile_start(column, self.p.columns, self.width)
                    source = start + c * lanes + i
                    found = zero
                    for byte in range(numbers):
                        number = self.a.weights[(*self.lead, k * FOUR + byte, source)]
                        found = tirx.bitwise_or(found, byte_of_four(number, byte))
                    T.buffer_store(packed, found, [place, 1 + k, c * self.vector + i])
                for c in range(vectors):
                    at = c * self.vector
                    words = vector(packed, [place, 1 + k, at], self.vector)
                    add_dots(begin, at, ones, words, self.vector)

            with T.serial(0, depth // FOUR) as k:
                step(k, FOUR)
            if depth % FOUR:
                step(depth // FOUR, depth % FOUR)
            with Nest.tile(vectors, self.vector) as (c, i):
                at = c * self.vector + i
                T.buffer_store(packed, zero - begin[at], [place, 0, at])
        return packed
