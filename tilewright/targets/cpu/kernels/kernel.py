"""Protocol of a kernel: its knobs, an unscheduled TensorIR function, and its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tilewright.core.tvm_types import Array, PrimFunc
from tilewright.targets.base import Knob
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

KnobValues = Mapping[str, int]
"""A config: the value of each knob, by the knob's name."""


class DoesNotApply(Exception):
    """Raised if a config is not a valid schedule of a kernel. The message names the knob.

    Args:
        reason: the message.
        failure: class of the failure: `schedule`, or `code_too_large` for a schedule that would
            unroll too much.
    """

    def __init__(self, reason: str, failure: str = "schedule") -> None:
        super().__init__(reason)
        self.failure = failure


class Kernel(Protocol):
    """Implementation of an operator.

    A compiled kernel is called with the data, the packed weights, the operands of its epilogue in
    the order of `kernels.epilogue.epilogue_tensors`, and the output.
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether the kernel computes this workload.

        Args:
            workload: the workload.
        """

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs, which are the decisions of a schedule.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor lacks the instructions.
        """

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, which is a good config that is chosen without measuring.

        Args:
            workload: the workload.
            spec: the processor.

        Returns:
            The value of each knob, by its name.
        """

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape in which the kernel takes the data.

        Values lie in the order of `targets.cpu.layouts.pack_channels`, but the axes may be split or
        merged differently.

        Args:
            workload: the workload.
            spec: the processor.
        """

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, which is also the shape of a residual.

        Args:
            workload: the workload.
            spec: the processor.
        """

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Return the computation as an unscheduled TensorIR function.

        Args:
            workload: the workload.
            spec: the processor.
            values: the config, by knob name. The layout of the weights may depend on it.
        """

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Return the function with the schedule that the knobs select.

        Args:
            function: what `define` returned.
            workload: the workload.
            spec: the processor.
            values: the config, by knob name.

        Raises:
            DoesNotApply: the knobs contradict each other, or unroll too much.
        """

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Return weights in the layout that the schedule reads.

        Args:
            weights: the weights as the model has them: (o, c / groups, kh, kw), (out, in) of a
                dense layer, or (batch, depth, columns) of a batched product.
            workload: the workload.
            spec: the processor.
            values: the config, by knob name.
        """
