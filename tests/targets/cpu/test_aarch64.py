"""Runs AArch64 kernels in an emulator and compares them with the references.

Nothing is timed here. Integer results must be bit-identical.
"""

from __future__ import annotations

import platform
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("unicorn", reason="the emulator is a tool for development")

from tests.draws import examples
from tests.targets.cpu import test_int8, test_quantised
from tests.targets.cpu.compiled import TOLERANCE
from tests.targets.cpu.emulated import (
    ARM,
    PLAIN_ARM,
    EmulationFailed,
    Emulator,
    emulated,
    emulated_error_of,
    object_of,
)
from tilewright.core.errors import SpecError, WorkloadError
from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.compile import assembly_of, llvm_target, scheduled
from tilewright.targets.cpu.estimates import CpuMachine, estimate
from tilewright.targets.cpu.kernels.int8_dot_product import SIGNED_FOURS
from tilewright.targets.cpu.kernels.kernel import DoesNotApply
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.sample_tensors import SampleTensors, integer_reference
from tilewright.targets.cpu.spec import ARM_DOTS, CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.registry import kind_of
from tilewright.targets.steps.quantised import pack_scales
from tilewright.targets.workload import Workload, parse_workload

ir_builder = lazy_module("tvm.script.ir_builder")
T = lazy_module("tvm.script.ir_builder.tirx")

INTEGERS = (
    ("conv2d:n=1,c=12,h=5,w=6,o=20,k=1", "bias, >> 8, min 127, max -128"),
    ("conv2d:n=2,c=10,h=9,w=5,o=24,k=3,s=2,p=1", "bias 32, residual 3, >> 9, min 127, max 0"),
    ("conv2d:n=1,c=12,h=6,w=5,o=12,k=3,p=1,g=12", "bias, >> channel, min 127, max -128"),
    ("conv2d:n=1,c=24,h=6,w=5,o=48,k=3,p=1,g=6", "bias, >> 8, min 127, max -128"),
    ("dense:n=3,c=37,o=20", "bias, leaky 3, + 128, >> 8, min 127, max -128"),
    ("batch_matmul:n=2,h=3,c=37,o=20", "add, residual 31, >> channel 5, min 127, max 0"),
)
REALS = (
    ("conv2d:n=1,c=12,h=5,w=6,o=20,k=1", "dequantise uint8, bias, max 0, quantise uint8"),
    ("conv2d:n=1,c=12,h=5,w=6,o=20,k=1", "dequantise int8, quantise int8"),
    ("conv2d:n=2,c=10,h=9,w=5,o=24,k=3,s=2,p=1", "dequantise uint8, bias, quantise int8"),
    (
        "conv2d:n=1,c=16,h=6,w=6,o=16,k=3,p=1",
        "dequantise int8, bias, round, add int8, round, max 0, quantise uint8",
    ),
    ("conv2d:n=1,c=12,h=6,w=5,o=12,k=3,p=1,g=12", "dequantise uint8, bias, quantise uint8"),
    ("dense:n=3,c=37,o=20", "dequantise uint8, bias, max 0, min 3"),
)
FLOATS = (
    ("dense:n=3,c=37,o=20,dtype=float32", "bias, max 0"),
    ("conv2d:n=1,c=10,h=9,w=5,o=24,k=3,s=2,p=1,dtype=float32", "bias, residual 0, max 0"),
)
CPUINFO = """processor	: 0
BogoMIPS	: 243.75
Features	: fp asimd evtstrm aes crc32 atomics asimdrdm lrcpc dcpop asimddp
CPU implementer	: 0x41
"""


def baseline(w: Workload, spec: CpuSpec = ARM) -> dict[str, int]:
    return kernel_for(w, spec).baseline_values(w, spec)


def tensors_of(w: Workload, spec: CpuSpec = ARM, seed: int = 0) -> SampleTensors:
    return SampleTensors(w, spec, CpuTarget(spec).space(w), seed)


@pytest.mark.parametrize(("text", "epilogue"), INTEGERS)
def test_int8_kernels_give_the_reference_s_bits(text: str, epilogue: str) -> None:
    w = parse_workload(text, epilogue)
    assert emulated_error_of(tensors_of(w), baseline(w)) == 0


@pytest.mark.parametrize(("text", "epilogue"), REALS)
def test_quantised_kernels_give_the_nearest_integers(text: str, epilogue: str) -> None:
    w = parse_workload(text, epilogue)
    assert emulated_error_of(tensors_of(w), baseline(w)) < TOLERANCE


