"""Compares convolutions over sequences and recurrent layers with onnxruntime.

Convolutions over sequences run as convolutions of images with height one. Recurrent layers are
unrolled into the operators of their steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import model, normal, reference

from tilewright import networks
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.offloading.report import ModelReport
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.recurrent_operators import MAX_STEPS
from tilewright.networks.quantisation import quantise
from tilewright.targets.capabilities import Blocks

Tensors = Mapping[str, NDArray[Any]]


def _report(path: Path, source: onnx.ModelProto) -> ModelReport:
    onnx.save(source, path / "m.onnx")
    return networks.load(path / "m.onnx").report(16, 16)


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"{kind}_{output}", **attributes)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(12, 20),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
)
def test_a_convolution_of_sequences_is_one_of_images(
    length: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, groups: int
) -> None:
    conv = _node(
        "Conv", "x w", "y", strides=[stride], pads=pads, dilations=[dilation], group=groups
    )
    source = model([conv], {"w": normal(6, 4 // groups, kernel)}, (2, 4, length), "y")
    rewritten = normalise(source, {}).model
    assert [node.op_type for node in rewritten.graph.node] == ["Unsqueeze", "Conv", "Squeeze"]
    x = normal(2, 4, length, seed=1)
    np.testing.assert_allclose(reference(rewritten, x), reference(source, x), atol=1e-5)


CHAIN = [
    _node("Conv", "x w", "a", pads=[1, 1]),
    _node("BatchNormalization", "a scale shift mean variance", "b"),
    _node("LeakyRelu", "b", "c"),
    _node("MaxPool", "c", "d", kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1),
    _node("Mul", "d gains", "e"),
    _node("Conv", "e w2", "f", auto_pad="SAME_UPPER"),
    _node("Add", "f e", "g"),
    _node("AveragePool", "g", "h", kernel_shape=[2], strides=[2]),
    _node("Concat", "h h", "i", axis=-1),
    _node("Concat", "i i", "j", axis=1),
]
CHAIN_TENSORS = {
    "w": normal(8, 4, 3), "w2": normal(8, 8, 3, seed=1), "gains": normal(8, 1, seed=2),
    "scale": normal(8), "shift": normal(8), "mean": normal(8), "variance": np.ones(8, np.float32),
}  # fmt: skip
TAILS = {
    "flatten": [_node("Flatten", "j", "y")],
    "reshape": [_node("Reshape", "j shape", "y")],
    "mean": [_node("ReduceMean", "j", "y", axes=[2], keepdims=0)],
    "mean, kept": [_node("ReduceMean", "j", "y", axes=[-1])],
    "global": [_node("GlobalAveragePool", "j", "y")],
    "transpose": [_node("Transpose", "j", "y", perm=[0, 2, 1])],
}


@pytest.mark.parametrize("tail", TAILS)
def test_what_stands_between_convolutions_works_on_images_too(tail: str) -> None:
    tensors = {**CHAIN_TENSORS, "shape": np.array([1, -1])}
    source = model([*CHAIN, *TAILS[tail]], tensors, (1, 4, 16), "y", opset=13)
    rewritten = normalise(source, {}).model
    kinds = [node.op_type for node in rewritten.graph.node]
    assert kinds.count("Unsqueeze") == 1
    assert kinds.count("Squeeze") == (tail in ("mean, kept", "global", "transpose"))
    x = normal(1, 4, 16, seed=3)
    np.testing.assert_allclose(reference(rewritten, x), reference(source, x), atol=1e-4)


def test_a_network_of_sequences_is_offloaded_and_needs_no_cpu(tmp_path: Path) -> None:
    nodes = [
        _node("Conv", "x w", "a", pads=[1, 1]), _node("Relu", "a", "b"),
        _node("Conv", "b w2", "c", strides=[2]), _node("MaxPool", "c", "y", kernel_shape=[2]),
    ]  # fmt: skip
    source = model(nodes, {"w": normal(16, 16, 3), "w2": normal(16, 16, 3)}, (1, 16, 32), "y")
    report = _report(tmp_path, source)
    assert report.offloaded_macs == report.total_macs == 16 * 16 * 3 * (32 + 15)
    graph = integer_graph(quantise(source).model, Blocks(1, 16, 16))
    assert [layer.operator for layer in graph.layers] == ["Conv", "Conv", "MaxPool"]
    assert not graph.islands


def test_quantised_sequences_are_offloaded() -> None:
    """The model is in QDQ form. Two convolutions share weights with per-channel scales."""
    nodes = [
        _node("QuantizeLinear", "x s z", "q"), _node("DequantizeLinear", "q s z", "d"),
        _node("DequantizeLinear", "wq ws wz", "w", axis=0), _node("Conv", "d w", "a", pads=[1, 1]),
        _node("QuantizeLinear", "a t z", "q2"), _node("DequantizeLinear", "q2 t z", "d2"),
        _node("Conv", "d2 w", "b", pads=[1, 1]),
        _node("QuantizeLinear", "b t z", "q3"), _node("DequantizeLinear", "q3 t z", "y"),
    ]  # fmt: skip
    weights = np.random.default_rng(0).integers(-60, 60, (16, 16, 3)).astype(np.int8)
    tensors = {
        "s": np.float32(2**-5), "t": np.float32(2**-4), "z": np.int8(0), "wq": weights,
        "ws": np.full(16, 2**-7, np.float32), "wz": np.zeros(16, np.int8),
    }  # fmt: skip
    source = model(nodes, {k: np.asarray(v) for k, v in tensors.items()}, (1, 16, 32), "y")
    rewritten, x = normalise(source, {}).model, normal(1, 16, 32)
    np.testing.assert_array_equal(reference(rewritten, x), reference(source, x))
    graph = integer_graph(source, Blocks(1, 16, 16))
    assert [layer.workload.kernel_h for layer in graph.layers] == [1, 1]
    assert not graph.islands


def _recurrent(
    kind: str, inputs: Sequence[str], outputs: Sequence[str], *, steps: int = 5, batch: int = 2,
    **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Return a recurrent layer with 3 inputs and 4 hidden values.

    Besides X it reads the constants named in `inputs`.
    """
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1
    if attributes.get("direction") == "bidirectional":
        directions = 2
    state = (directions, batch, 4)
    known = {
        "w": normal(directions, gates * 4, 3), "r": normal(directions, gates * 4, 4, seed=1),
        "b": normal(directions, gates * 8, seed=2), "h": normal(*state, seed=3),
        "c": normal(*state, seed=4), "p": normal(directions, 12, seed=5),
        "lengths": np.full(batch, steps, np.int32), "short": np.arange(1, batch + 1, dtype="i4"),
    }  # fmt: skip
    node = helper.make_node(kind, ["x", *inputs], outputs, name="rec", hidden_size=4, **attributes)
    read = [name for name in inputs if name]
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, 3))],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(known[name], name) for name in read],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("inputs", ["w r", "w r b", "w r b lengths h"])
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {}),
        ("RNN", {"activations": ["Relu"]}), ("GRU", {"activations": ["Sigmoid", "Relu"]}),
    ],
)  # fmt: skip
def test_a_recurrent_layer_gives_what_onnxruntime_gives(
    kind: str, attributes: dict[str, Any], inputs: str, direction: str
) -> None:
    read = inputs.split() + ["c"] * (kind == "LSTM" and "h" in inputs)
    twice = 2 if direction == "bidirectional" else 1
    given = {key: value * twice for key, value in attributes.items() if key == "activations"}
    for output in range(3 if kind == "LSTM" else 2):
        names = [*[""] * output, "y"]
        source = _recurrent(kind, read, names, direction=direction, **{**attributes, **given})
        unrolled = normalise(source, {}).model
        assert kind not in [node.op_type for node in unrolled.graph.node]
        x = normal(5, 2, 3, seed=7)
        np.testing.assert_allclose(reference(unrolled, x), reference(source, x), atol=1e-5)


