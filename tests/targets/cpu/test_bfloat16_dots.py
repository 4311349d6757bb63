"""Tests bfloat16 products with the instruction `vdpbf16ps`: results, code, and when it is used."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm.script import ir_builder
from tvm.script.ir_builder import tirx as T

from tilewright.core.errors import SpecError, WorkloadError
from tilewright.targets.base import Space
from tilewright.targets.cpu import machine
from tilewright.targets.cpu import spec as specs
from tilewright.targets.cpu.assembly import mix_of
from tilewright.targets.cpu.compile import assembly_of, llvm_target, lowering, scheduled
from tilewright.targets.cpu.estimates import CpuMachine, estimate
from tilewright.targets.cpu.kernels.amx_tiles import LANES, add_words, sum_registers
from tilewright.targets.cpu.kernels.amx_tiles import SUM_REGISTERS as SUMS
from tilewright.targets.cpu.kernels.conv2d_amx import ConvolutionTiles
from tilewright.targets.cpu.kernels.kernel_registry import kernel_for
from tilewright.targets.cpu.spec import AMX, DOTS_BFLOAT16, CpuSpec, this_machine
from tilewright.targets.registry import kind_of
from tilewright.targets.workload import parse_workload

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX512-BF16 is of x86-64")
HAS = pytest.mark.skipif(
    not machine.multiplies_bfloat16(), reason="this processor has no AVX512-BF16"
)
EPYC = CpuSpec(2, 16, "znver4", "an EPYC", "avx512vnni", "bf16", DOTS_BFLOAT16)
APART = 5
"""Number of unused words between two rows of data."""
ONLY_DOTS = "fma f16c avx2 avx512f avx512cd avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"
Numbers = NDArray[Any]


def added(rows: int, tiles: int, words: int) -> Any:
    """Return a function on sums (2 + rows, 16 × tiles) that adds products to them.

    The first two rows are not changed.
    """
    row = 2 * (words + APART)
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        data = T.arg("data", T.buffer((rows * row,), "uint16"))
        weights = T.arg("weights", T.buffer((tiles * words * LANES,), "int32"))
        sums = T.arg("sums", T.buffer((2 + rows, tiles * LANES), "float32"))
        held = sum_registers()
        starts = [T.int32(r * row) for r in range(rows)]
        columns = [T.int32(j * words * LANES) for j in range(tiles)]
        add_words(held, sums, 2, (data, starts), (weights, columns), words)
    return builder.get()


def called(data: Numbers, weights: Numbers, sums: Numbers) -> Numbers:
    """Add products of data (rows, words, 2) and weights (tiles, words, 16, 2) to the sums."""
    rows, words, _ = data.shape
    function = added(rows, len(weights), words).with_attr("global_symbol", "add")
    target = llvm_target(replace(this_machine(), bfloat16=DOTS_BFLOAT16))
    module = tvm.compile(tvm.IRModule({"add": function}), target=target, tir_pipeline=lowering())
    padded = np.pad(data, ((0, 0), (0, APART), (0, 0)), constant_values=np.nan)
    before = np.concatenate([np.full((2, sums.shape[1]), 7, np.float32), sums])
    out = tvm.runtime.tensor(before)
    packed = np.ascontiguousarray(weights).view(np.int32).reshape(-1)
    module["add"](
        tvm.runtime.tensor(padded.view(np.uint16).reshape(-1)), tvm.runtime.tensor(packed), out
    )
    result: Numbers = out.numpy()
    assert (result[:2] == 7).all()
    return result[2:]


def product(data: Numbers, weights: Numbers) -> Numbers:
    """Compute the same product with numpy, shape (rows, 16 × tiles)."""
    einsum = np.einsum("rkp,tkcp->rtc", data.astype(np.float64), weights.astype(np.float64))
    return einsum.reshape(len(data), -1)


@HAS
@pytest.mark.parametrize("words", [1, 3, 16, 40])
@pytest.mark.parametrize(
    ("rows", "tiles"), [(1, 1), (24, 1), (7, 2), (12, 2), (8, 3), (1, 4), (6, 4)]
)
def test_sums_of_integers_are_exact(rows: int, tiles: int, words: int) -> None:
    draw = np.random.default_rng(rows * words + tiles)
    data = draw.integers(-128, 129, (rows, words, 2)).astype(ml_dtypes.bfloat16)
    weights = draw.integers(-128, 129, (tiles, words, LANES, 2)).astype(ml_dtypes.bfloat16)
    sums = draw.integers(-999, 999, (rows, tiles * LANES)).astype(np.float32)
    np.testing.assert_array_equal(called(data, weights, sums), sums + product(data, weights))


@HAS
def test_sums_of_any_numbers_are_near() -> None:
    draw = np.random.default_rng(1)
    data = draw.standard_normal((12, 64, 2)).astype(ml_dtypes.bfloat16)
    weights = draw.standard_normal((2, 64, LANES, 2)).astype(ml_dtypes.bfloat16)
    result = called(data, weights, np.zeros((12, 2 * LANES), np.float32))
    scale = product(np.abs(data), np.abs(weights))
    assert (np.abs(result - product(data, weights)) < 1e-6 * scale).all()


@HAS
def test_numbers_below_the_smallest_normal_one_are_zero() -> None:
    """The documentation says so for this instruction. AMX does the same."""
    data = np.full((1, 1, 2), 1e-39).astype(ml_dtypes.bfloat16)
    weights = np.full((1, 1, LANES, 2), 1e20).astype(ml_dtypes.bfloat16)
    assert (data != 0).all()
    assert not called(data, weights, np.zeros((1, LANES), np.float32)).any()


@pytest.mark.parametrize("tiles", [1, 2, 3, 4])
def test_sums_stay_in_registers(tiles: int) -> None:
    """Each word of a row takes one instruction per tile, without calls or spills."""
    rows = SUMS // tiles
    assembly = assembly_of(added(rows, tiles, 16), llvm_target(EPYC))
    _, *rest = assembly.split("\tvdpbf16ps")
    assert rest
    assert len(rest) % (rows * tiles) == 0  # LLVM may unroll the loop
    loop = "".join(rest[:-1])
    assert "(%rsp" not in loop
    assert "call" not in loop


@pytest.mark.parametrize("text", ["conv2d:n=1,c=64,h=14,w=14,o=64,k=3,p=1", "dense:n=64,c=64,o=64"])
def test_an_epyc_gets_the_instruction(text: str) -> None:
    workload = parse_workload(text + ",dtype=bfloat16", "bias, relu")
    values = kernel_for(workload, EPYC).baseline_values(workload, EPYC)
    assembly = assembly_of(scheduled(workload, EPYC, values), llvm_target(EPYC))
    assert mix_of(assembly).fused >= assembly.count("\tvdpbf16ps") > 0
    assert "\tvcvtneps2bf16" in assembly
    assert "tilewright_add" not in assembly
    assert "ldtilecfg" not in assembly


def test_precision_takes_amx_first_and_then_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "this_machine", lambda: replace(EPYC, mcpu="", precision=""))
    monkeypatch.setattr(machine, "flags", lambda: tuple(ONLY_DOTS.split()))
    monkeypatch.setattr(machine, "allows_amx", lambda: False)
    result = CpuSpec.parse("precision=bf16")
    assert result.bfloat16 == DOTS_BFLOAT16
    assert not result.tiles
    assert CpuSpec.from_json(result.to_json()) == result
    with pytest.raises(SpecError, match="vectors of 16"):
        CpuSpec.parse("lanes=8,precision=bf16")
    assert not CpuSpec.parse("precision=auto").bfloat16
    monkeypatch.setattr(machine, "allows_amx", lambda: True)
    for precision in ("bf16", "auto"):
        assert CpuSpec.parse(f"precision={precision}").bfloat16 == AMX


def test_groups_are_multiplied_in_float32() -> None:
    """Tile instructions would multiply them with zeros of other groups, which does not pay here."""
    few = parse_workload("conv2d:n=1,c=64,h=8,w=8,o=64,k=3,p=1,g=4,dtype=bfloat16", "bias")
    assert isinstance(kernel_for(few, replace(EPYC, bfloat16=AMX)), ConvolutionTiles)
    with pytest.raises(WorkloadError, match="no kernel"):
        kernel_for(few, EPYC)


@pytest.mark.parametrize("missing", ["avx512_bf16", "avx512vl"])
def test_half_of_the_instructions_is_not_enough(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ONLY_DOTS.split()
    monkeypatch.setattr(machine, "flags", lambda: tuple(known))
    assert machine.multiplies_bfloat16()
    known.remove(missing)
    assert not machine.multiplies_bfloat16()


def test_an_artifact_is_refused_where_the_instruction_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rebuild = kind_of("cpu")[0].rebuild
    assert rebuild is not None
    spec = replace(this_machine(), precision="bf16", bfloat16=DOTS_BFLOAT16)
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: True)
    assert rebuild(spec.to_json(), "").specification == spec.to_json()
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: False)
    with pytest.raises(SpecError, match="needs AVX512-BF16"):
        rebuild(spec.to_json(), "")


def test_dot_products_are_estimated_at_one_a_cycle() -> None:
    workload = parse_workload("dense:n=512,c=1024,o=1024,dtype=bfloat16", "bias")
    space = Space("kernels", kernel_for(workload, EPYC).knobs(workload, EPYC))
    core = CpuMachine.from_rates(replace(EPYC, threads=1), 200e9, 200e9, 40e9, (32 << 10, 1 << 20))
    result = estimate(workload, core, space, space.unravel(np.arange(space.size)))
    dots = 512 * 1024 * 1024 / (2 * LANES)
    multiply = result.total("work").min()
    assert dots < multiply < 1.2 * dots
