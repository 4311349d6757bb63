"""Checks that exp, erf, tanh and functions built from them are vectorised and accurate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf, expit
from tvm import relax
from tvm.ir import IRModule

from tilewright.networks.compiled.library import compiled_library
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.targets.cpu.compile import llvm_target, lowering
from tilewright.targets.cpu.spec import CpuSpec

pytestmark = pytest.mark.slow(seconds=4)

X = np.concatenate([
    np.linspace(-12, 12, 999), [-1e30, -200, -88.5, 0, 88.5, 200, 1e30],
]).astype(np.float32)  # fmt: skip


def test_they_equal_scipys_and_call_no_scalar_function(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    operators = (
        relax.op.sigmoid, relax.op.nn.silu, relax.op.nn.gelu, relax.op.nn.gelu_tanh,
        relax.op.erf, relax.op.tanh,
    )  # fmt: skip
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(relax.Tuple([builder.emit(of(x)) for of in operators]))
        builder.emit_func_output(made)
    module: IRModule = builder.finalize()
    target = llvm_target(CpuSpec.parse(""))
    content, weights = compiled_library(module, target, lowering())
    wide = X.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    wanted = [
        expit(wide), wide * expit(wide), 0.5 * wide * (1 + erf(wide / np.sqrt(2))),
        0.5 * wide * (1 + np.tanh(inner)), erf(wide), np.tanh(wide),
    ]  # fmt: skip
    path = tmp_path / "network.so"
    path.write_bytes(content)
    for result, want in zip(LoadedLibrary(path, weights)([X]), wanted, strict=True):
        np.testing.assert_allclose(result, want, rtol=2e-5, atol=2e-5)
    symbols = subprocess.run(["nm", "-D", "-u", path], capture_output=True, text=True, check=True)
    assert not {"expf", "erff", "tanhf", "exp", "erf"} & set(symbols.stdout.split())


def test_exp_of_a_softmax_calls_no_scalar_function(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, X.size), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            exp = builder.emit(relax.op.exp(relax.op.minimum(x, relax.const(80.0))))
            made = builder.emit_output(relax.Tuple([exp, builder.emit(relax.op.nn.softmax(x, -1))]))
        builder.emit_func_output(made)
    module: IRModule = builder.finalize()
    content, weights = compiled_library(module, llvm_target(CpuSpec.parse("")), lowering())
    path = tmp_path / "network.so"
    path.write_bytes(content)
    rows = np.tile(X, (3, 1))
    exp, softmax = LoadedLibrary(path, weights)([rows])
    np.testing.assert_allclose(
        exp, np.exp(np.minimum(rows.astype(np.float64), 80)), rtol=2e-6, atol=1e-37
    )
    np.testing.assert_array_equal(softmax, (rows == X.max()).astype(np.float32))
    symbols = subprocess.run(["nm", "-D", "-u", path], capture_output=True, text=True, check=True)
    assert not {"expf", "exp"} & set(symbols.stdout.split())
