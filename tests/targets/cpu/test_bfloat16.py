"""Compares bfloat16 matrix products with the reference: tile loops and rounding."""

from __future__ import annotations

import platform
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.draws import examples
from tests.targets.cpu.compiled import TOLERANCE, called
from tilewright.core.bfloat16 import rounded_array, widened_array
from tilewright.core.errors import SpecError, WorkloadError
from tilewright.targets.base import Space
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.compile import assembly_of, llvm_target, scheduled
from tilewright.targets.cpu.estimates import CpuMachine, estimate
from tilewright.targets.cpu.hidden_features import STORE_COLUMNS, store_features
from tilewright.targets.cpu.kernels import amx_product
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import AMX, DOTS_BFLOAT16, CpuSpec, this_machine
from tilewright.targets.workload import Workload, parse_workload

SPEC = replace(this_machine(), lanes=16)
"""A CPU whose tiles are multiplied in float32, in the same loops as with AMX."""
BY_DOTS = replace(SPEC, bfloat16=DOTS_BFLOAT16)
UNITS = pytest.mark.parametrize("spec", [
    pytest.param(SPEC, id="plain"),
    pytest.param(BY_DOTS, id="dots", marks=pytest.mark.skipif(
        not machine.multiplies_bfloat16(), reason="this processor has no AVX512-BF16",
    )),
])  # fmt: skip
XEON = CpuSpec(2, 16, "sapphirerapids", "a Xeon", "avx512vnni", "bf16", AMX)
EPILOGUES = ("", "bias", "bias, relu", "bias, residual 0, relu, min 6")


@st.composite
def products(draw: st.DrawFn) -> Workload:
    """Draw products and convolutions below and above the size of a tile and of a block."""
    if draw(st.booleans()):
        kernel, stride = draw(st.sampled_from([1, 2, 3, 5, 7])), draw(st.integers(1, 3))
        dilation = draw(st.sampled_from([1, 1, 2]))
        pad, size = draw(st.integers(0, 2)), draw(st.integers(13, 21))
        channels = draw(st.sampled_from([1, 3, 8, 16, 32, 40, 64, 96]))
        out = draw(st.sampled_from([1, 8, 16, 24, 40, 64]))
        groups = draw(st.sampled_from([1, 1, 4])) if channels % 8 == out % 8 == 0 else 1
        text = (
            f"conv2d:n={draw(st.integers(1, 2))},c={channels},h={size},w={size + 2},o={out}"
            f",k={kernel},s={stride},p={pad},d={dilation},g={groups}"
        )
    else:
        rows = draw(st.sampled_from([1, 2, 5, 17, 29, 33, 67]))
        depth = draw(st.sampled_from([1, 3, 32, 37, 64, 96]))
        columns = draw(st.sampled_from([1, 7, 16, 20, 37, 100]))
        text = f"dense:n={rows},c={depth},o={columns}"
        if draw(st.booleans()):
            rows, columns = max(rows, 16), max(columns, 16)
            text = f"batch_matmul:n={draw(st.integers(1, 3))},h={rows},c={depth},o={columns}"
    return parse_workload(text + ",dtype=bfloat16", draw(st.sampled_from(EPILOGUES)))


def check_a_schedule(workload: Workload, spec: CpuSpec, seed: int) -> None:
    """Check a random schedule, unless it does not apply."""
    assume(spec is SPEC or workload.groups == 1)
    kernel = kernel_for(workload, spec)
    space = Space("kernels", kernel.knobs(workload, spec))
    tensors = SampleTensors(workload, spec, space)
    flat = np.random.default_rng(seed).integers(0, space.size, 1)
    values = space.describe(space.unravel(flat)[0])
    try:
        function = scheduled(workload, spec, values)
    except DoesNotApply:
        return
    assert called(function, tensors, values) < TOLERANCE


@pytest.mark.slow(seconds=2)
@UNITS
@given(workload=products(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40), derandomize=True)
def test_every_schedule_computes_the_product(spec: CpuSpec, workload: Workload, seed: int) -> None:
    check_a_schedule(workload, spec, seed)


@pytest.mark.slow(seconds=0.2)
@UNITS
@pytest.mark.parametrize(
    "text",
    ["conv2d:n=1,c=3,h=18,w=18,o=24,k=7,s=2,p=3", "conv2d:n=1,c=64,h=7,w=7,o=40,k=3,p=1",
     "dense:n=5,c=70,o=33", "batch_matmul:n=2,h=19,c=33,o=18"],
)  # fmt: skip
def test_the_rule_computes_the_product(text: str, spec: CpuSpec) -> None:
    workload = parse_workload(text + ",dtype=bfloat16", "bias")
    kernel = kernel_for(workload, spec)
    values = kernel.baseline_values(workload, spec)
    space = Space("kernels", kernel.knobs(workload, spec))
    tensors = SampleTensors(workload, spec, space)
    assert called(scheduled(workload, spec, values), tensors, values) < TOLERANCE


