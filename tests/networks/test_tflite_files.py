"""Tests reading TensorFlow Lite files: scales, names, types and layouts.

Files that are damaged or cannot be expressed in ONNX are refused with a message.
"""

from __future__ import annotations

import contextlib
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tflite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from tflite_files import CASES, KEYWORDS, RELU, SAME, File, conv, network, one

from tilewright import networks
from tilewright.core.errors import TilewrightError
from tilewright.networks.errors import ModelFileError, UnsupportedOperatorError
from tilewright.networks.onnx.to_qdq import is_quantised
from tilewright.networks.quantisation import model_with_weights
from tilewright.networks.tflite.convert import RULES, convert, read_tflite
from tilewright.networks.tflite.file import read_graph
from tilewright.networks.tflite.graph import operator_names


def _saved(path: Path, content: bytes) -> Path:
    path = path / "model.tflite"
    path.write_bytes(content)
    return path


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _nodes(model: onnx.ModelProto, *kinds: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type in kinds]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def test_scales_and_zero_points_are_those_of_the_file() -> None:
    model = read_tflite(KEYWORDS)
    constants = _constants(model)
    graph = tflite.Model.GetRootAs(KEYWORDS.read_bytes(), 0).Subgraphs(0)
    tensors = [graph.Tensors(i) for i in range(graph.TensorsLength())]
    expected = sorted(
        (tuple(q.ScaleAsNumpy().tolist()), tuple(q.ZeroPointAsNumpy().tolist()))
        for t in tensors
        if (q := t.Quantization()) is not None and q.ScaleLength()
    )
    result: dict[str, tuple[tuple[float, ...], tuple[int, ...]]] = {}
    for node in _nodes(model, "QuantizeLinear", "DequantizeLinear"):
        scale, zero = (constants[name] for name in node.input[1:3])
        stored = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
        result[stored] = tuple(scale.ravel().tolist()), tuple(zero.ravel().tolist())
    assert sorted(result.values()) == expected


def test_channels_keep_their_scales_where_weights_are_turned() -> None:
    model = read_tflite(KEYWORDS)
    constants = _constants(model)
    makers = {node.output[0]: node for node in model.graph.node}
    for product in _nodes(model, "Conv"):
        weight = makers[product.input[1]]
        assert constants[weight.input[1]].shape == (64,)
        assert _attributes(weight)["axis"] == 0
        assert constants[weight.input[0]].shape[0] == 64
        assert constants[makers[product.input[2]].input[0]].dtype == np.int32


def test_inputs_and_outputs_are_those_of_the_file(tmp_path: Path) -> None:
    model = read_tflite(_saved(tmp_path, conv()))
    (read_as,), (written,) = model.graph.input, model.graph.output
    for info, name, shape in ((read_as, "x", [1, 9, 7, 4]), (written, "y", [1, 9, 7, 6])):
        assert info.name == name
        assert [d.dim_value for d in info.type.tensor_type.shape.dim] == shape
        assert info.type.tensor_type.elem_type == onnx.TensorProto.INT8


def test_images_change_their_layout_at_the_border_only(tmp_path: Path) -> None:
    model = read_tflite(_saved(tmp_path, network()))
    (turned,) = _nodes(model, "Transpose")
    assert turned.input[0] == "serving_default_x:0"


def test_an_image_of_one_channel_is_not_transposed() -> None:
    model = read_tflite(KEYWORDS)
    assert not _nodes(model, "Transpose")
    assert [node.name for node in _nodes(model, "Reshape")] == ["input_1/reshape", "flatten"]


def test_same_padding_is_explicit_with_the_odd_row_at_the_end() -> None:
    first = _nodes(read_tflite(KEYWORDS), "Conv")[0]
    # 49x10 values, a kernel of 10x4 and a stride of 2: 9 rows and 2 columns too few
    assert _attributes(first)["pads"] == [4, 1, 5, 1]


