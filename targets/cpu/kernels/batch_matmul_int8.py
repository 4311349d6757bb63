"""Products of two tensors of int8: the second operand is packed in fours by each task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from targets.base import Knob
from targets.cpu.kernels.batch_matmul import BatchMatmul
from targets.cpu.kernels.dense_int8 import DotShare
from targets.cpu.kernels.dots import FOUR, check_dots
from targets.cpu.kernels.kernel import KnobValues
from targets.cpu.kernels.matrix import multiply
from targets.cpu.kernels.product import Product
from targets.cpu.spec import CpuSpec
from targets.workload import Workload


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
        if workload.in_channels % FOUR:
            given["pack_data"] = (1,)
        return tuple(
            replace(knob, values=given.get(knob.name, knob.values))
            for knob in Product.of(workload, spec).knobs(packed=False)
        )

    def default_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """The schedule of an untuned kernel."""
        usual = Product.of(workload, spec).default_values(spec, packed=False)
        pack = 1 if workload.in_channels % FOUR or workload.height > 1 else 0
        return {**usual, "pack_weights": 1, "pack_data": pack}

    def schedule(self, function: Any, workload: Workload, spec: CpuSpec, values: KnobValues) -> Any:
        """The loops written out; `function` says what they compute."""
        return multiply(workload, Product.of(workload, spec), values, False, DotShare)
