"""Fully connected layers in int8, by dot products of four."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targets.base import Knob
from targets.cpu.kernels.dense import tile_starts
from targets.cpu.kernels.dots import (
    FOUR,
    add_dots,
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
from targets.cpu.kernels.kernel import KnobValues
from targets.cpu.kernels.loops import tiles
from targets.cpu.kernels.matrix import Share, multiply
from targets.cpu.kernels.product import Product
from targets.cpu.kernels.shared import with_row_epilogue, wrapping_sum
from targets.cpu.spec import CpuSpec
from targets.workload import Workload


class DenseInt8:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for `dense` of int8: data (rows, in), out (rows,
    out)."""

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
            for knob in Product.of(workload, spec).knobs(packed=True)
        )

    def default_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """The schedule of an untuned kernel."""
        return {**Product.of(workload, spec).default_values(spec, packed=True), "pack_data": 1}

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """(rows, in)."""
        return workload.batch, workload.in_channels

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """(rows, out)."""
        return workload.batch, workload.out_channels

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """Rows times packed columns, as a tensor expression."""
        from tvm import te, tirx

        w, p = workload, Product.of(workload, spec)
        width = p.width(values)
        data = te.placeholder(self.data_shape(w, spec), "int8", name="data")
        shape = _DotShare.weights_shape(p, values)
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
        return multiply(workload, Product.of(workload, spec), values, True, _DotShare)

    def pack_weights(
        self, weights: NDArray[Any], workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> NDArray[Any]:
        """(out, in) → (tiles, 1 + in / 4, lanes of a tile), see
        `targets.cpu.kernels.dots.pack_fours`; zeros where columns fill no vector."""
        w, p = workload, Product.of(workload, spec)
        starts = tile_starts(w.out_channels, p.width(values))
        columns = starts[:, None] + np.arange(p.width(values))
        lanes, count = vector_of(p.lanes), values["tile_vectors"]
        whole = np.zeros((len(starts), fours(w.in_channels) * FOUR, count, lanes), np.int8)
        taken = weights.reshape(w.out_channels, w.in_channels)[columns].transpose(0, 2, 1)
        whole[:, : w.in_channels, :, : p.lanes] = taken.reshape(*taken.shape[:2], count, p.lanes)
        return pack_fours(whole.reshape(*whole.shape[:2], count * lanes))


class _DotShare(Share):
    """A step is a dot product of four; of the data each number is four."""

    sums_type = "int32"

    @staticmethod
    def weights_shape(p: Product, v: KnobValues) -> tuple[int, ...]:
        return tiles(p.columns, p.width(v)), 1 + p.depth, v["tile_vectors"] * vector_of(p.lanes)

    def vector_of(self, p: Product) -> int:
        return vector_of(p.lanes)

    def begin(self, column: Any, at: Any) -> Any:
        return self.a.weights[column, 0, at]

    def plus(self, one: Any, other: Any) -> Any:
        return wrapping_sum(one, other)

    def number(self, row: Any, r: int, k: Any) -> Any:
        data, place = self.a.data, [self.first_row(row) + r, k * FOUR]
        depth = int(data.shape[1])
        if depth % FOUR == 0:
            return flipped(loaded(data, place))
        return flipped(gathered(data, [place[0], 0], place[1], depth))

    def add(self, sums: list[Any], row: Any, column: Any, k: Any) -> None:
        for r, buffer in enumerate(sums):
            four = self.left(row, r, k)
            for c in range(self.v["tile_vectors"]):
                at = c * self.vector
                weights = vector(self.a.weights, [column, 1 + k, at], self.vector)
                add_dots(buffer, at, four, weights, self.vector)
