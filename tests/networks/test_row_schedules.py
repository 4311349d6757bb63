"""Checks what is computed row by row: softmax and layer normalisation, beside NumPy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_graphs import normal
from scipy.special import softmax
from tvm import relax

from tilewright.networks.compiled.library import compiled, library_bytes
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.targets.cpu.compile import llvm_target
from tilewright.targets.cpu.pipeline import lowering
from tilewright.targets.cpu.spec import CpuSpec

SHAPES = [(2, 3, 5, 64), (1, 7, 768), (4, 10), (1, 16), (3, 8), (2, 12, 197), (1, 4096, 24), (6, 1)]


def run(of: Any, x: NDArray[np.float32], folder: Path) -> NDArray[np.float32]:
    """What the library of one operator gives."""
    builder = relax.BlockBuilder()
    read = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [read]):
        with builder.dataflow():
            made = builder.emit_output(of(read))
        builder.emit_func_output(made)
    module = builder.finalize()
    executable, weights = compiled(module, llvm_target(CpuSpec.parse("")), lowering(), module)
    path = folder / "network.so"
    path.write_bytes(library_bytes(executable))
    (found,) = LoadedLibrary(path, weights)([x])
    return found


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_is_scipys(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = 20 * normal(*shape, seed=3)
    found = run(lambda read: relax.op.nn.softmax(read, -1), x, tmp_path)
    np.testing.assert_allclose(found, softmax(x.astype(np.float64), axis=-1), rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_normalisation_is_what_its_definition_says(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = 100 + normal(*shape, seed=4)
    scale, shift = normal(shape[-1], seed=5), normal(shape[-1], seed=6)

    def of(read: Any) -> Any:
        parts = relax.const(scale), relax.const(shift)
        return relax.op.nn.layer_norm(read, *parts, axes=[-1], epsilon=1e-5)

    wide = x.astype(np.float64)
    mean, variance = wide.mean(axis=-1, keepdims=True), wide.var(axis=-1, keepdims=True)
    expected = (wide - mean) / np.sqrt(variance + 1e-5) * scale + shift
    np.testing.assert_allclose(run(of, x, tmp_path), expected, atol=1e-3)


@pytest.mark.slow(seconds=1)
def test_softmax_along_another_axis_is_right(tmp_path: Path) -> None:
    x = normal(4, 16, 32, seed=7)
    found = run(lambda read: relax.op.nn.softmax(read, 1), x, tmp_path)
    np.testing.assert_allclose(found, softmax(x.astype(np.float64), axis=1), rtol=2e-5)
