"""Checks the CPU features that are passed to LLVM for this processor."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest
from tvm.target import codegen

from tilewright.core.errors import WorkloadError
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.compile import llvm_target
from tilewright.targets.cpu.kernels.conv2d_amx import ConvolutionTiles
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.spec import AMX, CpuSpec, this_machine
from tilewright.targets.workload import parse_workload

XEON = CpuSpec(2, 16, "sapphirerapids", "a Xeon", "avx512vnni", "bf16", AMX)
ROCKETLAKE = frozenset(("fma", "f16c", "avx2", *(f"avx512{item}" for item in (
    "f", "cd", "bw", "dq", "vl", "vnni",
))))  # fmt: skip
"""CPU features that LLVM assumes for a processor that identifies itself as a Rocket Lake."""


def told(flags: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setattr(machine, "flags", lambda: tuple(flags.split()))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return machine.corrections(ROCKETLAKE)


def test_llvm_is_told_of_what_the_number_of_a_model_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine reported a Xeon with AMX under the model number of another CPU.

    LLVM then lacked an instruction that rounds to bfloat16, and aborted the compiling process.
    """
    flags = "fma f16c avx2 avx512f avx512cd avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"
    assert told(flags, monkeypatch) == ("+avx512bf16",)


def test_llvm_is_told_of_what_a_virtual_machine_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(told("fma f16c avx2", monkeypatch)) == {
        "-avx512f", "-avx512cd", "-avx512bw", "-avx512dq", "-avx512vl", "-avx512vnni",
    }  # fmt: skip


def test_nobody_is_told_of_a_processor_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("", monkeypatch) == ()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of an x86")
def test_code_for_this_machine_has_no_instruction_it_lacks() -> None:
    known = {str(feature) for feature in codegen.llvm_get_cpu_features(llvm_target(this_machine()))}
    for flag, name in machine.LLVM_FEATURES.items():
        assert (name in known) == (flag in machine.flags()), name


@pytest.mark.parametrize("text", [
    "conv2d:n=1,c=32,h=8,w=8,o=32,k=3,p=1,g=32", "conv2d:n=1,c=64,h=8,w=8,o=64,k=3,p=1,g=16",
])  # fmt: skip
def test_only_tiles_multiply_in_bfloat16(text: str) -> None:
    """Vector kernels refuse a bfloat16 workload.

    They used to compute it in float32, which the check of a build rejected. The layer's workload
    must say float32 instead.
    """
    with pytest.raises(WorkloadError, match="no kernel"):
        kernel_for(parse_workload(f"{text},dtype=bfloat16", "bias"), XEON)
    few = parse_workload("conv2d:n=1,c=64,h=8,w=8,o=64,k=3,p=1,g=4,dtype=bfloat16", "bias")
    assert isinstance(kernel_for(few, XEON), ConvolutionTiles)
    assert not isinstance(kernel_for(replace(few, dtype="float32"), XEON), ConvolutionTiles)
