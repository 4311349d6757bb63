"""Protocol of a kernel: knobs of its schedule, unscheduled TensorIR function, and its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tilewright.core.tvm_types import Array, PrimFunc
from tilewright.targets.base import Knob
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

KnobValues = Mapping[str, int]
"""Values of the knobs of one config, by knob name."""


class DoesNotApply(Exception):
    """Raised if a config is not a valid schedule of a kernel.

    Args:
        reason: the message, which names the knob.
        failure: class of the failure: `schedule`, or `code_too_large` for a schedule that would
            unroll too much code.
    """

    def __init__(self, reason: str, failure: str = "schedule") -> None:
        super().__init__(reason)
        self.failure = failure


class Kernel(Protocol):
    """Implementation of one operator, or of several, with a space of schedules.

    A compiled kernel is called with the data, the packed weights, the operands of its epilogue in
    the order of `kernels.epilogue.epilogue_tensors`, and the output.
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether the kernel can compute a workload.

        Args:
            workload: the workload.
        """

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs, which span the kernel's space of schedules.

        Args:
            workload: the workload.
            spec: the processor.

        Raises:
            WorkloadError: the processor lacks the instructions that the workload needs.
        """

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Choose the rule schedule: a good config that is found without measuring.

        Args:
            workload: the workload.
            spec: the processor.

        Returns:
            The value of each knob, by its name.
        """

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape in which the kernel takes the data.

        The values are in the memory order of `targets.cpu.layouts.pack_channels`, but the shape may
        split or merge axes.

        Args:
            workload: the workload.
            spec: the processor.
        """

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output. A residual has the same shape.

        Args:
            workload: the workload.
            spec: the processor.
        """

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Define the computation as an unscheduled TensorIR function.

        Args:
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name. The layout of the weights may depend on
                it.

        Returns:
            The function.
        """

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Apply the schedule of a config to a function.

        Args:
            function: the function that `define` returned.
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            The scheduled function.

        Raises:
            DoesNotApply: the knobs contradict each other, or unroll too much code.
        """

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Convert weights to the layout that the schedule reads.

        Args:
            weights: the weights in the model's layout: (o, c / groups, kh, kw) for a convolution,
                (out, in) for a dense layer, or (batch, depth, columns) for a batched product.
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            The packed weights: see `targets.cpu.layouts`.
        """
