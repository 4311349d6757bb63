"""Multiplies two tensors, as attention does, in float32 and in int8: nothing is packed in advance.

In int8 each task packs the second operand in steps of dot products.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.dense_int8 import must_pack, share_of
from tilewright.targets.cpu.kernels.epilogue import row_inputs, widened, with_row_epilogue
from tilewright.targets.cpu.kernels.int8_dot_product import check_dots, dot_product
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.matrix_product import GemmShape, multiply
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")


class BatchMatmul:
    """Keeps `targets.cpu.kernels.kernel.Kernel` for `batch_matmul`: data (batch, rows, depth),
    weights, the second operand, (batch, depth, columns), out (batch, rows, columns). A transposed
    operand is transposed before."""

    def serves(self, workload: Workload) -> bool:
        """Any sizes."""
        return workload.operator == "batch_matmul" and workload.dtype == "float32"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """See `targets.cpu.kernels.matrix_product`."""
        return GemmShape.of(workload, spec).knobs(packed=False)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """The baseline of a kernel."""
        return GemmShape.of(workload, spec).baseline_values(spec, packed=False)

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """(batch, rows, depth)."""
        return workload.batch, workload.height, workload.in_channels

    def weights_shape(self, workload: Workload) -> tuple[int, ...]:
        """(batch, depth, columns)."""
        return workload.batch, workload.in_channels, workload.out_channels

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """(batch, rows, columns)."""
        return workload.batch, workload.height, workload.out_channels

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """The product as a tensor expression."""
        w = workload
        data = te.placeholder(self.data_shape(w, spec), w.dtype, name="data")
        weights = te.placeholder(self.weights_shape(w), w.dtype, name="weights")
        k = te.reduce_axis((0, w.in_channels), "k")

        def product(batch: Expression, row: Expression, column: Expression) -> Expression:
            factors = data[batch, row, k], weights[batch, k, column]
            return te.sum(widened(w, factors[0]) * widened(w, factors[1]), axis=k)

        sums = te.compute(self.out_shape(w, spec), product, name="sums")
        inputs = row_inputs(w, self.out_shape(w, spec))
        out = with_row_epilogue(w, sums, inputs)
        return te.create_prim_func([data, weights, *inputs.values(), out])

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """The loops written out; `function` says what they compute."""
        return multiply(workload, GemmShape.of(workload, spec), values, packed=False)

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """As they are: (batch, depth, columns)."""
        return weights.reshape(self.weights_shape(workload))


class BatchMatmulInt8(BatchMatmul):
    """As `BatchMatmul`, of int8."""

    def serves(self, workload: Workload) -> bool:
        """Any sizes."""
        return workload.operator == "batch_matmul" and workload.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """See `targets.cpu.kernels.matrix_product`. Raises `WorkloadError` for a processor without
        dot products."""
        check_dots(workload, spec)
        given = {"pack_weights": (1,)}
        if must_pack(workload, dot_product(spec)):
            given["pack_data"] = (1,)
        return tuple(
            replace(knob, values=given.get(knob.name, knob.values))
            for knob in GemmShape.of(workload, spec).knobs(packed=False)
        )

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """The baseline of a kernel."""
        shape, products = GemmShape.of(workload, spec), dot_product(spec).products
        usual = shape.baseline_values(spec, packed=False, products=products)
        pack = int(must_pack(workload, dot_product(spec)) or workload.height > 1)
        return {**usual, "pack_weights": 1, "pack_data": pack}

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """The loops written out; `function` says what they compute."""
        return multiply(
            workload, GemmShape.of(workload, spec), values, False, share_of(dot_product(spec))
        )
