"""Checks that compiled operators and kernels propagate NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te
from tvm.ir import IRModule

import tilewright
from tilewright.networks.compiled.image_operators import PoolWindow, pool
from tilewright.networks.compiled.library import compiled_library
from tilewright.networks.compiled.loaded_library import LoadedLibrary
from tilewright.targets.cpu.compile import llvm_target, lowering
from tilewright.targets.cpu.kernels.epilogue import apply_activation
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.steps.float_activations import FUNCTIONS

Array = NDArray[Any]
SPECIAL = np.array([np.nan, np.inf, -np.inf, -104, -88, -17, 0, 88.7, 89, 1e30], np.float32)
X = np.concatenate([SPECIAL, np.linspace(-100, 80, 90, dtype=np.float32)]).reshape(4, 25)
Y = X[::-1].copy()


def softmax(x: Array, _: Array) -> Array:
    """Compute the softmax of each row.

    The difference to the row's maximum is rounded to float32, as in other libraries. If the
    difference is 60, the rounding alone changes the result by a relative 2e-6.
    """
    x = x.astype(np.float32)
    powers = np.exp((x - x.max(axis=1, keepdims=True)).astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def library(
    folder: Path, operators: list[Callable[..., Any]], *arrays: Array, ignore_nan: bool = False
) -> list[Array]:
    """Compile Relax operators as in a network's library, and return their results."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in
             enumerate(arrays)]  # fmt: skip
    with builder.function("main", given):
        with builder.dataflow():
            made = relax.Tuple([builder.emit(operator(*given)) for operator in operators])
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    module: IRModule = builder.finalize()
    content, weights = compiled_library(
        module, llvm_target(CpuSpec.parse("")), lowering(), module, ignore_nan=ignore_nan
    )
    (folder / "network.so").write_bytes(content)
    return LoadedLibrary(folder / "network.so", weights)(list(arrays))


@pytest.mark.slow(seconds=4)
def test_operators_keep_nan_and_infinities_as_numpy_does(tmp_path: Path) -> None:
    op = relax.op
    pairs: list[tuple[Callable[..., Any], Callable[[Array, Array], Array]]] = [
        (lambda x, _: op.nn.relu(x), lambda x, _: np.maximum(x, 0)),
        (lambda x, _: op.clip(x, -1.0, 6.0), lambda x, _: np.clip(x, -1, 6)),
        (lambda x, _: op.clip(x, -np.inf, 6.0), lambda x, _: np.minimum(x, 6)),
        (lambda x, y: op.maximum(x, y), lambda x, y: np.maximum(x, y)),
        (lambda x, y: op.minimum(x, y), lambda x, y: np.minimum(x, y)),
        (lambda x, _: op.max(x, [1]), lambda x, _: x.max(axis=1)),
        (lambda x, _: op.min(x, [0]), lambda x, _: x.min(axis=0)),
        (lambda _, y: op.max(y), lambda _, y: y.max()),
        (lambda x, _: op.exp(x), lambda x, _: np.exp(x)),
        (lambda x, _: op.sigmoid(x), lambda x, _: 1 / (1 + np.exp(-x))),
        (lambda x, _: op.tanh(x), lambda x, _: np.tanh(x)),
        (lambda x, _: op.nn.silu(x), lambda x, _: x / (1 + np.exp(-x))),
        (lambda x, _: op.equal(x, x), lambda x, _: x == x),
        (lambda x, _: op.not_equal(x, x), lambda x, _: x != x),
        (lambda x, y: op.not_equal(x, y), lambda x, y: x != y),
        (lambda x, y: op.not_equal(x, op.add(y, y)), lambda x, y: x != y + y),
        (lambda x, _: op.isnan(x), lambda x, _: np.isnan(x)),
        (
            lambda x, _: op.nn.softmax(x, 1),
            softmax,
        ),
    ]
    result = library(tmp_path, [operator for operator, _ in pairs], X, Y)
    for number, ((_, of_numpy), ours) in enumerate(zip(pairs, result, strict=True)):
        with np.errstate(all="ignore"):
            wanted = of_numpy(X.astype(np.float64), Y.astype(np.float64))
            wanted = wanted if wanted.dtype == bool else wanted.astype(np.float32)
        np.testing.assert_allclose(ours, wanted, rtol=2e-6, atol=1e-36, err_msg=str(number))


