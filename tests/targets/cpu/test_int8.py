"""Compares int8 kernels with dot-product instructions with the reference, bit by bit.

A CPU without these instructions gives a message.
"""

from __future__ import annotations

import platform
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import examples
from tests.targets.cpu.compiled import called, error_of
from tilewright.core.errors import SpecError, WorkloadError
from tilewright.targets.cpu.compile import assembly_of, llvm_target, scheduled
from tilewright.targets.cpu.estimates import CpuMachine, estimate
from tilewright.targets.cpu.kernels.conv2d_shapes import MAX_UNROLLED
from tilewright.targets.cpu.kernels.int8_dot_product import (
    FOURS,
    TWOS,
    DotProduct,
    computes_int8,
)
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors, integer_reference
from tilewright.targets.cpu.spec import DOTS, LANES, CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.epilogue import parse_epilogue
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import Workload, parse_workload

OWN = this_machine()
SPECS = [
    spec
    for lanes in LANES
    if lanes <= OWN.lanes and computes_int8(spec := CpuSpec.parse(f"lanes={lanes}"))
]
SPECS += [bare for spec in SPECS if spec.dots and computes_int8(bare := replace(spec, dots=""))]
"""Vectors of each width, with each instruction for dot products that this processor has."""
RULED = [spec for spec in SPECS if spec.dots or spec.lanes == 8]
"""CPUs for which the schedule rule was measured. Without dot products, these are only those with
AVX2 vectors."""
REQUANTISE = ">> 8, min 127, max -128"
EPILOGUES = (
    f"bias, {REQUANTISE}",
    "bias 32, residual 3, >> 9, min 127, max 0",
    "bias, >> channel, min 127, max -128",
    "+ 128, >> 8, min 100, max -100",
    "add, residual 31, >> channel 5, min 127, max 0",
    "bias 32, << 3, min 127",
    "bias, leaky 3, + 128, >> 8, min 127, max -128",
    "",
)
LAYERS = (
    "conv2d:n=1,c=3,h=224,w=224,o=64,k=7,s=2,p=3",
    "conv2d:n=1,c=64,h=56,w=56,o=64,k=3,p=1",
    "conv2d:n=1,c=512,h=7,w=7,o=512,k=3,p=1",
    "conv2d:n=1,c=64,h=56,w=56,o=128,k=1,s=2",
    "conv2d:n=1,c=24,h=56,w=56,o=144,k=1",
    "conv2d:n=1,c=960,h=7,w=7,o=320,k=1",
    "conv2d:n=1,c=144,h=56,w=56,o=144,k=3,p=1,g=144",
    "dense:n=197,c=192,o=576",
    "batch_matmul:n=3,h=197,c=64,o=197",
)
DEFINED = (
    "conv2d:n=2,c=10,h=9,w=5,o=24,k=3,s=2,p=1",
    "conv2d:n=1,c=24,h=9,w=5,o=24,k=3,p=1,g=24",
    "conv2d:n=1,c=24,h=6,w=5,o=48,k=3,p=1,g=6",
    "dense:n=3,c=37,o=20",
    "batch_matmul:n=2,h=3,c=37,o=20",
)
needs_dots = pytest.mark.skipif(not SPECS, reason="this processor computes no int8")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names instructions of x86")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw int8 layers of odd sizes, with channels that do not fill vectors or groups of four."""
    epilogue = parse_epilogue(draw(st.sampled_from(EPILOGUES)))
    channels = st.sampled_from([1, 3, 7, 10, 12, 16, 24, 32, 48])
    if draw(st.integers(0, 3)) == 0:
        rows, outputs = draw(st.sampled_from([1, 2, 5, 13])), draw(st.integers(1, 70))
        inputs = draw(st.one_of(st.integers(1, 70), st.sampled_from([140, 300, 301])))
        if draw(st.booleans()):
            return Workload("dense", rows, inputs, 1, 1, outputs, post=epilogue)
        return Workload("batch_matmul", 2, inputs, rows, 1, outputs, post=epilogue)
    small, pad = st.integers(1, 3), st.integers(0, 2)
    kernel, stride, dilation = (
        draw(st.one_of(st.just((1, 1)), st.tuples(small, small))) for _ in range(3)
    )
    pads = draw(st.one_of(st.just((0, 0, 0, 0)), st.tuples(pad, pad, pad, pad)))
    image = st.integers(7, 13)
    inputs, outputs, groups = draw(channels), draw(channels), 1
    if draw(st.integers(0, 3)) == 0:
        inputs = groups = draw(st.sampled_from([2, 12, 24]))
        outputs = draw(st.sampled_from([1, 2])) * groups
        inputs *= draw(st.sampled_from([1, 1, 4]))
    return Workload(
        "conv2d", draw(st.integers(1, 2)), inputs, draw(image), draw(image), outputs,
        *kernel, *stride, *pads, *dilation, groups, post=epilogue,
    )  # fmt: skip


