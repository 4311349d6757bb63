"""Tests the compiling of CPU configs: reproducible bytes, isolated failures, features.

A config whose compiler dies or hangs costs only itself. Features are parsed from LLVM's text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import WorkloadError
from tilewright.targets import make_target
from tilewright.targets.cpu.assembly import CompilerMissing, Mix, c_compiler, mix_of
from tilewright.targets.cpu.compile import assembly_of, llvm_target, scheduled
from tilewright.targets.cpu.compile_pool import CompilePool, shared_pool
from tilewright.targets.cpu.hidden_features import COLUMNS, STORE_COLUMNS
from tilewright.targets.cpu.kernels.conv2d import Convolution
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1,dtype=float32", "bias, relu")
SPEC = CpuSpec.parse("")
BROKEN = "tests.targets.cpu.broken_compiler"


def _batch(count: int) -> list[Mapping[str, int]]:
    """Return different configs, some of which compile."""
    space = make_target("cpu").space(WORK)
    flat = np.random.default_rng(0).permutation(space.size)[:count]
    return [space.describe(config) for config in space.unravel(flat)]


@pytest.mark.nightly(seconds=8)
def test_equal_configs_give_equal_bytes_in_any_process() -> None:
    batch = _batch(24)
    here = shared_pool().compile(WORK, SPEC, batch)
    made = [row for row, item in enumerate(here) if not item.failure][:3]
    other = CompilePool(1)
    assert other.compile(WORK, SPEC, [batch[row] for row in made]) == [here[row] for row in made]
    assert len(made) == 3
    other.close()


@pytest.mark.nightly(seconds=12)
def test_a_compiler_that_dies_or_hangs_costs_one_config() -> None:
    batch = [{"dies": 0}, {"dies": 1}, {"dies": 0, "again": 1}, {"dies": 2}, {"dies": 0, "more": 1}]
    pool = CompilePool(2, seconds=2.0, module=BROKEN)
    result = pool.compile(WORK, SPEC, batch)
    assert [item.failure for item in result] == ["", "died", "", "timeout", ""]
    assert "SIGSEGV" in result[1].reason
    pool.close()


def test_without_a_c_compiler_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilerMissing, match="apt install gcc"):
        c_compiler()
    with pytest.raises(CompilerMissing):
        kind_of("cpu")[0].check("")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("lanes", "mcpu"), [(16, "sapphirerapids"), (8, "haswell")])
def test_registers_on_the_stack_lie_in_one_line_of_a_cache(
    threads: int, lanes: int, mcpu: str
) -> None:
    """Unaligned spills crossed a page border in one of thirty processes.

    A convolution then ran at a third of its speed.
    """
    spec = CpuSpec(threads, lanes, mcpu, "a processor")
    text = "conv2d:n=2,c=192,h=56,w=56,o=128,k=3,s=2,p=1,dtype=float32"
    workload = parse_workload(text, "bias, relu")
    values = Convolution().baseline_values(workload, spec) | {"tile_oc": 2, "tile_ow": 14}
    function = scheduled(workload, spec, values)
    assembly = assembly_of(function, llvm_target(spec))
    name = ".L__tvm_parallel_lambda" if threads > 1 else "tilewright_kernel_compute_"
    body = assembly[assembly.index(f"\n{name}:") :]
    of_stack = re.findall(
        r"\t(vmov\w+)\t(?:.*[yz]mm.*\(%r[sb]p\)|.*\(%r[sb]p\).*[yz]mm)", body[: body.index("retq")]
    )
    assert of_stack
    assert set(of_stack) <= {"vmovaps", "vmovapd"}


def test_an_aligned_stack_keeps_nothing_in_a_loop_that_could_be_before_it() -> None:
    import tvm
    from tvm import s_tir, te

    data = te.placeholder((64, 16), "uint8", "data")
    zero = te.placeholder((1,), "uint8", "zero")

    def value(i: Any, j: Any) -> Any:
        number = data[i, j].astype("float32") - zero[0].astype("float32")
        return (number * tvm.tirx.const(0.1, "float32")).astype("uint8")

    out = te.compute((64, 16), value, "out")
    sch = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, zero, out])}))
    outer, inner = sch.get_loops(sch.get_sblock("out"))
    sch.parallel(outer)
    sch.vectorize(inner)
    spec = CpuSpec(2, 16, "sapphirerapids", "a processor")
    assembly = assembly_of(sch.mod["main"], llvm_target(spec))
    before, _, rest = assembly.partition("vpmovzxbd")
    loop = before[before.rindex("\n.LBB") :] + rest[: rest.index("\tj")]
    assert "vcvtsi2ss" in assembly
    assert "vcvtsi2ss" not in loop


@pytest.mark.slow(seconds=5)
def test_operations_are_those_of_the_workload() -> None:
    result = next(
        item for item in shared_pool().compile(WORK, SPEC, _batch(24)) if not item.failure
    )
    row = dict(zip((column.name for column in COLUMNS), result.hidden, strict=True))
    assert row["operations"] >= 2 * WORK.macs / 4  # Winograd makes a quarter of the products
    assert row["code_bytes"] == len(result.library)
    assert row["bytes_unique"] <= row["bytes_touched"]
    assert len(COLUMNS) > len(STORE_COLUMNS)


X86 = """\
tilewright_kernel_compute_:
	subq	$136, %rsp
	vmovups	64(%rdi), %zmm1
	vbroadcastss	4(%rsi), %zmm2
	vfmadd231ps	%zmm1, %zmm2, %zmm3
	vfmadd231ps	8(%rsi){1to16}, %zmm1, %zmm4
	vmovups	%zmm3, 64(%rsp)
	vmovups	%ymm3, (%rdx)
	jne	.LBB0_1
	retq
.Lfunc_end0:
__tvm_ffi_main:
	vmovups	%zmm3, (%rdx)
.Lfunc_end1:
"""
ARM = """\
tilewright_kernel_compute_:
	sub	sp, sp, #48
	ldr	q1, [x0, #16]
	fmla	v2.4s, v1.4s, v0.s[1]
	fmla	v3.4s, v1.4s, v4.4s
	str	q2, [sp, #16]
	str	q3, [x2]
	b.ne	.LBB0_1
	ret
.Lfunc_end0:
"""


def test_instructions_are_counted_on_both_processors() -> None:
    assert mix_of(X86) == Mix(
        fused=2, broadcasts=2, vector_loads=1, vector_stores=1, spills=1, vectors=6, wide=5,
        total=9, branches=1, stack_bytes=136,
    )  # fmt: skip
    assert mix_of(ARM) == Mix(
        fused=2, broadcasts=1, vector_loads=1, vector_stores=1, spills=1, vectors=5, wide=5,
        total=8, branches=1, stack_bytes=48,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("vta-pynq", "conv2d:n=1,c=16,h=8,w=8,o=16,k=3,p=1,dtype=float32"),
        ("vta-pynq", "batch_matmul:n=1,h=16,c=16,o=16"),
        ("cpu", "max_pool:n=1,c=16,h=8,w=8,k=2"),
    ],
)
def test_what_a_target_does_not_compute_is_refused(target: str, text: str) -> None:
    with pytest.raises(WorkloadError, match=r"float32|int8"):
        make_target(target).space(parse_workload(text))
