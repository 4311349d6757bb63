"""Compares the activations of all kernels with numpy, also for large arguments."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.cpu.compiled import TOLERANCE, called
from tilewright.core.errors import WorkloadError
from tilewright.targets.cpu.compile import llvm_target, scheduled
from tilewright.targets.cpu.kernels.epilogue import apply_activation
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.steps.float_activations import FUNCTIONS
from tilewright.targets.workload import parse_workload

TARGET = CpuTarget(this_machine())
LAYERS = (
    "conv2d:n=1,c=24,h=11,w=11,o=20,k=1", "conv2d:n=1,c=32,h=16,w=16,o=32,k=3,p=1",
    "conv2d:n=1,c=24,h=9,w=9,o=24,k=3,p=1,g=24", "conv2d:n=1,c=16,h=9,w=9,o=32,k=3,p=1,g=4",
    "dense:n=5,c=33,o=20", "batch_matmul:n=2,h=5,c=7,o=9",
)  # fmt: skip


@pytest.mark.slow(seconds=0.3)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_an_activation_is_that_of_numpy(kind: str) -> None:
    import tvm
    from tvm import te

    numbers = np.concatenate([
        np.linspace(-100, 100, 4001), np.linspace(-1e-3, 1e-3, 101), [-1e30, 1e30, -0.0, 0.0],
    ]).astype(np.float32)  # fmt: skip
    given = te.placeholder(numbers.shape, name="given")
    result = te.compute(numbers.shape, lambda i: apply_activation(kind, given[i]), name="found")
    function = te.create_prim_func([given, result]).with_attr("global_symbol", "kernel")
    out = tvm.runtime.tensor(np.zeros_like(numbers))
    compiled = tvm.compile(tvm.IRModule({"kernel": function}), target=llvm_target(TARGET.spec))
    compiled["kernel"](tvm.runtime.tensor(numbers), out)
    expected = FUNCTIONS[kind](numbers.astype(np.float64))
    np.testing.assert_allclose(out.numpy(), expected, rtol=4e-6, atol=1e-6)


@pytest.mark.slow(seconds=0.5)
@pytest.mark.parametrize("text", LAYERS)
@pytest.mark.parametrize("kind", ["swish", "gelu"])
def test_kernels_activate_their_sums(text: str, kind: str) -> None:
    workload = parse_workload(text + ",dtype=float32", f"bias, {kind}")
    values = kernel_for(workload, TARGET.spec).baseline_values(workload, TARGET.spec)
    tensors = SampleTensors(workload, TARGET.spec, TARGET.space(workload))
    assert called(scheduled(workload, TARGET.spec, values), tensors, values) < TOLERANCE


def test_integers_have_no_activation_of_floats() -> None:
    with pytest.raises(WorkloadError, match="needs floating-point numbers"):
        parse_workload("dense:n=1,c=16,o=16", "bias, swish")
