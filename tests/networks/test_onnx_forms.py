"""Tests operator forms that exporters write and that normalisation simplifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import session

from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.reference_model import reference_model

make = helper.make_node
F, I8 = np.float32, np.int8
TYPES = {np.dtype(F): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64,
         np.dtype(np.int32): TensorProto.INT32}  # fmt: skip


def _model(
    nodes: Sequence[onnx.NodeProto], x: NDArray[Any], tensors: Mapping[str, Any],
    outputs: Sequence[str] = ("y",), opset: int = 17,
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "forms", [helper.make_tensor_value_info("x", TYPES[x.dtype], x.shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _same(model: onnx.ModelProto, x: NDArray[Any]) -> onnx.ModelProto:
    """Normalise the model, compare the outputs, and return the normal form."""
    normal = normalise(model, {}).model
    onnx.checker.check_model(normal)
    for result, expected in zip(
        session(normal, optimised=True).run(None, {"x": x}),
        session(model, optimised=True).run(None, {"x": x}),
        strict=True,
    ):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    return normal


@pytest.mark.parametrize("dtype", [F, np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.int64(2), np.int32(3), np.array([7]), F(2), F(1)])
def test_a_power_with_an_exponent_of_another_type_is_the_same_power(
    dtype: type, exponent: Any
) -> None:
    x = np.array([[2, -2, 3, 1]], dtype)
    normal = _same(_model([make("Pow", ["x", "e"], ["y"])], x, {"e": exponent}), x)
    types = {t.name: t.data_type for t in normal.graph.initializer}
    for node in normal.graph.node:
        assert node.op_type in ("Pow" if dtype is F else "Mul", "Identity")
        assert all(types.get(name, TYPES[x.dtype]) == TYPES[x.dtype] for name in node.input)


def test_a_power_whose_exponent_is_computed_casts_it() -> None:
    x = np.array([[2.0, 0.5, 3.0]], F)
    nodes = [make("Cast", ["x"], ["e"], to=TensorProto.INT32), make("Pow", ["x", "e"], ["y"])]
    assert _kinds(_same(_model(nodes, x, {}), x)) == ["Cast", "Cast", "Pow"]


@pytest.mark.parametrize("exponent", [np.int64(-1), np.int64(0), np.array([2, 3]), F(0.5)])
def test_other_powers_of_integers_stay(exponent: Any) -> None:
    x = np.array([[2, 1]], np.int64)
    normal = normalise(_model([make("Pow", ["x", "e"], ["y"])], x, {"e": exponent}), {}).model
    assert _kinds(normal) == ["Pow"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_tensor_without_elements_leaves_a_concatenation(place: int) -> None:
    x = np.arange(8, dtype=F).reshape(1, 2, 4)
    names = ["q", "x"]
    names.insert(place, "e")
    nodes = [make("Neg", ["x"], ["q"]), make("Concat", names, ["y"], axis=-2)]
    normal = _same(_model(nodes, x, {"e": np.zeros((1, 0, 4), F)}), x)
    assert _kinds(normal) == ["Neg", "Concat"]
    assert not normal.graph.initializer


def test_a_slice_without_elements_leaves_a_concatenation_too() -> None:
    x = np.arange(8, dtype=F).reshape(2, 4)
    nodes = [
        make("Slice", ["x", "b", "b", "a"], ["e"]), make("Concat", ["e", "x"], ["c"], axis=1),
        make("Relu", ["c"], ["y"]),
    ]  # fmt: skip
    normal = _same(_model(nodes, x, {"a": np.array([1]), "b": np.array([2])}), x)
    assert _kinds(normal) == ["Relu"]


@pytest.mark.parametrize(
    ("scale", "zero"),
    [([0.03], [3]), ([0.03], None), (0.03, [3]), (0.03, 3), ([0.03, 0.02], [3, 4])],
)
@pytest.mark.parametrize("kind", ["QuantizeLinear", "DequantizeLinear"])
def test_a_vector_of_one_scale_is_that_scale(kind: str, scale: Any, zero: Any) -> None:
    x = np.linspace(-2, 2, 16, dtype=F).reshape(2, 8)
    axis = {"axis": 0} if np.size(scale) > 1 else {}
    names = ["s", "z"] if zero is not None else ["s"]
    tensors = {"s": F(scale)} | ({} if zero is None else {"z": np.array(zero, I8)})
    nodes = [make("QuantizeLinear", ["x", *names], ["y"], **axis)]
    if kind == "DequantizeLinear":
        nodes[0].output[0] = "q"
        nodes.append(make(kind, ["q", *names], ["y"], **axis))
    normal = _same(_model(nodes, x, tensors), x)
    shapes = {tuple(tensor.dims) for tensor in normal.graph.initializer}
    assert shapes == ({()} if np.size(scale) == 1 else {(2,)})


def test_outputs_that_nothing_reads_are_dropped() -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 6)).astype(F)
    rng = np.random.default_rng(1)
    tensors = {
        name: rng.standard_normal(shape).astype(F)
        for name, shape in {"w": (1, 16, 2), "r": (1, 16, 4)}.items()
    }
    nodes = [
        make("MaxPool", ["x"], ["p", "places"], kernel_shape=[2], strides=[2]),
        make("Transpose", ["p"], ["t"], perm=[2, 0, 1]),
        make("LSTM", ["t", "w", "r"], ["s", "h", "c"], hidden_size=4),
        make("Squeeze", ["h"], ["k"]), make("Softmax", ["k"], ["y"]),
    ]  # fmt: skip
    normal = _same(_model(nodes, x, tensors), x)
    read = {name for node in normal.graph.node for name in node.input}
    ends = {output.name for output in normal.graph.output}
    assert {name for node in normal.graph.node for name in node.output} <= read | ends
    assert "LSTM" not in _kinds(normal)


@pytest.mark.parametrize("outputs", [("y", "h"), ("h", "c"), ("y", "h", "c"), ("c",)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_every_state_of_an_lstm_can_be_read(outputs: tuple[str, ...], direction: str) -> None:
    rng, both = np.random.default_rng(0), 1 + (direction == "bidirectional")
    x = rng.standard_normal((3, 2, 6)).astype(F)
    shapes = {"w": (both, 16, 6), "r": (both, 16, 4), "b": (both, 32)}
    tensors = {name: rng.standard_normal(shape).astype(F) for name, shape in shapes.items()}
    node = make("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=4, direction=direction)
    _same(_model([node], x, tensors, outputs, opset=14), x)


PADS = np.array([0, 0, 1, 1, 0, 0, 1, 1])
CONV = {"w": np.random.default_rng(2).standard_normal((3, 3, 3, 3)).astype(F), "p": PADS}


@pytest.mark.parametrize(
    ("nodes", "kinds"),
    [
        ([make("Pad", ["x", "p"], ["a"]), make("Pad", ["a", "p"], ["b"]),
          make("Conv", ["b", "w"], ["y"])], ["Conv"]),
        ([make("Pad", ["x", "p"], ["a"]), make("Conv", ["a", "w"], ["b"]),
          make("Pad", ["b", "p"], ["c"]), make("Conv", ["c", "w"], ["y"], strides=[2, 2])],
         ["Conv", "Conv"]),
        ([make("Pad", ["x", "p"], ["a"]), make("Conv", ["a", "w"], ["b"]),
          make("Conv", ["a", "w"], ["c"]),
          make("Add", ["b", "c"], ["y"])], ["Pad", "Conv", "Conv", "Add"]),
        ([make("Pad", ["x", "p"], ["a"], mode="edge"), make("Pad", ["a", "p"], ["b"]),
          make("Conv", ["b", "w"], ["y"])], ["Pad", "Conv"]),
    ],
    ids=["two_in_a_row", "before_each_of_two", "read_twice", "behind_another_kind"],
)  # fmt: skip
def test_pads_become_padding_of_the_convolutions_behind_them(
    nodes: list[onnx.NodeProto], kinds: list[str]
) -> None:
    x = np.random.default_rng(3).standard_normal((1, 3, 7, 8)).astype(F)
    assert _kinds(_same(_model(nodes, x, CONV), x)) == kinds


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("taps", [2, 3])
def test_the_reference_pads_dilated_windows(mode: str, stride: int, taps: int) -> None:
    """The standard defines the result, which numpy computes. onnxruntime refuses the model."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(F) for shape in ((1, 2, 22), (4, 2, taps)))
    node = make("Conv", ["x", "w"], ["y"], auto_pad=mode, dilations=[2], strides=[stride])
    model = _model([node], x, {"w": w})
    length = -(-22 // stride)
    total = max((length - 1) * stride + 2 * (taps - 1) + 1 - 22, 0)
    begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
    wide = np.pad(x, ((0, 0), (0, 0), (begin, total - begin)))
    expected = sum(
        np.einsum("oi,bil->bol", w[:, :, k], wide[:, :, 2 * k :: stride][:, :, :length])
        for k in range(taps)
    )
    for candidate in (reference_model(model), normalise(model, {}).model):
        (result,) = session(candidate, optimised=True).run(None, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