@pytest.mark.slow(seconds=2)
def test_a_maximum_of_nothing_but_minus_infinity_is_minus_infinity(tmp_path: Path) -> None:
    x = np.full((2, 3, 40), -np.inf, np.float32)
    whole, along, pooled = library(
        tmp_path,
        [
            relax.op.max,
            lambda x: relax.op.max(x, [1]),
            lambda x: relax.op.nn.max_pool1d(x, [3], [1], [1, 1]),
        ],
        x,
    )
    assert whole == -np.inf
    assert (along == -np.inf).all()
    assert (pooled == -np.inf).all()


def test_the_fast_form_differs_only_for_nan(tmp_path: Path) -> None:
    """TVM's fast maximum returns the second operand if either one is NaN."""
    x, y = np.float32([np.nan, 1.0, -np.inf]), np.float32([2.0, -3.0, 0.5])
    (fast_folder := tmp_path / "fast").mkdir()
    (usual,) = library(tmp_path, [relax.op.maximum], x, y)
    (fast,) = library(fast_folder, [relax.op.maximum], x, y, ignore_nan=True)
    np.testing.assert_array_equal(usual, [np.nan, 1.0, 0.5])
    np.testing.assert_array_equal(fast[1:], usual[1:])
    assert not np.isnan(fast[0])


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("at", [0, 15, 16, 37, 98, 682])
def test_a_nan_anywhere_in_a_row_is_in_its_maximum(at: int, tmp_path: Path) -> None:
    x = np.zeros((3, 683), np.float32)
    x[1, at] = np.nan
    (result,) = library(tmp_path, [lambda x: relax.op.max(x, [1])], x)
    np.testing.assert_array_equal(result, np.float32([0, np.nan, 0]))


def run_te(compute: Callable[[Any], Any], x: Array) -> Array:
    """Compile a TE expression as a kernel and return its result."""
    given = te.placeholder(x.shape, "float32", name="x")
    function = te.create_prim_func([given, made := compute(given)])
    target = llvm_target(CpuSpec.parse("threads=1"))
    module = IRModule({"main": function.with_attr("global_symbol", "main")})
    built = tvm.compile(module, target=target, tir_pipeline=lowering())
    out = tvm.runtime.tensor(np.empty([int(size) for size in made.shape], np.float32))
    built["main"](tvm.runtime.tensor(x), out)
    result: Array = out.numpy()
    return result


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_activations_of_kernels_keep_nan(kind: str) -> None:
    x = np.linspace(-10, 10, 64, dtype=np.float32)
    x[[0, 17, 63]] = np.nan
    result = run_te(lambda x: te.compute(x.shape, lambda i: apply_activation(kind, x[i])), x)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(x))


def test_a_pool_of_blocks_gives_nan_where_its_window_has_one() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 6, 6, 8)).astype(np.float32)
    x[0, 0, 2, 3, 5] = np.nan
    window = PoolWindow((4, 4), (3, 3), (1, 1), (0, 0), (1, 1), mean=False, padded=False)
    result = run_te(lambda x: pool(x, window, bfloat16=False), x)
    views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(result, views.max(axis=(-2, -1)))
    assert np.isnan(result).sum() == 9


@pytest.mark.slow(seconds=15)
def test_layers_with_an_activation_give_nan_where_onnxruntime_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((16, 16, 1, 1), np.float32),
        "lo": np.float32(0), "hi": np.float32(6),
    }  # fmt: skip
    inputs = {"Clip": ["lo", "hi"]}
    activations = ("Relu", "Clip", "Tanh", "Sigmoid", "HardSigmoid", "Elu", "Softplus")
    nodes, outputs = [], []
    for number, name in enumerate(activations):
        nodes.append(helper.make_node("Conv", ["x", "w"], [f"q{number}"]))
        nodes.append(helper.make_node(name, [f"q{number}", *inputs.get(name, [])], [name]))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 5, 5]))
    graph = helper.make_graph(
        nodes, "nan", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 5, 5])],
        outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "nan.onnx")
    tilewright.build(tmp_path / "nan.onnx", tmp_path / "art", target="cpu", trials=0)
    session = tilewright.load(tmp_path / "art", allow_code=True)
    x = rng.standard_normal((1, 16, 5, 5), np.float32)
    x[0, 0, 2, 2] = np.nan
    for name, result in zip(activations, session.run(activations, {"x": x}), strict=True):
        assert np.isnan(result[0, :, 2, 2]).all(), name
        assert np.isnan(result).sum() == 16, name