@pytest.mark.parametrize(("text", "epilogue"), FLOATS)
def test_float32_kernels_need_no_dot_products(text: str, epilogue: str) -> None:
    w = parse_workload(text, epilogue)
    tensors, values = tensors_of(w, PLAIN_ARM), baseline(w, PLAIN_ARM)
    function = scheduled(w, PLAIN_ARM, values)
    assert emulated(function, tensors, values, dots=False) < TOLERANCE


def test_winograd_s_algorithm_gives_the_nearest_integers() -> None:
    w = parse_workload("conv2d:n=1,c=16,h=6,w=6,o=16,k=3,p=1", REALS[3][1])
    assert emulated_error_of(tensors_of(w), {**baseline(w), "algorithm": 4}) < TOLERANCE


@pytest.mark.slow(seconds=8)
@given(test_int8.workloads(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(6), derandomize=True, deadline=None)
def test_drawn_int8_schedules_give_the_reference_s_bits(w: Workload, seed: int) -> None:
    assert drawn_error(w, seed) == 0


@pytest.mark.slow(seconds=8)
@given(test_quantised.workloads(), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(6), derandomize=True, deadline=None)
def test_drawn_quantised_schedules_give_the_nearest_integers(w: Workload, seed: int) -> None:
    assert drawn_error(w, seed) < TOLERANCE


def drawn_error(w: Workload, seed: int) -> float:
    """Return the error of a random schedule, or 0 if it does not apply."""
    space = CpuTarget(ARM).space(w)
    values = space.describe(
        space.unravel(np.random.default_rng(seed).integers(0, space.size, 1))[0]
    )
    if "unroll_kernel" in values:  # loops compile faster than unrolled code
        values["unroll_kernel"] = min(values["unroll_kernel"], 1)
    try:
        return emulated_error_of(SampleTensors(w, ARM, space, seed), values)
    except DoesNotApply:
        return 0.0


@pytest.mark.parametrize(("data", "weight"), [(-128, -128), (-128, 127), (127, -128), (127, 127)])
def test_the_largest_numbers_neither_saturate_nor_wrap(data: int, weight: int) -> None:
    w = parse_workload("dense:n=3,c=37,o=20", "bias, >> 15, min 127, max -128")
    tensors = tensors_of(w)
    tensors.data[:], tensors.weights[:] = data, weight
    tensors.expected = integer_reference(
        w, tensors.data, tensors.weights, tensors.added, tensors.expected.shape
    )
    assert emulated_error_of(tensors, baseline(w)) == 0


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("end", ["min", "max"])
def test_zero_points_at_either_end_are_subtracted(kind: str, end: str) -> None:
    w = parse_workload("conv2d:n=1,c=8,h=4,w=4,o=8,k=3,p=1", f"dequantise {kind}")
    tensors = tensors_of(w)
    zero, other = np.iinfo(kind).min, np.iinfo(kind).max
    if end == "max":
        zero, other = other, zero
    tensors.data[:], tensors.weights[:] = other, -128
    tensors.added["quantisation"] = pack_scales(zero, [], [])
    tensors.added["scale"][:] = 1
    inside = np.pad(np.full((4, 4), 8 * (other - zero) * -128), 1)
    whole = sum(np.roll(inside, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1))
    tensors.expected = np.broadcast_to(whole[1:-1, 1:-1], tensors.expected.shape).astype(float)
    tensors.spread = np.zeros(())
    assert emulated_error_of(tensors, baseline(w)) == 0


def test_what_a_kernel_defines_is_what_its_schedules_compute() -> None:
    w = parse_workload(*INTEGERS[4])
    values = baseline(w)
    function = kernel_for(w, ARM).define(w, ARM, values)
    assert emulated(function, tensors_of(w), values) == 0


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [INTEGERS[0], REALS[0], INTEGERS[4], INTEGERS[5]],
)
def test_the_assembly_holds_the_dot_product(text: str, epilogue: str) -> None:
    w = parse_workload(text, epilogue)
    assembly = assembly_of(scheduled(w, ARM, baseline(w)), llvm_target(ARM))
    dots = re.findall(r"^\tsdot\tv\d+\.4s, v\d+\.16b, v\d+\.(?:16b|4b\[\d\])$", assembly, re.M)
    assert len(dots) >= 8


