"""Multiplies two tensors of int8: each task packs the second operand in steps of dot products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.batch_matmul import BatchMatmul
from tilewright.targets.cpu.kernels.dense_int8 import must_pack, share_of
from tilewright.targets.cpu.kernels.gemm_shape import GemmShape
from tilewright.targets.cpu.kernels.int8_dot_product import check_dots, dot_product
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.matrix import multiply
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload


class BatchMatmulInt8(BatchMatmul):
    """As `BatchMatmul`, of int8."""

    def serves(self, workload: Workload) -> bool:
        """Any sizes."""
        return workload.operator == "batch_matmul" and workload.dtype == "int8"

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """See `targets.cpu.kernels.matrix`. Raises `WorkloadError` for a processor without dot
        products."""
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

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """The loops written out; `function` says what they compute."""
        return multiply(
            workload, GemmShape.of(workload, spec), values, False, share_of(dot_product(spec))
        )