def test_padding_becomes_that_of_the_convolution_behind_it(tmp_path: Path) -> None:
    path = _saved(tmp_path, network())
    assert [node.name for node in _nodes(read_tflite(path), "Pad")] == ["pad/Pad"]
    operators = {o.name: o for o in networks.load(path).report(16, 16).operators}
    assert "padding of the convolution" in operators["pad/Pad"].reason


def test_operators_are_named_after_their_layers() -> None:
    names = [node.name for node in _nodes(read_tflite(KEYWORDS), "Conv", "Gemm", "Softmax")]
    assert names == [
        "conv2d", "depthwise_conv2d", "conv2d_1", "depthwise_conv2d_1", "conv2d_2",
        "depthwise_conv2d_2", "conv2d_3", "depthwise_conv2d_3", "conv2d_4", "dense", "softmax",
    ]  # fmt: skip


def test_a_name_that_says_nothing_is_the_kind() -> None:
    named = operator_names([("ADD", "a/x/add", ""), ("CONV_2D", "", ""), ("MUL", "b", "")])
    assert named == ["x", "conv_2d", "b"]


def test_operators_of_one_name_are_told_apart(tmp_path: Path) -> None:
    f = File()
    own = {"scale": 0.1, "zero": 0}
    x, y, z = (f.tensor("same", (1, 4), **own) for _ in range(3))
    f.operator("LOGISTIC", [x], [y])
    f.operator("LOGISTIC", [y], [z])
    model = read_tflite(_saved(tmp_path, f.write([x], [z])))
    names = [node.name for node in _nodes(model, "Sigmoid")]
    assert len(set(names)) == 2
    assert model.graph.input[0].name == "same"


def test_weights_of_a_model_that_computes_in_floats_become_floats(tmp_path: Path) -> None:
    f = File()
    x = f.tensor("x", (1, 5), "FLOAT32")
    weights = np.arange(-10, 10, dtype=np.int8).reshape(4, 5)
    w = f.constant("w", weights, scale=np.full(4, 0.5) * (1, 2, 3, 4), axis=0)
    y = f.tensor("y", (1, 4), "FLOAT32")
    f.operator("FULLY_CONNECTED", [x, w, -1], [y], "FullyConnectedOptions")
    model = read_tflite(_saved(tmp_path, f.write([x], [y])))
    assert not is_quantised(model)
    (product,) = _nodes(model, "Gemm")
    expected = weights * np.array([[0.5], [1.0], [1.5], [2.0]])
    np.testing.assert_array_equal(_constants(model)[product.input[1]], expected)


def test_halves_that_are_converted_when_a_model_starts_are_floats(tmp_path: Path) -> None:
    f = File()
    x = f.tensor("x", (1, 2), "FLOAT32")
    half = f.constant("half", np.array([[0.5, -2.0]], np.float16))
    whole, y = (f.tensor(name, (1, 2), "FLOAT32") for name in ("whole", "y"))
    f.operator("DEQUANTIZE", [half], [whole], "DequantizeOptions")
    f.operator("MUL", [x, whole], [y], "MulOptions")
    model = read_tflite(_saved(tmp_path, f.write([x], [y])))
    assert [node.op_type for node in model.graph.node] == ["Mul"]
    (factor,) = _constants(model).values()
    np.testing.assert_array_equal(factor, np.array([[0.5, -2.0]], np.float32))


def test_a_bias_without_a_scale_counts_in_steps_of_the_sums(tmp_path: Path) -> None:
    f = File()
    x = f.tensor("x", (1, 2), scale=0.5)
    w = f.constant("w", np.ones((1, 2), np.int8), scale=0.25)
    b = f.constant("b", np.array([16], np.int32))
    y = f.tensor("y", (1, 1), scale=1.0)
    f.operator("FULLY_CONNECTED", [x, w, b], [y], "FullyConnectedOptions")
    model = read_tflite(_saved(tmp_path, f.write([x], [y])))
    (product,) = _nodes(model, "Gemm")
    assert _constants(model)[product.input[2]].tolist() == [2.0]  # 16 x 0.5 x 0.25


