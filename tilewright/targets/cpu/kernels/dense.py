"""Kernel for dense layers in float32, whose weights are packed in tiles of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.epilogue import row_inputs, with_row_epilogue
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import tiles
from tilewright.targets.cpu.kernels.matrix_product import GemmShape, multiply
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")


class Dense:
    """`Kernel` for `dense` in float32. Data have shape (rows, in), the output (rows, out)."""

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a dense layer in float32."""
        return workload.operator == "dense" and workload.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a matrix product with packed weights."""
        return GemmShape.for_workload(workload, spec).knobs(packed=True)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        return GemmShape.for_workload(workload, spec).baseline_values(spec, packed=True)

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape (batch, input channels)."""
        return workload.batch, workload.in_channels

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape (batch, output channels)."""
        return workload.batch, workload.out_channels

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function."""
        w, width = workload, GemmShape.for_workload(workload, spec).width(values)
        data = te.placeholder(self.data_shape(w, spec), name="data")
        shape = tiles(w.out_channels, width), w.in_channels, width
        weights = te.placeholder(shape, name="weights")
        k = te.reduce_axis((0, w.in_channels), "k")

        def product(row: Expression, column: Expression) -> Expression:
            tile = tirx.indexdiv(column, width)
            tile_column = column - tirx.min(tile * width, w.out_channels - width)
            return te.sum(data[row, k] * weights[tile, k, tile_column], axis=k)

        sums = te.compute(self.out_shape(w, spec), product, name="sums")
        inputs = row_inputs(w, self.out_shape(w, spec))
        out = with_row_epilogue(w, sums, inputs)
        return te.create_prim_func([data, weights, *inputs.values(), out])

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, because TVM's `Schedule` cannot express overlapping tiles.
        `function`, the unscheduled kernel from `define`, is ignored.
        """
        return multiply(workload, GemmShape.for_workload(workload, spec), values, packed=True)

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack weights in tiles of columns.

        If the last tile would reach beyond the end, it begins earlier, so that two tiles contain
        some columns.

        Args:
            weights: shape (out, in) or (out, in, 1, 1).
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            Shape (tiles, in, columns per tile).
        """
        width, out = GemmShape.for_workload(workload, spec).width(values), workload.out_channels
        plain = weights.reshape(out, workload.in_channels)
        columns = tile_starts(out, width)[:, None] + np.arange(width)
        return np.ascontiguousarray(plain[columns].transpose(0, 2, 1))


def tile_starts(out: int, width: int) -> NDArray[np.int64]:
    """Return the first column of each tile; the last tile may overlap the tile before it.

    This is the numpy version of `targets.cpu.kernels.loops.tile_start`.

    Args:
        out: number of columns.
        width: columns per tile.

    Returns:
        Int64 array of shape (tiles,).
    """
    starts: NDArray[np.int64] = np.minimum(np.arange(tiles(out, width)) * width, out - width)
    return starts