@needs_dots
@pytest.mark.slow(seconds=2)
@given(workloads(), st.integers(0, 2**32 - 1), st.integers(0, 9))
@settings(max_examples=examples(30), derandomize=True, deadline=None)
def test_every_schedule_gives_the_reference_s_bits(w: Workload, seed: int, width: int) -> None:
    target = CpuTarget(SPECS[width % len(SPECS)])
    space = target.space(w)
    values = space.describe(
        space.unravel(np.random.default_rng(seed).integers(0, space.size, 1))[0]
    )
    if "unroll_kernel" in values:  # loops compile faster than unrolled code
        values["unroll_kernel"] = min(values["unroll_kernel"], 1)
    try:
        assert error_of(SampleTensors(w, target.spec, space, seed), values) == 0
    except DoesNotApply:
        assert "unroll_channels" in values or values["unroll_depth"] > 1


@needs_dots
@pytest.mark.parametrize("text", DEFINED)
@pytest.mark.parametrize(("data", "weight"), [(-128, -128), (-128, 127), (127, -128), (127, 127)])
def test_the_largest_numbers_neither_saturate_nor_wrap(text: str, data: int, weight: int) -> None:
    target, w = CpuTarget(SPECS[-1]), parse_workload(text, "bias, >> 15, min 127, max -128")
    tensors = SampleTensors(w, target.spec, target.space(w))
    tensors.data[:], tensors.weights[:] = data, weight
    tensors.expected = integer_reference(
        w, tensors.data, tensors.weights, tensors.added, tensors.expected.shape
    )
    assert error_of(tensors, kernel_for(w, target.spec).baseline_values(w, target.spec)) == 0


@needs_dots
@pytest.mark.parametrize("text", DEFINED)
def test_what_a_kernel_defines_is_what_its_schedules_compute(text: str) -> None:
    target, w = CpuTarget(SPECS[-1]), parse_workload(text, EPILOGUES[1])
    tensors, kernel = SampleTensors(w, target.spec, target.space(w)), kernel_for(w, target.spec)
    values = kernel.baseline_values(w, target.spec)
    assert called(kernel.define(w, target.spec, values), tensors, values) == 0


@needs_dots
def test_a_wrong_bit_and_a_number_that_is_not_written_are_seen() -> None:
    w = parse_workload("conv2d:n=1,c=16,h=4,w=4,o=16,k=1", EPILOGUES[0])
    tensors = SampleTensors(w, SPECS[-1], CpuTarget(SPECS[-1]).space(w))
    right = tensors.wrong_output() ^ -1
    assert tensors.error(right) == 0
    assert len(np.unique(tensors.expected)) > 50
    for wrong in (right[0, 0, 0, 3, 5] ^ 1, tensors.wrong_output()[0, 0, 0, 3, 5]):
        other = right.copy()
        other[0, 0, 0, 3, 5] = wrong
        assert tensors.error(other) > 1e-3


