"""Checks that networks in onnxruntime's QOperator form are imported completely and correctly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from benchmarks.artifacts.numbers import run_in_onnxruntime
from tilewright import networks
from tilewright.networks.onnx.to_qdq import to_qdq
from tilewright.targets.cpu.spec import this_machine

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE = (2, 4, 6, 6)
CONSTANTS = {
    "image": np.linspace(-1, 1, 64).reshape(4, 4, 2, 2).astype(np.float32),
    "column": np.linspace(-1, 1, 36).reshape(6, 6).astype(np.float32),
    "mask": np.arange(36).reshape(6, 6) % 3 == 0,
    "two": np.array([2, 2], np.int64),
    "rows": np.array([0, 2, 1], np.int64),
    "pads": np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64),
    "flat": np.array([2, -1], np.int64),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "axes": np.array([1], np.int64),
}
Nodes = Sequence[onnx.NodeProto]


def _node(kind: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, ["y"], name=kind.lower(), **attributes)


OPERATORS: dict[str, Nodes] = {
    "Conv": [_node("Conv", "d", "image")],
    "MatMul": [_node("MatMul", "d", "column")],
    "Gemm": [
        helper.make_node("Reshape", ["d", "flat"], ["r"], name="reshape"),
        helper.make_node("Transpose", ["r"], ["t"], name="transpose", perm=[1, 0]),
        helper.make_node("Reshape", ["t", "sixes"], ["s"], name="sixes"),
        _node("Gemm", "s", "column"),
    ],
    "Add": [_node("Add", "d", "d")],
    "Mul": [_node("Mul", "d", "d")],
    "Relu": [_node("Relu", "d")],
    "Clip": [_node("Clip", "d")],
    "LeakyRelu": [_node("LeakyRelu", "d", alpha=0.2)],
    "Sigmoid": [_node("Sigmoid", "d")],
    "Softmax": [_node("Softmax", "d", axis=1)],
    "MaxPool": [_node("MaxPool", "d", kernel_shape=[2, 2], strides=[2, 2])],
    "AveragePool": [_node("AveragePool", "d", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
    "GlobalAveragePool": [_node("GlobalAveragePool", "d")],
    "Split": [
        helper.make_node("Split", ["d", "two"], ["a", "b"], name="split", axis=1),
        _node("Add", "a", "b"),
    ],
    "Pad": [_node("Pad", "d", "pads")],
    "Reshape": [_node("Reshape", "d", "flat")],
    "Squeeze": [
        helper.make_node("Unsqueeze", ["d", "axes"], ["u"], name="unsqueeze"),
        _node("Squeeze", "u", "axes"),
    ],
    "Flatten": [_node("Flatten", "d")],
    "Resize": [_node("Resize", "d", "", "scales", mode="nearest")],
    "Concat": [_node("Concat", "d", "d", axis=1)],
    "Where": [_node("Where", "mask", "d", "column")],
    "Gather": [_node("Gather", "d", "rows", axis=2)],
    "Transpose": [_node("Transpose", "d", perm=[0, 2, 3, 1])],
    "ArgMax": [_node("ArgMax", "d", axis=1, keepdims=0)],
}


class _Samples(CalibrationDataReader):
    def __init__(self) -> None:
        self._left: Iterator[Any] = iter(_feeds(8))

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def _feeds(count: int, seed: int = 0) -> list[dict[str, NDArray[np.float32]]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(SHAPE, dtype=np.float32)} for _ in range(count)]


def _quantised(nodes: Nodes, kind: QuantType, opset: int, folder: Path) -> onnx.ModelProto:
    """Return an addition and the given nodes, quantised to QOperator form."""
    values = {**CONSTANTS, "sixes": np.array([-1, 6], np.int64)}
    first = helper.make_node("Add", ["x", "x"], ["d"], name="double")
    integers = nodes[-1].op_type == "ArgMax"
    graph = helper.make_graph(
        [first, *nodes], "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(
            "y", TensorProto.INT64 if integers else TensorProto.FLOAT, None
        )],
        [
            numpy_helper.from_array(value, name) for name, value in values.items()
            if any(name in node.input for node in nodes)
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "float.onnx")
    quantize_static(
        folder / "float.onnx", folder / "int8.onnx", _Samples(), quant_format=QuantFormat.QOperator,
        activation_type=kind, weight_type=QuantType.QInt8,
        # onnxruntime's sums saturate on CPUs without int8 dot products
        reduce_range=not this_machine().dots,
        extra_options={"ForceQuantizeNoInputCheck": True},
    )  # fmt: skip
    return onnx.load(folder / "int8.onnx")


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("name", OPERATORS)
def test_what_the_quantiser_makes_of_an_operator_is_imported_and_computes_the_same(
    name: str, kind: QuantType, tmp_path: Path
) -> None:
    model = _quantised(OPERATORS[name], kind, 13, tmp_path)
    plain = to_qdq(model)
    assert not any(
        n.op_type.startswith("QLinear") or n.op_type == "QGemm" for n in plain.graph.node
    )
    assert not networks.load(tmp_path / "int8.onnx").examined.unsupported
    feeds = _feeds(2, seed=1)
    for right, result in zip(
        run_in_onnxruntime(model, feeds), run_in_onnxruntime(plain, feeds), strict=True
    ):
        step = _step(model)
        np.testing.assert_allclose(result["y"], right["y"], rtol=0, atol=1.01 * step)
        assert (result["y"] == right["y"]).mean() > 0.9


def _step(model: onnx.ModelProto) -> float:
    """Return the scale of the output, or 0 if it has none."""
    last = next(node for node in model.graph.node if node.output[0] == "y")
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    is_scaled = last.op_type == "DequantizeLinear"
    return float(numpy_helper.to_array(constants[last.input[1]])) if is_scaled else 0.0


@pytest.mark.parametrize("axis", [None, 1, 2, -1])
@pytest.mark.parametrize(("opset", "own"), [(12, 12), (13, 13), (17, 12)])
def test_a_qlinear_softmax_is_over_the_axes_that_its_own_opset_says(
    opset: int, own: int, axis: int | None
) -> None:
    attributes = {} if axis is None else {"axis": axis}
    model = _softmax(opset, opset=own, **attributes)
    plain = to_qdq(model)
    assert "QLinearSoftmax" not in [node.op_type for node in plain.graph.node]
    feeds = _feeds(1)
    (right,), (result,) = run_in_onnxruntime(model, feeds), run_in_onnxruntime(plain, feeds)
    np.testing.assert_allclose(result["y"], right["y"], rtol=0, atol=1.01 / 256)
    assert (result["y"] == right["y"]).mean() > 0.9


def test_a_softmax_over_an_axis_that_the_models_opset_cannot_say_stays_as_it_is() -> None:
    kept = [node.op_type for node in to_qdq(_softmax(12, opset=13, axis=1)).graph.node]
    assert kept == ["QuantizeLinear", "QLinearSoftmax", "DequantizeLinear"]


def _softmax(model_opset: int, **attributes: int) -> onnx.ModelProto:
    constants = {
        "sx": np.float32(0.04), "zx": np.uint8(131), "sy": np.float32(1 / 256), "zy": np.uint8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"], name="in"),
        helper.make_node(
            "QLinearSoftmax", ["q", "sx", "zx", "sy", "zy"], ["p"], name="softmax",
            domain="com.microsoft", **attributes,
        ),
        helper.make_node("DequantizeLinear", ["p", "sy", "zy"], ["y"], name="out"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "softmax", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", model_opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
