"""Compares compiled grouped convolutions with the reference, for random schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import examples
from tests.targets.cpu.compiled import TOLERANCE, called, error_of
from tilewright.core.errors import WorkloadError
from tilewright.targets.cpu.compile import scheduled
from tilewright.targets.cpu.kernels.depthwise import Depthwise
from tilewright.targets.cpu.kernels.grouped import Grouped
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors, reference
from tilewright.targets.cpu.spec import this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.workload import Workload, parse_workload

TARGET = CpuTarget(this_machine())
EPILOGUES = ("", "bias, relu", "residual 0", "bias, residual 0, relu, min 2")
LAYERS = (
    "conv2d:n=1,c=32,h=112,w=112,o=32,k=3,p=1,g=32",
    "conv2d:n=1,c=96,h=112,w=112,o=96,k=3,s=2,p=1,g=96",
    "conv2d:n=1,c=576,h=14,w=14,o=576,k=3,p=1,g=576",
    "conv2d:n=1,c=960,h=7,w=7,o=960,k=3,p=1,g=960",
    "conv2d:n=1,c=128,h=56,w=56,o=128,k=3,p=1,g=32",
    "conv2d:n=1,c=240,h=28,w=28,o=240,k=1,g=3",
    "conv2d:n=1,c=24,h=33,w=33,o=48,k=5,p=2,g=24",
)


@st.composite
def convolutions(draw: st.DrawFn) -> Workload:
    """Draw grouped convolutions with windows, strides, dilations and uneven borders."""
    each_in, each_out, groups = draw(
        st.sampled_from(
            [(1, 1, 16), (1, 1, 24), (1, 1, 7), (1, 2, 12), (4, 4, 8), (5, 3, 4), (16, 16, 2),
             (8, 32, 3), (16, 7, 2)]
        )
    )  # fmt: skip
    small = st.integers(1, 3)
    kernel_h, kernel_w, stride_h, stride_w = (draw(small) for _ in range(4))
    dilation_h, dilation_w = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    pads = draw(st.one_of(st.just((1, 1, 1, 1)), st.tuples(*[st.integers(0, 3)] * 4)))
    return Workload(
        "conv2d", draw(st.integers(1, 2)), each_in * groups, draw(st.integers(5, 13)),
        draw(st.integers(5, 13)), each_out * groups, kernel_h, kernel_w, stride_h, stride_w, *pads,
        dilation_h, dilation_w, groups, dtype="float32",
        post=parse_epilogue(draw(st.sampled_from(EPILOGUES))),
    )  # fmt: skip


@pytest.mark.slow(seconds=3)
@given(convolutions(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40), derandomize=True)
def test_every_schedule_computes_the_convolution(workload: Workload, seed: int) -> None:
    space = TARGET.space(workload)
    tensors = SampleTensors(workload, TARGET.spec, space)
    flat = np.random.default_rng(seed).integers(0, space.size, 1)
    values = space.describe(space.unravel(flat)[0])
    try:
        error = error_of(tensors, values)
    except DoesNotApply:
        return
    assert error < TOLERANCE


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("groups", [4, 32])
def test_every_way_of_padding_is_right_at_all_borders(padding: int, groups: int) -> None:
    text = f"conv2d:n=1,c=32,h=9,w=11,o=32,k=3,s=2,p=2x1x0x3,g={groups},dtype=float32"
    workload = parse_workload(text, "bias, residual 0, relu")
    tensors = SampleTensors(workload, TARGET.spec, TARGET.space(workload))
    kernel = kernel_for(workload, TARGET.spec)
    values = kernel.baseline_values(workload, TARGET.spec) | {"padding": padding, "tile_rows": 2}
    assert error_of(tensors, values) < TOLERANCE
    if padding == 0:
        assert called(kernel.define(workload, TARGET.spec, values), tensors, values) < TOLERANCE


@pytest.mark.parametrize("text", LAYERS)
def test_baseline_schedules_and_most_others_apply(text: str) -> None:
    workload = parse_workload(text + ",dtype=float32", "bias")
    space = TARGET.space(workload)
    baseline = kernel_for(workload, TARGET.spec).baseline_values(workload, TARGET.spec)
    assert all(baseline[knob.name] in knob.values for knob in space.knobs)
    scheduled(workload, TARGET.spec, baseline)
    assert space.size > 1000
    refused = 0
    for config in space.unravel(np.random.default_rng(0).integers(0, space.size, 30)):
        try:
            scheduled(workload, TARGET.spec, space.describe(config))
        except DoesNotApply:
            refused += 1
    assert refused <= 12


def test_the_reference_is_the_sum_it_says() -> None:
    """The reference is compared with the definition, value by value."""
    workload = parse_workload("conv2d:n=1,c=4,h=5,w=4,o=6,k=3x2,s=2x1,p=1,d=1x2,g=2,dtype=float32")
    w, rng = workload, np.random.default_rng(0)
    data = rng.standard_normal((1, 4, 5, 4)).astype(np.float32)
    weights = rng.standard_normal((6, 2, 3, 2)).astype(np.float32)
    result = reference(w, data, weights, np.zeros(6, np.float32), np.zeros(1, np.float32))
    for o, y, x in np.ndindex(6, w.out_height, w.out_width):
        total = 0.0
        for c, kh, kw in np.ndindex(2, 3, 2):
            row, column = y * 2 + kh - 1, x + kw * 2 - 1
            if 0 <= row < 5 and 0 <= column < 4:
                total += data[0, o // 3 * 2 + c, row, column] * weights[o, c, kh, kw]
        assert result[0, o, y, x] == pytest.approx(total, abs=1e-5)


def test_each_convolution_has_its_kernel() -> None:
    def kernel(groups: int, out: int) -> object:
        text = f"conv2d:n=1,c=16,h=5,w=5,o={out},k=3,g={groups},dtype=float32"
        return kernel_for(parse_workload(text), TARGET.spec)

    assert isinstance(kernel(16, 16), Depthwise)
    assert isinstance(kernel(16, 32), Grouped)
    assert isinstance(kernel(4, 16), Grouped)
    assert not isinstance(kernel(1, 16), Depthwise | Grouped)
    with pytest.raises(WorkloadError, match="no kernel"):
        kernel_for(parse_workload("max_pool:n=1,c=16,h=8,w=8,k=2"), TARGET.spec)
    with pytest.raises(WorkloadError, match="no kernel"):
        kernel_for(parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=1,xc=32,xi=8"), TARGET.spec)
