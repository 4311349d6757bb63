"""Compares row-wise operators with NumPy and SciPy: softmax, normalisations and reductions.

Hypothesis draws shapes and values. The row length matters: whole vectors, a last vector that
overlaps the one before, or less than one vector.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx_graphs import normal
from scipy.special import log_softmax, softmax
from tvm import relax
from tvm.s_tir import Schedule

from tests.draws import examples, nightly_after
from tilewright.networks.compiled import default_schedules
from tilewright.networks.compiled.library import compiled_library
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.targets.cpu.compile import llvm_target, lowering
from tilewright.targets.cpu.spec import CpuSpec

Array = NDArray[Any]

SHAPES = [
    (2, 3, 5, 64), (1, 7, 768), (4, 10), (1, 16), (3, 8), (2, 12, 197), (1, 4096, 24), (6, 1),
    (3, 197, 197), (1, 20011), (70, 301), (5, 3), (9, 31),
]  # fmt: skip
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (relax.op.sum, np.sum), "mean": (relax.op.mean, np.mean),
    "max": (relax.op.max, np.max), "min": (relax.op.min, np.min),
    "prod": (relax.op.prod, np.prod), "variance": (relax.op.variance, np.var),
}  # fmt: skip
SIZES = st.one_of(st.integers(1, 40), st.sampled_from((49, 64, 100, 127, 197)))


def module_of(of: Callable[[Any], Any], x: Array) -> Any:
    """Return a module whose function `main` applies `of` to a variable like `x`."""
    builder = relax.BlockBuilder()
    read = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [read]):
        with builder.dataflow():
            made = builder.emit_output(of(read))
        builder.emit_func_output(made)
    return builder.finalize()


def run(of: Callable[[Any], Any], x: Array) -> Array:
    """Compile a network with one operator to a library, run it and return the result."""
    module = module_of(of, x)
    content, weights = compiled_library(module, llvm_target(CpuSpec.parse("")), lowering())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        path.write_bytes(content)
        (result,) = LoadedLibrary(path, weights)([x])
        return result


@st.composite
def rows(draw: st.DrawFn, most_axes: int = 4) -> Array:
    """Draw values of a random shape. Some are large, and some may be extremely negative."""
    before = draw(st.lists(st.integers(1, 5), max_size=most_axes - 1))
    scale = draw(st.sampled_from((0.1, 3.0, 60.0)))
    x = scale * normal(*before, draw(SIZES), seed=draw(st.integers(0, 9)))
    if draw(st.booleans()):
        x[np.random.default_rng(1).random(x.shape) < 0.3] = draw(
            st.sampled_from((-1e30, -88.0, 500.0, np.float32(-3.4e38)))
        )
    return x.astype(np.float32)


@pytest.mark.slow(seconds=0.3)
@pytest.mark.parametrize("shape", nightly_after(5, [(shape,) for shape in SHAPES]))
def test_softmax_is_scipys(shape: tuple[int, ...]) -> None:
    x = 20 * normal(*shape, seed=3)
    result = run(lambda read: relax.op.nn.softmax(read, -1), x)
    np.testing.assert_allclose(result, softmax(x.astype(np.float64), axis=-1), rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(result.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.slow(seconds=0.3)
@pytest.mark.parametrize("shape", nightly_after(5, [(shape,) for shape in SHAPES]))
def test_layer_normalisation_is_what_its_definition_says(shape: tuple[int, ...]) -> None:
    x = 100 + normal(*shape, seed=4)
    scale, shift = normal(shape[-1], seed=5), normal(shape[-1], seed=6)

    def of(read: Any) -> Any:
        parts = relax.const(scale), relax.const(shift)
        return relax.op.nn.layer_norm(read, *parts, axes=[-1], epsilon=1e-5)

    wide = x.astype(np.float64)
    mean, variance = wide.mean(axis=-1, keepdims=True), wide.var(axis=-1, keepdims=True)
    expected = (wide - mean) / np.sqrt(variance + 1e-5) * scale + shift
    np.testing.assert_allclose(run(of, x), expected, atol=1e-3)


@pytest.mark.slow(seconds=2)
@settings(max_examples=examples(25), deadline=None)
@given(rows(), st.integers(-4, -1))
@example(normal(4, 16, 16, seed=7), -2)  # rows and columns of the same length
@example(normal(16, 1, 16, seed=7), -3)
def test_softmax_along_any_axis_is_scipys(x: Array, axis: int) -> None:
    axis = max(axis, -x.ndim)
    wide = x.astype(np.float64)
    result = run(lambda read: relax.op.nn.softmax(read, axis), x)
    np.testing.assert_allclose(result, softmax(wide, axis=axis), rtol=2e-5, atol=1e-7)
    result = run(lambda read: relax.op.nn.log_softmax(read, axis), x)
    np.testing.assert_allclose(result, log_softmax(wide, axis=axis), rtol=1e-5, atol=2e-5)


@pytest.mark.slow(seconds=0.7)
@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 60), st.integers(0, 9))
def test_softmax_of_masked_rows_is_numpys(size: int, seed: int) -> None:
    """Some values of a row are -inf. If all are, or one is NaN, the row's result is NaN."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(6, size)).astype(np.float32)
    x[random.random(x.shape) < 0.5] = -np.inf
    x[0], x[1, 0], x[2, -1] = -np.inf, 1.0, np.nan
    with np.errstate(invalid="ignore"):
        shifted = np.exp(x - x.max(axis=-1, keepdims=True))
        expected = shifted / shifted.sum(axis=-1, keepdims=True)
    assert np.isnan(expected[[0, 2]]).all()
    result = run(lambda read: relax.op.nn.softmax(read, -1), x)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-7)
    assert (result[(x == -np.inf) & ~np.isnan(expected)] == 0).all()


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=examples(40), deadline=None)
@given(
    rows(), st.sampled_from(sorted(REDUCTIONS)), st.sets(st.integers(-4, -1), min_size=1),
    st.booleans(),
)  # fmt: skip
@example(normal(3, 5, 7, 7, seed=1), "mean", {-1, -2}, True)
@example(normal(3, 5, 1, 7, seed=1), "sum", {-1, -3}, False)
@example(normal(8, 9, 49, seed=1), "variance", {-1, -2}, False)
@example(normal(197, seed=1), "max", {-1}, False)
def test_reductions_are_numpys(x: Array, name: str, drawn: set[int], keepdims: bool) -> None:
    axes = sorted({max(axis, -x.ndim) for axis in drawn})
    ours, numpys = REDUCTIONS[name]
    if name in ("prod", "variance"):
        x = 1 + np.clip(x, -3, 3) / 100  # products of hundreds stay near 1
    elif name in ("sum", "mean"):
        x = np.clip(x, -1e30, 1e30)  # sums of many are finite in float32
    result = run(lambda read: ours(read, axes, keepdims=keepdims), x)
    wide = x.astype(np.float64)
    expected = numpys(wide, axis=tuple(axes), keepdims=keepdims)
    size = np.sum(np.abs(wide), axis=tuple(axes), keepdims=keepdims)
    error = np.abs(result - expected) / (1e-6 + size) if name in ("sum", "mean") else None
    if error is not None:
        assert error.max() < 1e-6
    elif name in ("max", "min"):
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow(seconds=1)
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 12), st.integers(1, 12))
@example(1, 33, 28, 28)
def test_instance_normalisation_is_what_its_definition_says(
    batch: int, channels: int, height: int, width: int
) -> None:
    x = normal(batch, channels, height, width, seed=8)
    scale, shift = normal(channels, seed=5), normal(channels, seed=6)

    def of(read: Any) -> Any:
        parts = relax.const(scale), relax.const(shift)
        return relax.op.nn.instance_norm(read, *parts, channel_axis=1, axes=[2, 3], epsilon=1e-3)

    wide = x.astype(np.float64)
    mean, variance = (f(wide, axis=(2, 3), keepdims=True) for f in (np.mean, np.var))
    expected = (wide - mean) / np.sqrt(variance + 1e-3)
    expected = expected * scale[:, None, None] + shift[:, None, None]
    np.testing.assert_allclose(run(of, x), expected, atol=2e-4)


