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

    A compiled kernel is called with data, weights, then the bias and the residual if there are such
    ones, and the output, in the layouts that `pack` gives them.
    """

    def serves(self, workload: Workload) -> bool:
        """Whether it computes this workload at all."""

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """The schedule's decisions."""

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """A good config of these knobs without any measurement: the baseline."""

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Of the data as the kernel takes them: those of `pack_channels`, maybe seen with other
        axes. The values lie in the same order."""

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Of the output, and of a residual."""

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """The computation as a TensorIR function, unscheduled. Layouts may depend on the knobs."""

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """The scheduled function. Raises `DoesNotApply`."""

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Weights as in the model (OIHW, or out × in) in the layout of this schedule."""
