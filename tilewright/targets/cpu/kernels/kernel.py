"""Defines a kernel: knobs, a function of TensorIR without a schedule, and the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tilewright.core.tvm_types import Array, PrimFunc
from tilewright.targets.base import Knob
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

KnobValues = Mapping[str, int]
"""A config by its knobs' names."""


class DoesNotApply(Exception):
    """A schedule that the kernel cannot have; the message names the knob. `failure` is the class
    of the failure: `schedule`, or `code_too_large` for one that would unroll too much."""

    def __init__(self, reason: str, failure: str = "schedule") -> None:
        super().__init__(reason)
        self.failure = failure


class Kernel(Protocol):
    """A way to compute an operator.

    A compiled kernel is called with the data, the packed weights, what its epilogue reads in the
    order of `kernels.epilogue.epilogue_tensors`, and the output.
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether the kernel computes this workload."""

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the decisions of a schedule.

        Raises:
            WorkloadError: the processor lacks the instructions.
        """

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule: a good config, by the names of the knobs, without measuring."""

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape in which the kernel takes the data: that of
        `targets.cpu.layouts.pack_channels`, perhaps with other axes. The values lie in the same
        order."""

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, which is also that of a residual."""

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Return the computation as a TensorIR function without a schedule. Its layouts may depend
        on the knobs."""

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Return the function with the schedule that the knobs select.

        Raises:
            DoesNotApply: the knobs contradict each other, or unroll too much.
        """

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Return weights in the layout that this schedule reads.

        Args:
            weights: as the model has them, (o, c / groups, kh, kw), (out, in) of a dense layer, or
                (batch, depth, columns) of a batched product.
            workload: what is computed.
            spec: the processor.
            values: the config, by the names of the knobs.
        """
