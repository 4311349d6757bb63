"""Kernels for products of two activations, as in attention, in float32 and int8.

Neither operand is packed in advance. In int8, each parallel task packs the second operand for dot
products.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.dense_int8 import must_pack, share_of
from tilewright.targets.cpu.kernels.epilogue import row_inputs, widen_number, with_row_epilogue
from tilewright.targets.cpu.kernels.int8_dot_product import check_dots, dot_product
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.matrix_product import GemmShape, multiply
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")


class BatchMatmul:
    """`Kernel` for `batch_matmul` in float32.

    Shapes are (batch, rows, depth) for the data, (batch, depth, columns) for the second operand,
    which takes the place of the weights, and (batch, rows, columns) for the output. If the model
    transposes an operand, the network does so before it calls the kernel.
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a batch_matmul in float32."""
        return workload.operator == "batch_matmul" and workload.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a matrix product whose second operand is not packed in advance."""
        return GemmShape.for_workload(workload, spec).knobs(packed=False)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        return GemmShape.for_workload(workload, spec).baseline_values(spec, packed=False)

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (batch, rows, depth)."""
        return workload.batch, workload.height, workload.in_channels

    def weights_shape(self, workload: Workload) -> tuple[int, ...]:
        """Return the shape of the second operand, (batch, depth, columns).

        Args:
            workload: the workload.
        """
        return workload.batch, workload.in_channels, workload.out_channels

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (batch, rows, columns)."""
        return workload.batch, workload.height, workload.out_channels

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the kernel of a config (`values`) as an unscheduled TensorIR function."""
        w = workload
        data = te.placeholder(self.data_shape(w, spec), w.dtype, name="data")
        weights = te.placeholder(self.weights_shape(w), w.dtype, name="weights")
        k = te.reduce_axis((0, w.in_channels), "k")

        def product(batch: Expression, row: Expression, column: Expression) -> Expression:
            factors = data[batch, row, k], weights[batch, k, column]
            return te.sum(widen_number(w, factors[0]) * widen_number(w, factors[1]), axis=k)

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
        return multiply(workload, GemmShape.for_workload(workload, spec), values, packed=False)

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Return the second operand unchanged, in shape (batch, depth, columns)."""
        return weights.reshape(self.weights_shape(workload))


class BatchMatmulInt8(BatchMatmul):
    """`Kernel` for `batch_matmul` in int8, with the shapes of `BatchMatmul`."""

    def serves(self, workload: Workload) -> bool:
        """Return whether the workload is a batch_matmul in int8."""
        return workload.operator == "batch_matmul" and workload.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a matrix product.

        The knob `pack_weights` only has the value 1, because each task packs the second operand.
        The knob `pack_data` only has the value 1 if the dot-product instruction needs packed data.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor has no dot products.
        """
        check_dots(workload, spec)
        fixed_values = {"pack_weights": (1,)}
        if must_pack(workload, dot_product(spec)):
            fixed_values["pack_data"] = (1,)
        return tuple(
            replace(knob, values=fixed_values.get(knob.name, knob.values))
            for knob in GemmShape.for_workload(workload, spec).knobs(packed=False)
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        shape, products = GemmShape.for_workload(workload, spec), dot_product(spec).products
        float_values = shape.baseline_values(spec, packed=False, products=products)
        pack = int(must_pack(workload, dot_product(spec)) or workload.height > 1)
        return {**float_values, "pack_weights": 1, "pack_data": pack}

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, because TVM's `Schedule` cannot express overlapping tiles.
        `function`, the unscheduled kernel from `define`, is ignored.
        """
        return multiply(
            workload,
            GemmShape.for_workload(workload, spec),
            values,
            False,
            share_of(dot_product(spec)),
        )