def test_shape_arithmetic_that_only_a_reshape_reads_is_left_out(tmp_path: Path) -> None:
    f = File()
    own = {"scale": 0.1, "zero": 0}
    x, y = f.tensor("x", (2, 6), **own), f.tensor("y", (3, 4), **own)
    shape = f.tensor("shape", (2,), "INT32")
    f.operator("SHAPE", [x], [shape], "ShapeOptions")
    f.operator("RESHAPE", [x, shape], [y], "ReshapeOptions")
    model = read_tflite(_saved(tmp_path, f.write([x], [y])))
    assert [node.op_type for node in model.graph.node] == ["Reshape"]


def _foreign() -> bytes:
    """Return a convolution followed by operators without an ONNX equivalent.

    One has no rule at all, one has a rule that gives up, and one is a custom operator.
    """
    f = File()
    own = {"scale": 0.1, "zero": 0}
    tensors = [f.tensor(f"t{i}", (1, 4, 4, 4), **own) for i in range(5)]
    w = f.constant("w", np.ones((4, 1, 1, 4), np.int8), scale=0.1)
    f.operator("CONV_2D", [tensors[0], w, -1], [tensors[1]], "Conv2DOptions", StrideH=1,
               StrideW=1, Padding=SAME)  # fmt: skip
    f.operator("HASHTABLE_FIND", [tensors[1]], [tensors[2]])
    f.operator("ADD", [tensors[2], tensors[1]], [tensors[3]], "AddOptions",
               FusedActivationFunction=5)  # fmt: skip
    f.operator("TFLite_Mystery", [tensors[3]], [tensors[4]])
    return f.write(tensors[:1], tensors[4:])


def test_all_operators_that_cannot_be_expressed_are_named_at_once(tmp_path: Path) -> None:
    path = _saved(tmp_path, _foreign())
    with pytest.raises(UnsupportedOperatorError) as error:
        model_with_weights(path)
    assert "'t2': HASHTABLE_FIND: it uses a hash table that the runtime keeps" in str(error.value)
    assert "'t3': ADD: its fused activation SIGN_BIT" in str(error.value)
    assert "'t4': TFLite_Mystery: it is a custom operator" in str(error.value)