@needs_x86
@pytest.mark.parametrize("text", ["conv2d:n=1,c=32,h=8,w=8,o=64,k=3,p=1", "dense:n=8,c=64,o=64"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.lanes}{spec.dots}")
def test_the_assembly_holds_the_dot_product(text: str, spec: CpuSpec) -> None:
    w = parse_workload(text, EPILOGUES[0])
    function = scheduled(w, spec, kernel_for(w, spec).baseline_values(w, spec))
    assembly = assembly_of(function, llvm_target(spec))
    register = {4: "%xmm", 8: "%ymm", 16: "%zmm"}[spec.lanes]
    # LLVM fuses the pair product with the addition if the CPU has an instruction for it.
    names = ("vpdpbusd",) if spec.dots else ("pmaddwd", "vpdpwssd")
    dots = [line for line in assembly.splitlines() if any(name in line for name in names)]
    assert len(dots) >= 8
    assert all(register in line for line in dots)
    assert "pmulld" not in assembly


@needs_x86
@pytest.mark.parametrize("data", ["int8", "uint8"])
def test_a_border_of_zero_points_compiles_for_vnni(data: str) -> None:
    text = "conv2d:n=1,c=32,h=8,w=8,o=64,k=3,p=1"
    w = parse_workload(text, f"dequantise {data}, bias, quantise {data}")
    spec = CpuSpec(2, 16, "cascadelake", "a Xeon", "avx512vnni")
    values = kernel_for(w, spec).baseline_values(w, spec) | {"copy": 1}
    assert "vpdpbusd" in assembly_of(scheduled(w, spec, values), llvm_target(spec))


def test_a_processor_without_dot_products_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    bare = CpuTarget(replace(OWN, dots=""))
    assert bare.traits.dtypes == {"float32"}
    for text in ("conv2d:n=1,c=16,h=4,w=4,o=16,k=1", "dense:n=1,c=16,o=16"):
        with pytest.raises(WorkloadError, match=r"cannot compute int8.*write dtype=float32"):
            bare.space(parse_workload(text))
        bare.space(parse_workload(f"{text},dtype=float32", "bias"))


@needs_dots
def test_what_has_no_kernel_is_refused() -> None:
    for text in ("conv2d:n=1,c=16,h=8,w=8,o=16,k=3,mk=2", "max_pool:n=1,c=16,h=4,w=4,k=2"):
        with pytest.raises(WorkloadError, match=r"has no kernel for .* choose another target"):
            CpuTarget(OWN).space(parse_workload(text))


@pytest.mark.parametrize("dots", ["", *DOTS.values()])
def test_a_specification_keeps_its_instructions(dots: str) -> None:
    spec = replace(OWN, dots=dots)
    assert CpuSpec.from_json(spec.to_json()) == spec
    document = spec.to_json()
    del document["dots"]  # as written before int8 was supported
    assert CpuSpec.from_json(document).dots == ""
    with pytest.raises(SpecError):
        CpuSpec.from_json({**document, "dots": "; rm"})


def test_a_folder_that_needs_other_instructions_is_refused() -> None:
    rebuild = kind_of("cpu")[0].rebuild
    assert rebuild is not None
    narrow = CpuSpec.parse("lanes=4")
    assert rebuild(narrow.to_json(), "").name == narrow.name
    with pytest.raises(SpecError, match=r"needs the instructions avxvnni"):
        rebuild(replace(narrow, dots="avxvnni").to_json(), "")


@needs_dots
@pytest.mark.parametrize("text", LAYERS)
@pytest.mark.parametrize("spec", RULED, ids=lambda spec: f"{spec.lanes}{spec.dots}")
def test_the_space_is_finite_and_every_config_has_an_estimate(text: str, spec: CpuSpec) -> None:
    w = parse_workload(text, EPILOGUES[0])
    space, baseline = CpuTarget(spec).space(w), kernel_for(w, spec).baseline_values(w, spec)
    assert 1e4 <= space.size <= 1e8
    assert [baseline[knob.name] in knob.values for knob in space.knobs] == [True] * len(space.knobs)
    scheduled(w, spec, baseline)
    peak = 3e9 * 4 * spec.lanes * spec.threads
    core = CpuMachine.from_rates(spec, peak, 150e9, 45e9, (48 << 10, 2 << 20))
    configs = space.unravel(np.random.default_rng(0).integers(0, space.size, 500))
    matching = [knob.values.index(baseline[knob.name]) for knob in space.knobs]
    result = estimate(w, core, space, np.vstack([configs, matching]))
    seconds = result.of_meaning("latency")[:, 0]
    assert np.isfinite(result.matrix).all()
    each = 4 if spec.dots else 2  # values per multiplication step
    assert (seconds >= 2 * w.macs / (each * peak)).all()
    assert seconds[-1] < np.median(seconds)  # the baseline is one of the better ones


@needs_dots
def test_too_much_unrolling_is_refused_before_it_is_compiled() -> None:
    w, spec = parse_workload(LAYERS[0], EPILOGUES[0]), SPECS[-1]
    values = {**kernel_for(w, spec).baseline_values(w, spec), "unroll_kernel": 2}
    with pytest.raises(DoesNotApply, match=str(MAX_UNROLLED)) as refused:
        scheduled(w, spec, {**values, "tile_oc": 2, "tile_ow": 14})
    assert refused.value.failure == "code_too_large"


@pytest.mark.parametrize(("dot", "kind"), [(FOURS, np.int8), (TWOS, np.int16)])
def test_weights_are_packed_in_steps_behind_where_sums_begin(dot: DotProduct, kind: type) -> None:
    weights = np.random.default_rng(0).integers(-128, 128, (2, 12, 5), np.int8)
    packed, numbers = dot.pack(weights), dot.numbers
    assert packed.shape == (2, 1 + 12 // numbers, 5)
    begin = -128 if dot is FOURS else 0
    np.testing.assert_array_equal(packed[:, 0], begin * weights.astype(int).sum(axis=1))
    steps = packed[:, 1:].astype("<i4").view(kind).reshape(2, 12 // numbers, 5, numbers)
    np.testing.assert_array_equal(steps.transpose(0, 1, 3, 2).reshape(2, 12, 5), weights)
