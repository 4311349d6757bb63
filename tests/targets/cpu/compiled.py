"""Compiles kernels in the test process and calls them."""

from __future__ import annotations

from typing import Any

from tilewright.targets.cpu.compile import llvm_target, scheduled
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.sample_tensors import SampleTensors

TOLERANCE = 1e-4
"""Allowed error relative to the largest value: float32 sums are added in another order."""


def called(function: Any, tensors: SampleTensors, values: KnobValues) -> float:
    """Compile and run a TensorIR function. Return its error, see `SampleTensors.error`."""
    import tvm

    module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    arguments = tensors.arguments(values)
    tvm.compile(module, target=llvm_target(tensors.spec))["kernel"](*arguments)
    return tensors.error(arguments[-1].numpy())


def error_of(tensors: SampleTensors, values: KnobValues) -> float:
    """Compile and run the kernel of a config and return its error.

    Raises:
        DoesNotApply: the config does not apply to the workload.
    """
    return called(scheduled(tensors.workload, tensors.spec, values), tensors, values)