@pytest.mark.slow(seconds=1)
@UNITS
@given(workload=products(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20), derandomize=True)
def test_a_depth_in_pieces_gives_the_same_product(
    spec: CpuSpec, workload: Workload, seed: int
) -> None:
    """The number of weights that fit into the L1 cache varies, and few rows share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amx_product, "NEAR", 64 * (1 + seed % 64))
        patch.setattr(amx_product, "FEWEST_BLOCKS", 1)
        check_a_schedule(workload, spec, seed)


def test_weights_beyond_the_first_cache_are_multiplied_in_pieces() -> None:
    """If the depth is split, sums are reloaded: more tile loads than a block's four operands."""
    loads = []
    for depth in (256, 1024):
        workload = parse_workload(f"dense:n=256,c={depth},o=512,dtype=bfloat16")
        values = kernel_for(workload, XEON).baseline_values(workload, XEON)
        assert values["rows_inside"]
        loads.append(scheduled(workload, XEON, values).script().count("tileloadd64"))
    assert loads == [4, 8]


def test_shares_of_a_single_block_have_features() -> None:
    """Two threads share two blocks of columns, so the loop of each has one iteration."""
    workload = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,p=1,dtype=bfloat16")
    spec = replace(SPEC, threads=2)
    values = kernel_for(workload, spec).baseline_values(workload, spec)
    assert (values["tiles_across"], values["column_shares"]) == (2, 2)
    features = store_features(scheduled(workload, spec, values), llvm_target(spec))
    assert len(features) == len(STORE_COLUMNS)
    assert all(np.isfinite(features))


@pytest.mark.parametrize(("rows", "shares"), [(256, 1), (512, 3), (384, 2)])
def test_rows_that_are_read_again_stay_in_the_second_cache(rows: int, shares: int) -> None:
    workload = parse_workload(f"dense:n={rows},c=3072,o=768,dtype=bfloat16")
    spec = replace(XEON, threads=1)
    assert kernel_for(workload, spec).baseline_values(workload, spec)["row_shares"] == shares


@given(
    arrays.arrays(
        np.uint32, 64, elements=st.integers(0, 2**32 - 1), unique=True
    )
)  # fmt: skip
def test_rounding_is_that_of_bfloat16(bits: np.ndarray) -> None:
    numbers = bits.view(np.float32)
    ours = widened_array(rounded_array(numbers))
    with np.errstate(invalid="ignore"):
        theirs = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")
@pytest.mark.parametrize("text", ["conv2d:n=1,c=64,h=14,w=14,o=64,k=3,p=1", "dense:n=64,c=64,o=64"])
def test_a_xeon_gets_instructions_of_amx(text: str) -> None:
    workload = parse_workload(text + ",dtype=bfloat16", "bias, relu")
    values = kernel_for(workload, XEON).baseline_values(workload, XEON)
    assembly = assembly_of(scheduled(workload, XEON, values), llvm_target(XEON))
    for instruction in (
        "ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease", "vcvtneps2bf16",
    ):  # fmt: skip
        assert f"\t{instruction}" in assembly


def test_channels_that_fit_no_tile_have_no_kernel() -> None:
    with pytest.raises(WorkloadError, match="no kernel"):
        kernel_for(parse_workload("conv2d:n=1,c=33,h=8,w=8,o=12,k=3,dtype=bfloat16", ""), SPEC)


@pytest.mark.parametrize("text", ["h=8,c=64,o=8", "h=15,c=64,o=128", "h=128,c=64,o=7"])
def test_small_products_of_a_batch_are_multiplied_in_vectors(text: str) -> None:
    with pytest.raises(WorkloadError, match="no kernel"):
        kernel_for(parse_workload(f"batch_matmul:n=4,{text},dtype=bfloat16", ""), SPEC)


def test_a_processor_is_written_as_before_there_were_precisions() -> None:
    written = this_machine().to_json()
    assert set(written) == {"threads", "lanes", "mcpu", "model", "dots"}
    assert CpuSpec.from_json(written) == this_machine()
    assert CpuSpec.from_json(XEON.to_json()) == XEON


def test_a_precision_is_part_of_the_name() -> None:
    spec = CpuSpec.parse("threads=1,precision=f32")
    assert spec.name.endswith("precision=f32")
    assert not spec.bfloat16
    assert CpuSpec.from_json(spec.to_json()) == spec
    with pytest.raises(SpecError, match="unknown precision"):
        CpuSpec.parse("precision=fp8")


def test_bfloat16_is_refused_without_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allows_amx", lambda: False)
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: False)
    with pytest.raises(SpecError, match="AVX512-BF16, or AMX"):
        CpuSpec.parse("precision=bf16")
    assert not CpuSpec.parse("precision=auto").bfloat16


def test_two_tiles_by_two_are_estimated_fastest_on_a_large_product() -> None:
    workload = parse_workload("dense:n=512,c=1024,o=1024,dtype=bfloat16", "bias")
    space = Space("kernels", kernel_for(workload, XEON).knobs(workload, XEON))
    core = CpuMachine.from_rates(XEON, 330e9, 200e9, 40e9, (48 << 10, 2 << 20))
    configs = space.unravel(np.arange(space.size))
    total = estimate(workload, core, space, configs).total("latency")
    best = space.describe(configs[int(np.argmin(total))])
    assert (best["tiles_down"], best["tiles_across"]) == (2, 2)
