"""Tests the quantisation of whole networks: accuracy in int8, and the form of the int8 graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx_graphs import normal
from quantise_nets import attention_net, residual_net

from tilewright.core.errors import UnknownName
from tilewright.networks import zoo
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.model_runner import Feed, run_feeds
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network
from tilewright.networks.quantisation import Quantised, QuantiseOptions, Samples, quantise
from tilewright.networks.zoo import digits
from tilewright.networks.zoo.builder import Builder
from tilewright.networks.zoo.mobilenet import mobilenet_v1
from tilewright.targets.capabilities import Blocks


def _fresh(model: onnx.ModelProto, count: int) -> list[Feed]:
    """Draw inputs that were not used for calibration."""
    info = model.graph.input[0]
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    return [{info.name: normal(*shape, seed=1000 + i)} for i in range(count)]


def _outputs(model: onnx.ModelProto, feeds: list[Feed]) -> NDArray[np.float32]:
    """Return the first output for all feeds, of shape (feeds, values)."""
    name = model.graph.output[0].name
    return np.stack([values[name].ravel() for values in run_feeds(model, [name], feeds)])


def _correlation(model: onnx.ModelProto, made: Quantised, count: int = 4) -> float:
    feeds = _fresh(model, count)
    values = _outputs(model, feeds), _outputs(made.model, feeds)
    return float(np.corrcoef(*(item.ravel() for item in values))[0, 1])


def _kinds(made: Quantised) -> dict[str, list[str]]:
    """Return the post-operations that are fused with each convolution and product, by node."""
    result = OnnxSource("int8", made.model, lambda: made.model, {}).examine().found
    assert all(call.data_quantisation and call.weight_quantisation for call in result.fused_calls)
    return {call.node: [step.kind for step in call.steps] for call in result.fused_calls}


def test_the_digits_network_loses_at_most_half_a_point_of_accuracy() -> None:
    model = zoo.build("digits_cnn")
    made = quantise(model)
    assert made.report.warnings == ()  # it has real images to calibrate with
    images, labels = digits.held_out()
    feeds: list[Feed] = [{"input": image[None]} for image in images]
    right = [
        float((_outputs(item, feeds).argmax(axis=1) == labels).mean())
        for item in (model, made.model)
    ]
    print(f"accuracy on {len(labels)} held-out images: float {right[0]:.4f}, int8 {right[1]:.4f}")
    assert right[0] > 0.9
    assert abs(right[0] - right[1]) <= 0.005


@pytest.mark.nightly(seconds=4)
def test_resnet18_keeps_its_logits() -> None:
    model = zoo.build("resnet18")
    made = quantise(model)
    correlation = _correlation(model, made, 2)
    print(f"correlation of ResNet-18's logits with float: {correlation:.5f}")
    assert correlation >= 0.998
    kinds = _kinds(made)
    assert len(kinds) == 21
    assert [layer.operator for layer in made.report.layers].count("Conv") == 20
    assert all(layer.decibels and layer.decibels > 20 for layer in made.report.layers)
    assert "seeded random inputs" in made.report.warnings[0]


@pytest.mark.slow(seconds=1.5)
def test_mobilenet_keeps_its_logits() -> None:
    net = Builder("mobilenet_v1", (1, 3, 64, 64), 0, True)
    model = net.model(mobilenet_v1(net))
    made = quantise(model)
    assert _correlation(model, made) > 0.99
    assert len(made.report.layers) == 29  # 27 convolutions, the average pool, the product


@pytest.mark.parametrize("build", [residual_net, attention_net])
@pytest.mark.parametrize(
    "options",
    [
        QuantiseOptions(),
        QuantiseOptions(rule="cover"),
        QuantiseOptions(method="percentile"),
        pytest.param(QuantiseOptions(method="entropy"), marks=pytest.mark.slow(seconds=10)),
    ],
    ids=lambda options: f"{options.method}-{options.rule}",
)
def test_every_rule_gives_an_int8_network_near_the_float_one(
    build: Callable[[], onnx.ModelProto], options: QuantiseOptions
) -> None:
    model = build()
    made = quantise(model, None, options)
    assert _correlation(model, made) > 0.995
    (output,) = made.report.outputs
    assert output.correlation is not None
    assert output.correlation > 0.995
    assert [o.name for o in made.model.graph.output] == [o.name for o in model.graph.output]
    onnx.checker.check_model(made.model, full_check=True)


def test_the_groups_of_a_residual_network_are_fused_whole() -> None:
    kinds = _kinds(quantise(residual_net()))
    assert kinds["stem"] == ["bias", "relu", "quantise"]
    assert kinds["b1"] == ["bias", "clip", "quantise"]
    assert kinds["b2"] == ["bias", "add", "quantise"]
    assert kinds["fc"] == ["bias", "quantise"]


def test_the_groups_of_attention_are_fused_whole() -> None:
    made = quantise(attention_net())
    kinds = _kinds(made)
    assert kinds["query"] == ["bias", "quantise"]
    assert kinds["out"] == ["bias", "add", "quantise"]
    result = {layer.operators: layer for layer in made.report.layers}
    assert result[("scores",)].weight_exponent is None
    assert ("mixed",) in result


def test_every_group_of_the_report_is_one_layer() -> None:
    made = quantise(residual_net())
    layers = [set(layer.names) for layer in integer_graph(made.model, Blocks(1, 16, 16)).layers]
    groups = [set(layer.operators) for layer in made.report.layers]
    assert len(layers) == len(groups) == 10
    assert all(sum(group <= layer for layer in layers) == 1 for group in groups)


@pytest.mark.parametrize("build", [residual_net, attention_net])
def test_scales_are_powers_of_two_and_agree_with_each_other(
    build: Callable[[], onnx.ModelProto],
) -> None:
    made = quantise(build())
    graph = made.model.graph
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    exponents: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = (constants[name] for name in node.input[1:])
            mantissa, exponent = np.frexp(scale)
            assert (scale.shape, zero.shape, mantissa, zero) == ((), (), 0.5, 0)
            exponents[node.output[0]] = int(exponent) - 1
    layers = 0
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm"):
            data, weight, bias = (exponents[name] for name in node.input)
            assert bias == data + weight
            assert constants[_made(graph, node.input[1]).input[0]].dtype == np.int8
            layers += 1
        if node.op_type in ("MaxPool", "Concat", "Flatten", "Reshape", "Transpose"):
            data_inputs = node.input if node.op_type == "Concat" else node.input[:1]
            before = {exponents[name] for name in data_inputs}
            assert before == {made.exponents[node.output[0]]}
        if node.op_type == "MatMul":
            assert all(name in exponents for name in node.input)
            layers += 1
    assert layers >= 7


def _made(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    return next(node for node in graph.node if name in node.output)


def test_nothing_is_rounded_between_the_steps_of_a_layer() -> None:
    graph = quantise(residual_net()).model.graph
    for conv, relu in (("stem", "stem.relu"), ("b1", "b1.relu6")):
        nodes = {node.name: node for node in graph.node}
        assert nodes[relu].input[0] == nodes[conv].output[0]
    add = next(node for node in graph.node if node.name == "b.add")
    makers = {_made(graph, name).op_type for name in add.input}
    assert makers == {"Conv", "DequantizeLinear"}


def test_float_operators_read_what_float_operators_compute() -> None:
    made = quantise(attention_net())
    nodes = {node.name: node for node in made.model.graph.node}
    assert nodes["norm1"].input[0] == "x"  # int8 too, for the residual
    assert "x" in made.exponents
    assert _made(made.model.graph, nodes["norm2"].input[0]).op_type == "DequantizeLinear"


def test_layers_can_be_kept_in_float() -> None:
    kept = {"a1", "b1.relu6", "side.bn", "average"}
    made = quantise(residual_net(), None, QuantiseOptions(keep_float=tuple(kept)))
    assert set(made.report.kept_float) == {"a1", "b1", "side", "average"}
    kinds = dict.fromkeys(("int8", "float32"), 0)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in made.model.graph.initializer}
    for node in made.model.graph.node:
        if node.op_type == "Conv":
            name = node.input[1]
            stored = name if name in constants else _made(made.model.graph, name).input[0]
            kinds[constants[stored].dtype.name] += 1
    assert kinds == {"int8": 3, "float32": 3}
    with pytest.raises(UnknownName, match="did you mean"):
        quantise(residual_net(), None, QuantiseOptions(keep_float=("sted",)))


def test_quantising_twice_gives_the_same_bytes() -> None:
    first, second = (quantise(residual_net()) for _ in range(2))
    assert first.model.SerializeToString() == second.model.SerializeToString()
    assert first.report == second.report


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize("build", [residual_net, attention_net])
def test_the_importer_computes_what_onnxruntime_does(build: Callable[[], onnx.ModelProto]) -> None:
    made = quantise(build())
    (feed,) = _fresh(made.model, 1)
    compiled = Network(OnnxSource("int8", made.model, lambda: made.model, {})).compiled
    (result,) = compiled(feed).values()
    np.testing.assert_array_equal(result.ravel(), _outputs(made.model, [feed])[0])


def test_ranges_come_from_the_samples() -> None:
    model = residual_net()
    feeds = tuple({"input": 64 * feed["input"]} for feed in _fresh(model, 2))
    wide, narrow = quantise(model, Samples(feeds)), quantise(model)
    assert wide.exponents["input"] == narrow.exponents["input"] + 6
    assert wide.report.samples == 2
