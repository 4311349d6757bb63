"""Compares int8 kernels with a float epilogue with numpy: scales, zero points, rounding."""

from __future__ import annotations

import platform
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import examples
from tests.targets.cpu.compiled import TOLERANCE, called, error_of
from tilewright.core.errors import WorkloadError
from tilewright.targets.cpu.compile import assembly_of, llvm_target, scheduled
from tilewright.targets.cpu.kernels import winograd
from tilewright.targets.cpu.kernels.int8_dot_product import computes_int8
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.registry import make_target
from tilewright.targets.steps.quantised import TensorScale, pack_scales
from tilewright.targets.workload import Workload, parse_workload

OWN = this_machine()
pytestmark = pytest.mark.skipif(not computes_int8(OWN), reason="this processor computes no int8")
EPILOGUES = (
    "dequantise uint8, bias, max 0, quantise uint8",
    "dequantise int8, quantise int8",
    "dequantise int8, bias, add uint8, max 0, min 2, quantise int8",
    "dequantise uint8, bias, round, add int8, round, max 0, quantise uint8",
    "dequantise uint8, bias, max 0, min 3",
    "dequantise int8",
)
DEFINED = (
    "conv2d:n=2,c=10,h=9,w=5,o=24,k=3,s=2,p=1",
    "conv2d:n=1,c=16,h=9,w=9,o=16,k=3,p=1",
    "conv2d:n=1,c=24,h=9,w=5,o=24,k=3,p=1,g=24",
    "conv2d:n=1,c=24,h=6,w=5,o=48,k=3,p=1,g=6",
    "dense:n=3,c=37,o=20",
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw layers of odd sizes, with channels that do not fill vectors or reduction steps."""
    epilogue = parse_epilogue(draw(st.sampled_from(EPILOGUES)))
    if draw(st.integers(0, 3)) == 0:
        rows, outputs = draw(st.sampled_from([1, 2, 5, 13])), draw(st.integers(1, 70))
        return Workload("dense", rows, draw(st.integers(1, 90)), 1, 1, outputs, post=epilogue)
    channels = st.sampled_from([1, 3, 7, 10, 12, 16, 24, 32])
    small, pad, image = st.integers(1, 3), st.integers(0, 2), st.integers(7, 13)
    kernel, stride, dilation = (
        draw(st.one_of(st.just((1, 1)), st.tuples(small, small))) for _ in range(3)
    )
    if draw(st.booleans()):  # with Winograd's algorithm or without
        kernel, stride, dilation = (3, 3), (1, 1), (1, 1)
    pads = draw(st.one_of(st.just((0, 0, 0, 0)), st.tuples(pad, pad, pad, pad)))
    inputs, outputs, groups = draw(channels), draw(channels), 1
    if draw(st.integers(0, 3)) == 0:
        inputs = groups = draw(st.sampled_from([2, 12, 24]))
        outputs = draw(st.sampled_from([1, 2])) * groups
    return Workload(
        "conv2d", draw(st.integers(1, 2)), inputs, draw(image), draw(image), outputs,
        *kernel, *stride, *pads, *dilation, groups, post=epilogue,
    )  # fmt: skip


@pytest.mark.slow(seconds=4)
@given(workloads(), st.integers(0, 2**32 - 1), st.sampled_from([4, 8]))
@settings(max_examples=examples(30), derandomize=True, deadline=None)
def test_every_schedule_gives_the_nearest_integers(w: Workload, seed: int, lanes: int) -> None:
    target = CpuTarget(CpuSpec.parse(f"lanes={lanes}"))
    space = target.space(w)
    values = space.describe(
        space.unravel(np.random.default_rng(seed).integers(0, space.size, 1))[0]
    )
    if "unroll_kernel" in values:  # loops compile faster than unrolled code
        values["unroll_kernel"] = min(values["unroll_kernel"], 1)
    try:
        assert error_of(SampleTensors(w, target.spec, space, seed), values) < TOLERANCE
    except DoesNotApply:
        assert "unroll_channels" in values or values["unroll_depth"] > 1


@pytest.mark.slow(seconds=0.4)
@pytest.mark.parametrize("text", DEFINED)
def test_what_a_kernel_defines_is_what_its_schedules_compute(text: str) -> None:
    target, w = CpuTarget(OWN), parse_workload(text, EPILOGUES[3])
    tensors, kernel = SampleTensors(w, OWN, target.space(w)), kernel_for(w, OWN)
    values = kernel.baseline_values(w, OWN)
    assert called(kernel.define(w, OWN, values), tensors, values) < TOLERANCE
    assert error_of(tensors, values) < TOLERANCE


@pytest.mark.slow(seconds=0.6)
@pytest.mark.parametrize("parts", [1, 2])
def test_winograd_s_algorithm_transforms_integers_in_the_kernel(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "MOST_STORED", 0)
    monkeypatch.setattr(winograd, "MUCH_MORE", 1)
    w = parse_workload("conv2d:n=1,c=32,h=6,w=6,o=48,k=3,p=1", EPILOGUES[2])
    kernel, tensors = kernel_for(w, OWN), SampleTensors(w, OWN, CpuTarget(OWN).space(w))
    values = {**kernel.baseline_values(w, OWN), "algorithm": 4, "parts_ic": parts}
    assert kernel.pack_weights(tensors.weights, w, OWN, values).dtype == np.int16
    assert error_of(tensors, values) < TOLERANCE


@pytest.mark.parametrize("text", ["conv2d:n=1,c=64,h=4,w=4,o=16,k=1", "dense:n=2,c=64,o=16"])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_the_largest_numbers_neither_saturate_nor_wrap(text: str, kind: str) -> None:
    """A pair of products 255 x 127 does not fit into 16 bits."""
    w = parse_workload(text, f"dequantise {kind}")
    tensors = SampleTensors(w, OWN, CpuTarget(OWN).space(w))
    tensors.data[:], tensors.weights[:] = np.iinfo(kind).max, -128
    zero = np.iinfo(kind).min
    tensors.added["quantisation"] = pack_scales(zero, [], [])
    tensors.added["scale"][:] = 1
    tensors.expected = np.full_like(tensors.expected, 64 * 255 * -128)
    tensors.spread = np.zeros(())
    assert error_of(tensors, kernel_for(w, OWN).baseline_values(w, OWN)) == 0


def test_ties_are_rounded_to_even_before_the_zero_point_is_added() -> None:
    w = parse_workload("dense:n=1,c=2,o=16", "dequantise int8, quantise uint8")
    tensors = SampleTensors(w, OWN, CpuTarget(OWN).space(w))
    tensors.data[:] = [[1, 0]]
    tensors.weights[:, 0] = np.arange(-8, 8)
    tensors.added["scale"][:] = 0.5
    tensors.added["quantisation"] = pack_scales(0, ["quantise"], [TensorScale("uint8", 1.0, 7)])
    tensors.expected = np.rint(np.arange(-8, 8)[None] / 2.0) + 7
    kernel = kernel_for(w, OWN)
    values = kernel.baseline_values(w, OWN)
    import tvm

    function = scheduled(w, OWN, values).with_attr("global_symbol", "kernel")
    arguments = tensors.arguments(values)
    module = tvm.compile(tvm.IRModule({"kernel": function}), target=llvm_target(OWN))
    module["kernel"](*arguments)
    np.testing.assert_array_equal(arguments[-1].numpy(), tensors.expected)


def test_a_result_that_is_a_step_off_and_one_that_is_not_written_are_seen() -> None:
    w = parse_workload("conv2d:n=1,c=16,h=4,w=4,o=16,k=1", EPILOGUES[1])
    tensors = SampleTensors(w, OWN, CpuTarget(OWN).space(w))
    right = tensors.wrong_output() ^ -1
    assert tensors.error(right) < TOLERANCE
    assert len(np.unique(right)) > 50
    middle = np.argwhere(np.abs(right) < 90)[0]
    for wrong in (right[tuple(middle)] + 1, tensors.wrong_output()[tuple(middle)]):
        other = right.copy()
        other[tuple(middle)] = wrong
        assert tensors.error(other) > TOLERANCE


@pytest.mark.parametrize(
    "text",
    [
        "bias, dequantise int8", "dequantise int8, quantise int8, bias", "quantise int8",
        "dequantise int8, bias, bias", "dequantise int8, >> 8", "dequantise int8, bias 32", "round",
    ],
)  # fmt: skip
def test_an_epilogue_in_another_order_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="not a supported epilogue of real numbers"):
        parse_workload("dense:n=1,c=4,o=4", text)


@pytest.mark.parametrize("text", EPILOGUES)
def test_a_text_and_a_file_say_the_whole_workload(text: str) -> None:
    w = parse_workload("conv2d:n=1,c=8,h=4,w=4,o=8,k=1", text)
    assert w.epilogue_text == text
    assert parse_workload(str(w), w.epilogue_text) == w
    assert Workload.from_json(w.to_json()) == w


@pytest.mark.parametrize("name", ["vta-pynq", "gemmini"])
def test_accelerators_refuse_steps_of_reals(name: str) -> None:
    w = parse_workload("conv2d:n=1,c=16,h=4,w=4,o=16,k=1", EPILOGUES[0])
    with pytest.raises(WorkloadError):
        make_target(name).space(w)


def test_precision_f32_computes_no_quantised_layer_in_integers() -> None:
    w = parse_workload("conv2d:n=1,c=16,h=4,w=4,o=16,k=1", EPILOGUES[0])
    CpuTarget(OWN).space(w)
    with pytest.raises(WorkloadError, match="in float32"):
        CpuTarget(replace(OWN, precision="f32")).space(w)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instructions of x86")
@pytest.mark.parametrize("spec", [CpuSpec(1, 16, "cascadelake", "", "avx512vnni"), OWN])
def test_the_assembly_holds_the_dot_product_and_rounds_in_vectors(spec: CpuSpec) -> None:
    w = parse_workload("conv2d:n=1,c=32,h=8,w=8,o=64,k=1", EPILOGUES[0])
    assembly = assembly_of(
        scheduled(w, spec, kernel_for(w, spec).baseline_values(w, spec)), llvm_target(spec)
    )
    assert assembly.count("vpdpbusd" if spec.dots else "vpmaddwd") >= 8
    assert "vpmaddubsw" not in assembly
    assert "roundss" not in assembly