def test_a_processor_without_dot_products_stops_at_the_first() -> None:
    w = parse_workload(*INTEGERS[4])
    values = baseline(w)
    with pytest.raises(EmulationFailed, match="an instruction 0x") as stopped:
        emulated(scheduled(w, ARM, values), tensors_of(w), values, dots=False)
    instruction = int(str(stopped.value).rpartition("0x")[2], 16)
    assert instruction & 0xFFE0FC00 == 0x4E809400  # Arm's manual: SDOT (vector)


def test_what_a_kernel_refuses_is_said() -> None:
    w = parse_workload(*INTEGERS[4])
    function = scheduled(w, ARM, baseline(w))
    arrays = [argument.numpy() for argument in tensors_of(w).arguments(baseline(w))]
    with pytest.raises(EmulationFailed, match=r"ValueError: Mismatched data"):
        Emulator(object_of(function, ARM)).call([arrays[0][:, :-1].copy(), *arrays[1:]])


@pytest.mark.parametrize(("read", "write"), [(1 << 12, 0), (-(1 << 12), 0), (0, 1 << 12)])
def test_memory_beyond_a_tensor_is_not_touched(read: int, write: int) -> None:
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        data, out = (T.arg(name, T.buffer((64,), "int8")) for name in ("data", "out"))
        with T.serial(0, 64) as i:
            T.buffer_store(out, data[i + read], [i + write])
    numbers = np.arange(64, dtype=np.int8)
    with pytest.raises(EmulationFailed, match="UNMAPPED"):
        Emulator(object_of(builder.get(), ARM)).call([numbers, numbers])


def test_a_processor_with_dot_products_has_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda: CPUINFO)
    known = machine.flags.__wrapped__()
    monkeypatch.setattr(machine, "flags", lambda: known)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    own = this_machine.__wrapped__()
    assert (own.lanes, own.dots, own.architecture, own.registers) == (4, ARM_DOTS, "aarch64", 32)
    assert CpuTarget(own).traits.dtypes == {"float32", "int8"}
    bare = replace(own, dots="")
    assert CpuTarget(bare).traits.dtypes == {"float32"}
    with pytest.raises(WorkloadError, match=r"asimddp.*write dtype=float32"):
        CpuTarget(bare).space(parse_workload(*INTEGERS[4]))


def test_llvm_is_told_of_the_instructions_and_the_machine() -> None:
    assert f"+{ARM_DOTS}" in llvm_target(ARM).attrs["mattr"]
    assert "aarch64" in llvm_target(PLAIN_ARM).attrs["mtriple"]
    assert "mattr" not in llvm_target(PLAIN_ARM).attrs


def test_a_specification_names_its_machine_and_runs_on_no_other() -> None:
    assert CpuSpec.from_json(ARM.to_json()) == ARM
    assert "triple" not in this_machine().to_json()
    with pytest.raises(SpecError):
        CpuSpec.from_json({**ARM.to_json(), "triple": "; rm"})
    rebuild = kind_of("cpu")[0].rebuild
    assert rebuild is not None
    other = replace(this_machine(), triple="riscv64-linux-gnu", dots="")
    with pytest.raises(SpecError, match=r"for riscv64, but this machine is"):
        rebuild(other.to_json(), "")


@pytest.mark.parametrize(("text", "epilogue"), [INTEGERS[1], INTEGERS[4]])
def test_every_config_has_an_estimate(text: str, epilogue: str) -> None:
    w = parse_workload(text, epilogue)
    space = CpuTarget(ARM).space(w)
    core = CpuMachine.from_rates(ARM, 3e9 * 4 * ARM.lanes, 150e9, 45e9, (48 << 10, 2 << 20))
    configs = space.unravel(np.random.default_rng(0).integers(0, space.size, 200))
    assert np.isfinite(estimate(w, core, space, configs).matrix).all()


def test_sums_of_signed_data_begin_at_zero() -> None:
    weights = np.random.default_rng(0).integers(-128, 128, (2, 12, 5), np.int8)
    plain, offset = SIGNED_FOURS.pack(weights), SIGNED_FOURS.pack(weights, per_offset=True)
    assert not plain[:, 0].any()
    np.testing.assert_array_equal(offset[:, 0], -weights.astype(int).sum(axis=1))
    steps = plain[:, 1:].astype("<i4").view(np.int8).reshape(2, 3, 5, 4)
    np.testing.assert_array_equal(steps.transpose(0, 1, 3, 2).reshape(2, 12, 5), weights)