@pytest.mark.slow(seconds=2)
def test_what_follows_a_reduction_is_part_of_its_loops() -> None:
    x = normal(5, 197, seed=9)

    def of(read: Any) -> Any:
        return relax.op.nn.relu(relax.op.subtract(relax.op.nn.softmax(read, -1), relax.const(0.01)))

    expected = np.maximum(softmax(x.astype(np.float64), axis=-1) - 0.01, 0)
    np.testing.assert_allclose(run(of, x), expected, atol=1e-6)


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("axis", [0, 1])
def test_integers_are_summed_exactly(axis: int) -> None:
    x = np.arange(7 * 45, dtype=np.int32).reshape(7, 45) * 1001
    result = run(lambda read: relax.op.sum(read, axis), x)
    np.testing.assert_array_equal(result, x.sum(axis=axis))


@pytest.mark.parametrize(("of", "written"), [
    (lambda read: relax.op.nn.softmax(read, -1), True),
    (lambda read: relax.op.nn.softmax(read, 1), False),
    (lambda read: relax.op.mean(read, [-1]), True),
    (lambda read: relax.op.mean(read, [1]), False),
    (lambda read: relax.op.argmax(read, -1), False),
])  # fmt: skip
def test_only_rows_are_written_anew(of: Callable[[Any], Any], written: bool) -> None:
    """A reduction along another axis keeps the schedule that is vectorised along the last axis."""
    module = relax.transform.LegalizeOps()(module_of(of, normal(4, 16, 32, seed=7)))
    (function,) = (f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    made = default_schedules.scheduled(function, 8)
    assert ("sblock" not in made.script()) == written
    assert Schedule(tvm.IRModule({"main": made})) is not None