def test_the_report_says_what_is_missing_and_what_is_offloaded(tmp_path: Path) -> None:
    path = _saved(tmp_path, _foreign())
    report = networks.load(path).report(16, 16)
    result = {operator.name: operator for operator in report.operators}
    for name in ("t2", "t3", "t4"):
        assert result[name].status == "unsupported"
    assert result["t3"].reason.startswith("ADD: its fused activation SIGN_BIT")
    assert result["t1"].status == "offloaded"
    with pytest.raises(UnsupportedOperatorError, match="HASHTABLE_FIND"):
        _ = networks.load(path).compiled


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ({"dtype": "INT4"}, "contains INT4"),
        ({"variable": True}, "is state that is kept between runs"),
    ],
)
def test_tensors_that_cannot_be_computed_are_named(
    tensor: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    f = File()
    x, y = f.tensor("x", (1, 4), **tensor), f.tensor("y", (1, 4))
    f.operator("LOGISTIC", [x], [y])
    with pytest.raises(UnsupportedOperatorError, match=f"'x' {reason}"):
        read_tflite(_saved(tmp_path, f.write([x], [y])))


def test_an_operator_with_state_is_named_and_the_file_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    f = File()
    x, state, y = (f.tensor(n, s, "FLOAT32", variable=n == "state") for n, s in
                   (("x", (1, 16)), ("state", (1, 32)), ("y", (1, 8))))  # fmt: skip
    feature = f.constant("feature", np.ones((8, 16), np.float32))
    time = f.constant("time", np.ones((8, 4), np.float32))
    f.operator("SVDF", [x, feature, time, -1, state], [y], "SVDFOptions", Rank=1)
    path = _saved(tmp_path, f.write([x], [y]))
    reason = "SVDF: its tensor 'state' is state that is kept between runs"
    with pytest.raises(UnsupportedOperatorError, match=reason):
        read_tflite(path)
    (missing,) = convert(read_graph(path)).missing.values()
    assert missing == reason


def test_a_bias_has_one_dimension_whatever_the_file_says_of_its_channels(tmp_path: Path) -> None:
    f = File()
    scales = np.array([0.5, 0.25])
    x, y = (f.tensor(n, (1, 4, 4, 2), scale=0.5) for n in "xy")
    w = f.constant("w", np.ones((1, 3, 3, 2), np.int8), scale=scales, axis=3)
    b = f.constant("b", np.array([8, 16], np.int32), scale=scales * 0.5, axis=3)
    f.operator("DEPTHWISE_CONV_2D", [x, w, b], [y], "DepthwiseConv2DOptions", Padding=SAME,
               StrideH=1, StrideW=1, DepthMultiplier=1)  # fmt: skip
    model = read_tflite(_saved(tmp_path, f.write([x], [y])))
    makers = {node.output[0]: node for node in model.graph.node}
    bias = makers[_nodes(model, "Conv")[0].input[2]]
    np.testing.assert_allclose(_constants(model)[bias.input[1]], scales * 0.5)


def test_shapes_are_constants(tmp_path: Path) -> None:
    f = File()
    x = f.tensor("x", (2, 6), "FLOAT32")
    shape, rank, zeros = (f.tensor("shape", (2,), "INT32"), f.tensor("rank", (), "INT32"),
                          f.tensor("zeros", (2, 6), "FLOAT32"))  # fmt: skip
    f.operator("SHAPE", [x], [shape], "ShapeOptions")
    f.operator("RANK", [x], [rank], "RankOptions")
    f.operator("ZEROS_LIKE", [x], [zeros], "ZerosLikeOptions")
    model = read_tflite(_saved(tmp_path, f.write([x], [shape, rank, zeros])))
    values = sorted(map(np.size, _constants(model).values()))
    assert values == [1, 2, 12]
    assert {node.op_type for node in model.graph.node} == {"Identity"}


def test_numbers_are_the_same_on_this_machine_as_in_onnxruntime(tmp_path: Path) -> None:
    whole = networks.load(_saved(tmp_path, network())).whole
    x = np.random.default_rng(3).integers(-128, 128, (1, 8, 8, 3)).astype(np.int8)
    result = networks.load(tmp_path / "model.tflite").run({"serving_default_x:0": x})
    expected = whole.reference({"serving_default_x:0": x})
    for name, values in expected.items():
        assert np.abs(result[name].astype(int) - values.astype(int)).max() <= 1


def test_a_file_of_a_stranger_is_read_in_a_child(tmp_path: Path) -> None:
    examined = networks.load(_saved(tmp_path, conv()), sandbox=True).examined
    assert examined.inputs == {"x": (1, 9, 7, 4)}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.tflite' is not a file"):
        networks.load(tmp_path / "absent.tflite")


@pytest.mark.parametrize(
    "content", [b"", b"TFL3", b"\x08\x07" + bytes(40), b"\x10\x00\x00\x00TFL3"]
)
def test_other_files_are_no_models(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"not a TensorFlow Lite model|damaged or truncated"):
        read_graph(_saved(tmp_path, content))


def test_a_file_that_is_cut_off_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    content = conv()
    for length in range(8, len(content), 40):
        with pytest.raises(ModelFileError):
            convert(read_graph(_saved(tmp_path, content[:length])))


DAMAGED = (
    "while_inner", "if_behind_a_convolution", "chosen_rows", "hashtable_lookup", "lstm_step",
    "embedding_lookup_sparse_1", "stablehlo_gather", "stablehlo_scatter", "reduce_window_1",
    "stablehlo_reduce_window", "stablehlo_composite", "rfft2d_magnitude", "dilate",
)  # fmt: skip
"""Files whose subgraphs, windows or indices could make a damaged operator access foreign memory."""


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["conv_same", "network", *DAMAGED]),
    edits=st.lists(
        st.tuples(st.integers(0, 5000), st.integers(-9, 9) | st.integers(-(2**31), 2**31 - 1)),
        min_size=1,
        max_size=4,
    ),
)
def test_damage_ends_in_one_clear_error(
    kind: str, edits: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(CASES[kind]())
    for place, word in edits:
        struct.pack_into("<i", content, place % (len(content) // 4) * 4, word)
    content[4:8] = b"TFL3"
    with contextlib.suppress(TilewrightError):
        convert(read_graph(_saved(tmp_path, bytes(content))))


def test_a_tensor_of_absurd_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    content = one("RELU", (2**20, 2**20), (2**20, 2**20))
    with pytest.raises(ModelFileError, match="claims the shape"):
        read_graph(_saved(tmp_path, content))


def test_weights_shorter_than_their_shape_are_refused(tmp_path: Path) -> None:
    f = File()
    x, y = f.tensor("x", (1, 4), scale=0.1), f.tensor("y", (1, 4), scale=0.1)
    w = f.tensor("w", (4, 4), "INT8", np.ones(15, np.int8), scale=0.1)
    f.operator("FULLY_CONNECTED", [x, w, -1], [y], "FullyConnectedOptions")
    with pytest.raises(ModelFileError, match=r"15 bytes for the tensor 'w', .* needs 16"):
        read_graph(_saved(tmp_path, f.write([x], [y])))


@pytest.mark.parametrize("scale", [float("nan"), -1.0, float("inf")])
def test_scales_that_make_no_sense_are_refused(scale: float, tmp_path: Path) -> None:
    f = File()
    x, y = f.tensor("x", (1, 4), scale=scale), f.tensor("y", (1, 4), scale=0.1)
    f.operator("LOGISTIC", [x], [y])
    with pytest.raises(ModelFileError, match="invalid quantisation of the tensor 'x'"):
        read_graph(_saved(tmp_path, f.write([x], [y])))


def test_a_tensor_read_before_it_is_computed_is_named(tmp_path: Path) -> None:
    f = File()
    own = {"scale": 0.1, "zero": 0}
    x, y, z = (f.tensor(name, (1, 4), **own) for name in "xyz")
    f.operator("LOGISTIC", [z], [y])
    f.operator("LOGISTIC", [y], [z])
    with pytest.raises(ModelFileError, match="reads the tensor 'z' before it is computed"):
        read_tflite(_saved(tmp_path, f.write([x], [y])))


def test_a_tensor_that_two_operators_compute_is_named(tmp_path: Path) -> None:
    f = File()
    own = {"scale": 0.1, "zero": 0}
    x, y = (f.tensor(name, (1, 4), **own) for name in "xy")
    f.operator("LOGISTIC", [x], [y])
    f.operator("LOGISTIC", [x], [y])
    with pytest.raises(ModelFileError, match="two operators compute the tensor 'y'"):
        read_tflite(_saved(tmp_path, f.write([x], [y])))


def test_shapes_that_do_not_follow_from_each_other_are_refused(tmp_path: Path) -> None:
    f = File()
    x, y = f.tensor("x", (1, 4), scale=0.1), f.tensor("y", (1, 5), scale=0.1)
    f.operator("LOGISTIC", [x], [y])
    with pytest.raises(ModelFileError, match="contradicts itself"):
        read_tflite(_saved(tmp_path, f.write([x], [y])))


def test_a_fused_activation_stands_before_the_quantisation(tmp_path: Path) -> None:
    model = read_tflite(_saved(tmp_path, conv(activation=RELU)))
    makers = {node.output[0]: node for node in model.graph.node}
    (quantised,) = _nodes(model, "QuantizeLinear")
    relu = makers[quantised.input[0]]
    assert (relu.op_type, makers[relu.input[0]].op_type) == ("Relu", "Conv")


def test_every_operator_that_has_a_rule_is_documented() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/guides/own-model.md").read_text()
    section = page.partition("## TensorFlow Lite")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([A-Z][A-Z0-9_]+)`", section)) == set(RULES)