@pytest.mark.parametrize(("kind", "more"), [("LSTM", ["h", "c"]), ("GRU", ["h"]), ("RNN", ["h"])])
def test_the_batch_may_come_first(kind: str, more: list[str]) -> None:
    """The equivalent model with layout 0 runs in onnxruntime, which does not support layout 1."""
    read = ["w", "r", "b", "", *more]
    for names in (["y"], ["", "y"]):
        plain = _recurrent(kind, read, names, direction="bidirectional")
        batched = _recurrent(kind, read, names, direction="bidirectional")
        batched.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
        sizes = batched.graph.input[0].type.tensor_type.shape.dim
        sizes[0].dim_value, sizes[1].dim_value = 2, 5
        for tensor in batched.graph.initializer:
            if tensor.name in more:
                moved = numpy_helper.to_array(tensor).transpose(1, 0, 2)
                tensor.CopyFrom(numpy_helper.from_array(moved.copy(), tensor.name))
        del batched.graph.output[0].type.tensor_type.shape.dim[:]
        batched.graph.output[0].type.tensor_type.ClearField("shape")
        x = normal(5, 2, 3, seed=7)
        order = (1, 0, 2) if len(names) > 1 else (2, 0, 1, 3)
        unrolled = normalise(batched, {}).model
        np.testing.assert_allclose(
            reference(unrolled, x.transpose(1, 0, 2).copy()),
            reference(plain, x).transpose(order),
            atol=1e-5,
        )


@pytest.mark.parametrize(
    ("inputs", "attributes", "reason"),
    [
        ("w r b . h c p", {}, "peepholes"),
        ("w r", {"clip": 1.0}, "clip"),
        ("w r", {"input_forget": 1}, "input_forget"),
        ("w r", {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "Hardsigmoid"),
        ("w r b short", {}, "sequence_lens"),
        ("w r", {"steps": MAX_STEPS + 1}, "steps"),
    ],
)
def test_what_cannot_be_unrolled_is_left_to_onnxruntime_and_counted(
    inputs: str, attributes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    read = [name.replace(".", "") for name in inputs.split()]
    report = _report(tmp_path, _recurrent("LSTM", read, ["y"], **attributes))
    (operator,) = report.by_status("onnxruntime")
    assert operator.name == "rec"
    assert reason in operator.reason
    steps = attributes.get("steps", 5)
    assert report.total_macs == operator.macs == steps * 2 * 16 * (3 + 4)
    assert report.offloaded_macs == 0


def test_an_unrolled_layer_is_counted_and_says_what_became_of_it(tmp_path: Path) -> None:
    report = _report(tmp_path, _recurrent("LSTM", ["w", "r", "b", "", "h", "c"], ["y"]))
    # the first state is constant, so its product is folded
    assert report.total_macs == 2 * 16 * (5 * 3 + 4 * 4)
    layer = next(operator for operator in report.operators if operator.name == "rec")
    assert "unrolled into 5 steps" in layer.reason
