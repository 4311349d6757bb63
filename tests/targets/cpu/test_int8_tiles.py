"""Compares int8 products with tile instructions with numpy: tile loops, zero points, borders."""

from __future__ import annotations

import platform
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.draws import examples
from tests.targets.cpu.compiled import TOLERANCE, error_of
from tilewright.core.errors import SpecError
from tilewright.targets.base import Space
from tilewright.targets.cpu import machine, spec
from tilewright.targets.cpu.compile import assembly_of, llvm_target, scheduled
from tilewright.targets.cpu.estimates import CpuMachine, estimate
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import BY_TILES, kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors
from tilewright.targets.cpu.spec import AMX_INT8, PLAIN_TILES, CpuSpec, this_machine
from tilewright.targets.steps.quantised import pack_scales
from tilewright.targets.workload import Workload, parse_workload

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="int8 is for x86 here")
SPEC = replace(this_machine(), lanes=16, int8_tiles=PLAIN_TILES)
XEON = CpuSpec(2, 16, "sapphirerapids", "a Xeon", "avx512vnni", "int8", int8_tiles=AMX_INT8)
EPILOGUES = (
    "dequantise uint8, bias, max 0, quantise uint8",
    "dequantise int8, quantise int8",
    "dequantise int8, bias, add uint8, max 0, min 2, quantise int8",
    "dequantise uint8, bias, max 0, min 3",
    "bias, >> 8, min 127, max 0",
)


@st.composite
def products(draw: st.DrawFn) -> Workload:
    """Draw products and convolutions below and above the size of a tile and of a block."""
    if draw(st.booleans()):
        channels = draw(st.sampled_from([1, 3, 8, 16, 32, 48, 64, 128]))
        text = (
            f"conv2d:n={draw(st.integers(1, 2))},c={channels},h=11,w={draw(st.integers(9, 14))}"
            f",o={draw(st.sampled_from([8, 16, 24, 40, 64]))},k={draw(st.sampled_from([1, 3, 5]))}"
            f",s={draw(st.integers(1, 3))},p={draw(st.integers(0, 2))}"
        )
    else:
        rows = draw(st.sampled_from([1, 2, 5, 17, 33, 67]))
        depth = draw(st.sampled_from([1, 3, 37, 64, 70, 160]))
        text = f"dense:n={rows},c={depth},o={draw(st.sampled_from([1, 7, 16, 20, 100]))}"
    return parse_workload(text, draw(st.sampled_from(EPILOGUES)))


@pytest.mark.slow(seconds=3)
@given(products(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(30), derandomize=True, deadline=None)
def test_every_schedule_computes_the_product(workload: Workload, seed: int) -> None:
    kernel = kernel_for(workload, SPEC)
    assert kernel in BY_TILES
    space = Space("kernels", kernel.knobs(workload, SPEC))
    tensors = SampleTensors(workload, SPEC, space, seed % 2**31)
    flat = np.random.default_rng(seed).integers(0, space.size, 1)
    try:
        assert error_of(tensors, space.describe(space.unravel(flat)[0])) < TOLERANCE
    except DoesNotApply:
        return


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("text", ["conv2d:n=1,c=64,h=4,w=4,o=16,k=1", "dense:n=2,c=64,o=16"])
def test_the_largest_numbers_neither_saturate_nor_wrap(text: str, kind: str) -> None:
    w = parse_workload(text, f"dequantise {kind}")
    kernel = kernel_for(w, SPEC)
    tensors = SampleTensors(w, SPEC, Space("kernels", kernel.knobs(w, SPEC)))
    tensors.data[:], tensors.weights[:] = np.iinfo(kind).max, -128
    tensors.added["quantisation"] = pack_scales(np.iinfo(kind).min, [], [])
    tensors.added["scale"][:] = 1
    tensors.expected = np.full_like(tensors.expected, 64 * 255 * -128)
    tensors.spread = np.zeros(())
    assert error_of(tensors, kernel.baseline_values(w, SPEC)) == 0


@pytest.mark.parametrize(("kind", "instruction"), [("int8", "tdpbssd"), ("uint8", "tdpbusd")])
@pytest.mark.parametrize("text", ["conv2d:n=1,c=64,h=14,w=14,o=64,k=3,p=1", "dense:n=64,c=64,o=64"])
def test_a_xeon_gets_instructions_of_amx(text: str, kind: str, instruction: str) -> None:
    w = parse_workload(text, f"dequantise {kind}, bias, quantise {kind}")
    values = kernel_for(w, XEON).baseline_values(w, XEON)
    assembly = assembly_of(scheduled(w, XEON, values), llvm_target(XEON))
    for name in ("ldtilecfg", "tileloadd", instruction, "tilestored", "tilerelease"):
        assert f"\t{name}" in assembly


def test_channels_that_fit_no_tile_are_computed_by_dot_products() -> None:
    w = parse_workload("conv2d:n=1,c=66,h=8,w=8,o=12,k=3", EPILOGUES[0])
    assert kernel_for(w, XEON) not in BY_TILES
    grouped = parse_workload("conv2d:n=1,c=32,h=8,w=8,o=32,k=3,g=32", EPILOGUES[0])
    assert kernel_for(grouped, XEON) not in BY_TILES


def test_tiles_are_estimated_faster_than_dot_products() -> None:
    w = parse_workload("conv2d:n=1,c=256,h=14,w=14,o=256,k=3,p=1", EPILOGUES[0])

    def best(of: CpuSpec) -> float:
        space = Space("kernels", kernel_for(w, of).knobs(w, of))
        core = CpuMachine.from_rates(of, 170e9, 200e9, 40e9, (48 << 10, 2 << 20))
        configs = space.unravel(np.arange(min(space.size, 4096)))
        return float(estimate(w, core, space, configs).total("latency").min())

    assert best(XEON) < best(replace(XEON, int8_tiles=""))


def test_a_processor_with_tiles_is_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CpuSpec.from_json(XEON.to_json()) == XEON
    assert XEON.tiles == (AMX_INT8,)
    assert not SPEC.tiles
    with pytest.raises(SpecError):
        CpuSpec.from_json(SPEC.to_json())  # files cannot specify plain tiles
    monkeypatch.setattr(machine, "flags", lambda: frozenset({"avx512f", "amx_int8"}))
    monkeypatch.setattr(machine, "allows_amx", lambda: True)
    assert spec._int8_tiles("int8", 16) == AMX_INT8
    assert not spec._int8_tiles("", 16)  # keeps existing schedules valid
