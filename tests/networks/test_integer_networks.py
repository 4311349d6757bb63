"""Compares quantised networks in integer arithmetic with onnxruntime on the same models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_nets import BLOCKS, differences, integers_of, random_inputs
from onnx import helper
from onnx_graphs import session
from quantised_graphs import Graph

from benchmarks.quantisation.integer_graphs import from_file, in_memory, run
from tilewright.networks import zoo
from tilewright.networks.errors import InputError
from tilewright.networks.integer import cpu_islands
from tilewright.networks.integer.extraction import integer_graph
from tilewright.networks.integer.graph import IntegerGraph
from tilewright.networks.integer.reference import layer_reference
from tilewright.networks.quantisation import Samples, quantise
from tilewright.networks.zoo import digits
from tilewright.targets.capabilities import Blocks
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.im2col import Unfold
from tilewright.targets.integer_reference import average_weights
from tilewright.targets.layer import Layer, Scale, to_int8
from tilewright.targets.workload import Workload, parse_workload

ONE_TIE = 1


def _epilogue(layer: Layer) -> str:
    return ", ".join(map(str, layer.workload.epilogue))


def residual_net(g: Graph) -> onnx.ModelProto:
    """Return a first convolution, pools, residual additions, and a dense layer after an image."""
    x = g.quantise(g.input("x", (1, 3, 8, 8)), -5)
    first = g.conv(x, "first", (24, 3, 3, 3), (-5, -7), pads=[1] * 4)
    a = g.quantise(g.op("Relu", "first.relu", [first]), -2)
    pool = g.op("MaxPool", "pool", [a], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    pool = g.quantise(pool, -2)
    conv = g.conv(pool, "conv", (24, 24, 3, 3), (-2, -7), pads=[1] * 4)
    y = g.quantise(g.op("Relu", "relu", [g.op("Add", "sum", [conv, pool])]), 0)
    alone = g.quantise(g.op("Add", "alone", [y, pool]), 1)
    mean = g.quantise(g.op("AveragePool", "mean", [alone], kernel_shape=[2, 2]), 0)
    flat = g.op("Flatten", "flat", [mean])
    product = g.op("MatMul", "fc", [flat, g.weight("fc", (24 * 9, 10), -7)])
    return g.model((g.quantise(product, 3), (1, 10)))


def depthwise_net(g: Graph) -> onnx.ModelProto:
    """Return depthwise and grouped convolutions, ReLU6, a global average and a separate clip."""
    bounds = [g.constant("low", np.float32(0)), g.constant("high", np.float32(6))]
    x = g.quantise(g.input("x", (2, 24, 9, 9)), -5)
    deep = g.conv(x, "deep", (24, 1, 3, 3), (-5, -6), group=24, strides=[2, 2], pads=[1] * 4)
    y = g.quantise(g.op("Clip", "six", [deep, *bounds]), -4)
    grouped = g.conv(y, "grouped", (48, 12, 1, 1), (-4, -7), group=2)
    y = g.quantise(grouped, -2)
    y = g.quantise(g.op("Clip", "clip", [y, *bounds]), -3)
    mean = g.quantise(g.op("GlobalAveragePool", "mean", [y]), -4)
    return g.model((mean, (2, 48, 1, 1)))


def attention_net(g: Graph) -> onnx.ModelProto:
    """Return two attention heads with a layer norm before and an addition after them."""
    x = g.input("x", (1, 10, 32))
    norm = [g.constant("scale", np.ones(32, np.float32)), g.constant("b", np.ones(32, np.float32))]
    y = g.quantise(g.op("LayerNormalization", "norm", [x, *norm]), -5)
    heads = []
    for role, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        linear = g.op("MatMul", role, [y, g.weight(role, (32, 32), -9)])
        shape = g.constant(f"{role}.shape", np.array([1, 10, 2, 16]))
        split = g.op("Reshape", f"{role}.heads", [g.quantise(linear, -5), shape])
        heads.append(g.quantise(g.op("Transpose", f"{role}.turn", [split], perm=order), -5))
    scores = g.quantise(g.op("MatMul", "scores", heads[:2]), -3)
    chances = g.quantise(g.op("Softmax", "softmax", [scores]), -7)
    mixed = g.quantise(g.op("MatMul", "context", [chances, heads[2]]), -5)
    back = g.quantise(g.op("Transpose", "back", [mixed], perm=[0, 2, 1, 3]), -5)
    rows = g.op("Reshape", "rows", [back, g.constant("rows.shape", np.array([1, 10, 32]))])
    out = g.op("Add", "out.bias", [g.op("MatMul", "out", [rows, g.weight("out", (32, 32), -9)]),
                                   g.bias("out", 32, -14)])  # fmt: skip
    total = g.quantise(g.op("Add", "total", [out, y]), -4)
    return g.model((g.quantise(g.op("Relu", "last", [total]), -3), (1, 10, 32)))


def channels_net(g: Graph) -> onnx.ModelProto:
    """Return products of every kind with one weight exponent per output channel."""

    def own(channels: int, coarsest: int) -> np.ndarray:
        return coarsest - g.random.integers(0, 6, channels)

    x = g.quantise(g.input("x", (1, 20, 8, 8)), -5)
    conv = g.conv(x, "conv", (24, 20, 3, 3), (-5, own(24, -6)), pads=[1] * 4)
    y = g.quantise(g.op("Relu", "relu", [conv]), 0)
    deep = g.conv(y, "deep", (24, 1, 3, 3), (0, own(24, -5)), group=24, strides=[2, 2])
    y = g.quantise(deep, 3)
    grouped = g.conv(y, "grouped", (48, 12, 1, 1), (3, own(48, -7)), group=2)
    flat = g.op("Flatten", "flat", [g.quantise(grouped, 5)])
    rows, fc = own(40, -6), own(10, -7)
    operands = [flat, g.weight("gemm", (40, 48 * 9), rows), g.bias("gemm", 40, 5 + rows)]
    y = g.quantise(g.op("Gemm", "gemm", operands, transB=1), 10)
    product = g.op("MatMul", "fc", [y, g.weight("fc", (40, 10), fc, axis=1)])
    last = g.op("Add", "fc.bias", [product, g.bias("fc", 10, 10 + fc)])
    return g.model((g.quantise(last, 12), (1, 10)))


NETS: dict[str, Callable[[Graph], onnx.ModelProto]] = {
    "residual": residual_net, "depthwise": depthwise_net, "attention": attention_net,
    "channels": channels_net,
}  # fmt: skip


def _check_layers(model: onnx.ModelProto, graph: IntegerGraph, compared: int) -> None:
    """Compare every layer, given onnxruntime's integers. Only ties and averages may differ."""
    inputs = random_inputs(graph)
    result = differences(graph, integers_of(model, graph, inputs))
    assert len(result) >= compared
    for name, difference in result.items():
        assert np.abs(difference).max() <= ONE_TIE, name
        assert np.count_nonzero(difference) <= 0.2 * difference.size, name


@pytest.mark.parametrize(
    ("name", "compared"), [("residual", 6), ("depthwise", 4), ("attention", 4), ("channels", 5)]
)
@pytest.mark.parametrize("blocks", [BLOCKS, Blocks(2, 8, 8)])
def test_every_layer_is_onnxruntimes(name: str, compared: int, blocks: Blocks) -> None:
    model = NETS[name](Graph())
    graph = integer_graph(model, blocks, name=name)
    _check_layers(model, graph, compared)
    inputs = random_inputs(graph)
    (output,) = graph.outputs
    ours = run(graph, inputs, in_memory(graph))[output.name]
    (theirs,) = session(model).run([output.name], inputs)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert output.scale is not None
    steps = np.abs(ours - theirs) / output.scale.step
    assert steps.max() <= 3 * ONE_TIE  # ties add up from layer to layer


def test_aresidual_network_is_one_segment_of_known_layers() -> None:
    def unfold(workload: Workload) -> Unfold | None:
        return Unfold.for_patches(workload, 3, 3)

    graph = integer_graph(residual_net(Graph()), BLOCKS, unfold=unfold)
    assert not graph.islands
    assert len(graph.segments()) == 1
    assert {layer.name: f"{layer.workload} {_epilogue(layer)}" for layer in graph.layers} == {
        "first": "conv2d:n=1,c=27,h=8,w=8,o=24,k=1,s=1,p=0 bias, >> 10, min 127, max 0",
        "pool": "max_pool:n=1,c=24,h=8,w=8,k=3,s=2,p=1 ",
        "conv": "conv2d:n=1,c=24,h=4,w=4,o=24,k=3,s=1,p=1 bias, residual 7, >> 9, min 127, max 0",
        "alone": "conv2d:n=1,c=24,h=4,w=4,o=24,k=1,s=1,p=0,g=24 "
        "residual 2, + 4, >> 3, min 127, max -128",
        "mean": "conv2d:n=1,c=24,h=4,w=4,o=24,k=2,s=1,p=0,g=24 + 1, >> 1, min 127, max -128",
        "fc": "dense:n=1,c=288,o=10 + 512, >> 10, min 127, max -128",
    }
    first, fc = graph.layers[0], graph.layers[-1]
    assert first.unfold is not None
    assert graph.quantised == {first.data: "x"}
    assert first.macs == 24 * 64 * 27
    assert graph.macs == sum(layer.macs for layer in graph.layers)
    assert first.names[:2] == ("first", "first.relu")
    assert graph.results == {graph.outputs[0].name: fc.output}


def test_what_passes_the_matrix_unit_as_it_is_needs_square_blocks() -> None:
    """Without square blocks, these layers are left to the CPU. The results stay right."""
    model = residual_net(Graph())
    graph = integer_graph(model, Blocks(1, 8, 32))
    assert {layer.name for layer in graph.layers} == {"first", "mean", "fc"}
    assert {name for name, why in graph.left.items() if "square" in why} == {
        "pool", "conv", "alone"
    }  # fmt: skip
    _check_layers(model, graph, 3)


def test_a_flattened_image_is_read_as_it_lies() -> None:
    """A dense layer's weights follow the packed image, which has 8 channels of padding."""
    graph = integer_graph(residual_net(Graph()), BLOCKS)
    fc = graph.layers[-1]
    image = np.random.default_rng(0).integers(-9, 9, (24, 9)).astype(np.int8)
    packed = np.zeros((2, 9, 16), np.int64)  # blocks, pixels, channels of a block
    for channel in range(24):
        packed[channel // 16, :, channel % 16] = image[channel]
    assert fc.weight is not None
    plain = _weights_of(residual_net(Graph()), "fc.weight")
    np.testing.assert_array_equal(
        fc.weight[:, :, 0, 0].astype(np.int64) @ packed.ravel(),
        plain.T.astype(np.int64) @ image.ravel(),
    )


def _weights_of(model: onnx.ModelProto, name: str) -> np.ndarray:
    return next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name)


def test_attention_is_a_dense_layer_a_head_between_islands() -> None:
    graph = integer_graph(attention_net(Graph()), BLOCKS)
    heads = [layer for layer in graph.layers if layer.weight_from is not None]
    assert [layer.name for layer in heads] == ["scores.0", "scores.1", "context.0", "context.1"]
    assert {str(layer.workload) for layer in heads} == {
        "dense:n=10,c=16,o=10", "dense:n=10,c=10,o=16",
    }  # fmt: skip
    on_cpu = {name for island in graph.islands for name, _ in island.nodes}
    assert {"norm", "softmax"} <= on_cpu
    assert not on_cpu & {"q", "k", "v", "scores", "context", "out", "total", "last"}
    out = next(layer for layer in graph.layers if layer.name == "out")
    assert out.residual is not None
    assert [len(segment) for segment in graph.segments()] == [3, 2, 2, 2]


@pytest.mark.slow(seconds=2)
def test_islands_are_written_to_a_library_and_run_from_it(tmp_path: Path) -> None:
    graph = integer_graph(attention_net(Graph()), BLOCKS)
    cpu_islands.write(graph, tmp_path / "cpu.so")
    inputs, name = random_inputs(graph), graph.outputs[0].name
    loaded = run(graph, inputs, from_file(tmp_path / "cpu.so"))[name]
    np.testing.assert_array_equal(loaded, run(graph, inputs, in_memory(graph))[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow(seconds=0.5)
def test_digits_are_read_as_onnxruntime_reads_them() -> None:
    """Predictions equal onnxruntime's for all held-out images, and logits differ by at most a step.

    Predictions may differ if the two largest logits are within one step of each other.
    """
    model = quantise(zoo.build("digits_cnn")).model
    graph = integer_graph(model, BLOCKS, name="digits_cnn")
    assert len(graph.layers) == 5
    assert not graph.islands
    (output,), ort, island = graph.outputs, session(model), in_memory(graph)
    assert output.scale is not None
    step = ONE_TIE * output.scale.step
    images, _ = digits.held_out()
    for image in images:
        (ours,) = run(graph, {"input": image[None]}, island)[output.name]
        ((theirs,),) = ort.run(None, {"input": image[None]})
        assert np.abs(ours - theirs).max() <= step
        first, second = np.sort(theirs)[:-3:-1]
        assert ours.argmax() == theirs.argmax() or first - second <= step
    _check_layers(model, graph, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow(seconds=3.5)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_a_network_of_the_zoo_is_one_segment(name: str) -> None:
    sample = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    samples = Samples(({"input": sample},))
    model = quantise(zoo.build(name), samples).model
    graph = integer_graph(model, BLOCKS, name=name)
    assert not graph.islands
    assert graph.macs == sum(layer.macs for layer in graph.layers)
    _check_layers(model, graph, len(graph.layers))


def _conv_net(
    data: float | list[float], weight: float | list[float], zero: int = 0, pads: int = 0
) -> onnx.ModelProto:
    """Return the network x → Q/DQ → conv → ReLU → Q/DQ with the given scales."""
    g = Graph()
    g.input("x", (1, 16, 4, 4))
    g.constant("sx", np.float32(data)), g.constant("sw", np.float32(weight))
    g.constant("z", np.full_like(data, zero, np.int8))
    g.constant("zw", np.zeros_like(weight, dtype=np.int8))
    g.constant("w", np.random.default_rng(0).integers(-127, 128, (16, 16, 3, 3)).astype(np.int8))
    q = g.op("QuantizeLinear", "qx", ["x", "sx", "z"])
    dq = g.op("DequantizeLinear", "dqx", [q, "sx", "z"])
    dw = g.op("DequantizeLinear", "dqw", ["w", "sw", "zw"], axis=0)
    relu = g.op("Relu", "relu", [g.op("Conv", "conv", [dq, dw], pads=[pads] * 4)])
    out = [g.constant("sy", np.float32(np.max(data) * np.max(weight) * 40)), "z"]
    if np.ndim(data):
        out = ["sx", "z"]
    q = g.op("QuantizeLinear", "qy", [relu, *out])
    size = 2 + 2 * pads
    return g.model((g.op("DequantizeLinear", "dqy", [q, *out]), (1, 16, size, size)))


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda: _conv_net([0.25, 0.5] * 8, 0.5), ["one scale per channel", "from 0.25 to 0.5"]),
        (lambda: _conv_net(0.0, 0.5), ["scale 0", "not a positive number"]),
    ],
)
def test_scales_that_no_layer_has_leave_it_to_the_cpu_and_are_named(
    net: Callable[[], onnx.ModelProto], words: list[str]
) -> None:
    graph = integer_graph(net(), BLOCKS)
    assert not graph.layers
    for word in words:
        assert word in graph.left["conv"]


@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize(
    ("data", "weight", "zero"),
    [(0.1, 0.25, 0), (0.5, 0.3, 0), (0.5, 0.25, 3), (0.013, [0.25, 0.3] * 8, -128),
     (0.02, [0.01 * 1.3**k for k in range(16)], 117)],
)  # fmt: skip
def test_any_scale_and_zero_point_gives_onnxruntimes_integers(
    data: float, weight: float | list[float], zero: int, pads: int
) -> None:
    """Padding must have the integer that represents 0."""
    model = _conv_net(data, weight, zero, pads)
    graph = integer_graph(model, BLOCKS)
    assert not graph.islands
    for seed in range(3):
        inputs = random_inputs(graph, seed)
        result = differences(graph, integers_of(model, graph, inputs))
        assert len(result) == 1
        assert np.abs(result["conv"]).max() <= 1
        assert np.count_nonzero(result["conv"]) <= 0.2 * result["conv"].size


def test_one_pass_rounds_weights_anew_and_says_what_that_costs() -> None:
    model = _conv_net(0.013, 0.02, -128, 1)
    exact, fast = (integer_graph(model, BLOCKS, exact=exact) for exact in (True, False))
    assert ([layer.name for layer in exact.layers], exact.lost) == (["conv.fine", "conv"], {})
    assert [layer.name for layer in fast.layers] == ["conv"]
    assert 40 < fast.lost["conv"] < 60
    inputs = random_inputs(fast)
    result = differences(fast, integers_of(model, fast, inputs))
    assert 1 < np.abs(result["conv"]).max() <= 16


@pytest.mark.parametrize("kind", ["Add", "GlobalAveragePool", "MaxPool", "Relu"])
def test_what_multiplies_by_constants_takes_any_scale(kind: str) -> None:
    g = Graph()
    steps = {"x": (0.031, -7), "y": (0.054, 12), "z": (0.047, -3)}
    for name, (step, zero) in steps.items():
        g.constant(f"{name}.s", np.float32(step)), g.constant(f"{name}.z", np.int8(zero))

    def through(x: str, name: str, number: int) -> str:
        own = [f"{name}.s", f"{name}.z"]
        q = g.op("QuantizeLinear", f"{name}{number}", [x, *own])
        return g.op("DequantizeLinear", f"{name}{number}.dq", [q, *own])

    one = through(g.input("one", (1, 20, 6, 6)), "x", 0)
    inputs = [one, through(g.input("two", (1, 20, 6, 6)), "y", 1)] if kind == "Add" else [one]
    extra = {"kernel_shape": [2, 2], "strides": [2, 2]} if kind == "MaxPool" else {}
    made = g.op(kind, "op", inputs, **extra)
    size = {"GlobalAveragePool": 1, "MaxPool": 3}.get(kind, 6)
    model = g.model((through(made, "z", 2), (1, 20, size, size)))
    graph = integer_graph(model, BLOCKS)
    assert not graph.islands
    for seed in range(3):
        inputs_ = random_inputs(graph, seed)
        ours = run(graph, inputs_, in_memory(graph))
        theirs = integers_of(model, graph, inputs_)["z2"]
        assert np.abs(ours["z2"].astype(int) - theirs).max() <= 1


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize(("length", "fits"), [(1 << 16, True), (1 << 18, False)])
def test_sums_that_could_leave_32_bits_are_left_to_the_cpu(
    length: int, fits: bool, data: bool
) -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, length)), -5)
    if data:
        weight = g.quantise(g.input("w", (length, 1)), -7)
    else:
        weight = g.dequantise(g.constant("w", np.full((length, 1), 127, np.int8)), -7)
    product = g.op("MatMul", "fc", [x, weight])
    graph = integer_graph(g.model((g.quantise(product, 3), (1, 1))), BLOCKS)
    assert len(graph.layers) == fits
    assert fits or "32 bits" in graph.left["fc"]


def test_what_is_kept_in_float_runs_on_the_cpu() -> None:
    model = _conv_net(0.1, 0.3)
    graph = integer_graph(model, BLOCKS, keep_float=["relu"])
    assert not graph.layers
    inputs = random_inputs(graph)
    ours = run(graph, inputs, in_memory(graph))[graph.outputs[0].name]
    np.testing.assert_allclose(ours, session(model).run(None, inputs)[0], atol=1e-6)


@pytest.mark.slow(seconds=0.5)
def test_a_float_network_has_islands_only() -> None:
    graph = integer_graph(zoo.build("digits_cnn"), BLOCKS)
    assert not graph.layers
    assert len(graph.islands) == 1
    image = digits.held_out()[0][:1]
    ours = run(graph, {"input": image}, in_memory(graph))[graph.outputs[0].name]
    theirs = session(zoo.build("digits_cnn")).run(None, {"input": image})[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_pool_that_changes_the_scale_is_two_layers() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 4, 4)), -5)
    pool = g.op("MaxPool", "pool", [x], kernel_shape=[2, 2], strides=[2, 2])
    model = g.model((g.quantise(g.op("Relu", "relu", [pool]), -3), (1, 16, 2, 2)))
    graph = integer_graph(model, BLOCKS)
    assert [_epilogue(layer) for layer in graph.layers] == ["max 0", "+ 2, >> 2, min 127, max 0"]
    inputs = random_inputs(graph)
    ours = run(graph, inputs, in_memory(graph))[graph.outputs[0].name]
    theirs = session(model).run(None, inputs)[0]
    assert np.abs(ours - theirs).max() <= ONE_TIE / 8


def test_an_average_of_fewer_pixels_at_the_border_stays_on_the_cpu() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 4, 4)), -5)
    pool = g.op("AveragePool", "mean", [x], kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=0)
    model = g.model((g.quantise(pool, -5), (1, 16, 4, 4)))
    graph = integer_graph(model, BLOCKS)
    assert graph.islands[0].nodes[0] == ("mean", "AveragePool")
    assert "border" in graph.left["mean"]
    inputs = random_inputs(graph)
    ours = run(graph, inputs, in_memory(graph))[graph.outputs[0].name]
    np.testing.assert_array_equal(ours, session(model).run(None, inputs)[0])


def test_concatenated_images_stay_in_integers() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 8, 4, 4)), -5)
    parts = [g.quantise(g.conv(x, f"conv{i}", (8, 8, 1, 1), (-5, -7)), -4) for i in range(2)]
    both = g.quantise(g.op("Concat", "both", parts, axis=1), -4)
    last = g.quantise(g.conv(both, "last", (8, 16, 1, 1), (-4, -7)), -2)
    model = g.model((last, (1, 8, 4, 4)))
    graph = integer_graph(model, BLOCKS)
    assert [layer.name for layer in graph.layers] == ["conv0", "conv1", "last"]
    _check_layers(model, graph, 2)
    inputs = random_inputs(graph)
    ours = run(graph, inputs, in_memory(graph))[graph.outputs[0].name]
    assert np.abs(ours - session(model).run(None, inputs)[0]).max() <= ONE_TIE * 4


def test_an_image_and_floats_are_concatenated_as_floats() -> None:
    g = Graph()
    x = g.quantise(g.input("x", (1, 4, 3, 3)), -5)
    y = g.quantise(g.conv(x, "conv", (4, 4, 1, 1), (-5, -7)), -4)
    first = g.constant("first", np.full((1, 2, 3, 3), 0.3, np.float32))
    both = g.op("Concat", "both", [first, y], axis=1)
    model = g.model((g.quantise(both, -4), (1, 6, 3, 3)))
    graph = integer_graph(model, BLOCKS)
    assert [layer.name for layer in graph.layers] == ["conv"]
    inputs = random_inputs(graph)
    ours = run(graph, inputs, in_memory(graph))[graph.outputs[0].name]
    assert np.abs(ours - session(model).run(None, inputs)[0]).max() <= ONE_TIE * 2.0**-4


def test_one_tensor_may_have_float_and_integer_readers() -> None:
    """A layer reads the value in int8, the CPU reads it in float32, and it is an output too."""
    g = Graph()
    x = g.quantise(g.input("x", (1, 8, 4, 4)), -5)
    y = g.quantise(g.conv(x, "conv", (8, 8, 1, 1), (-5, -7)), -3)
    last = g.quantise(g.conv(y, "last", (8, 8, 1, 1), (-3, -7)), -1)
    soft = g.op("Softmax", "soft", [y])
    model = g.model((last, (1, 8, 4, 4)), (soft, (1, 8, 4, 4)), (y, (1, 8, 4, 4)))
    graph = integer_graph(model, BLOCKS)
    assert [type(step).__name__ for step in graph.steps] == ["Layer", "Layer", "CpuIsland"]
    inputs = random_inputs(graph)
    ours = run(graph, inputs, in_memory(graph))
    for info, theirs in zip(graph.outputs, session(model).run(None, inputs), strict=True):
        np.testing.assert_allclose(ours[info.name], theirs, atol=0.5 if info.name == last else 0.13)


def test_wrong_inputs_are_named() -> None:
    graph = integer_graph(residual_net(Graph()), BLOCKS)
    island = in_memory(graph)
    with pytest.raises(InputError, match="inputs are x, not y"):
        run(graph, {"y": np.zeros(1, np.float32)}, island)
    with pytest.raises(InputError, match=r"must have type float32 and shape \(1, 3, 8, 8\)"):
        run(graph, {"x": np.zeros((1, 3, 8, 9), np.float32)}, island)


def test_an_output_that_no_input_feeds_is_computed_in_onnxruntime() -> None:
    g = Graph()
    x = g.input("x", (1, 4))
    g.constant("c", np.ones((1, 4), np.float32))
    one = g.op("Relu", "fixed", ["c"])
    model = g.model((g.op("Relu", "relu", [x]), (1, 4)), (one, (1, 4)))
    graph = integer_graph(model, BLOCKS)
    assert [region.outputs for region in graph.regions] == [(one,)]
    values = run(graph, {"x": np.full((1, 4), -1, np.float32)}, in_memory(graph))
    np.testing.assert_array_equal(values[one], np.ones((1, 4)))


@given(st.integers(1, 12), st.integers(1, 12))
def test_an_average_weighs_its_pixels_alike(height: int, width: int) -> None:
    weights, shift = average_weights(height, width)
    assert weights.shape == (height, width)
    assert weights.astype(int).sum() == 1 << shift
    assert weights.min() >= 1
    assert int(weights.max()) - int(weights.min()) <= 1


@settings(max_examples=30)
@given(
    st.lists(st.floats(-300, 300, width=32), min_size=1), st.floats(0.0625, 4, width=32),
    st.integers(-128, 127),
)  # fmt: skip
def test_inputs_are_quantised_as_onnxruntime_does(
    values: list[float], step: float, zero: int
) -> None:
    array = np.array(values, np.float32)
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    tensors = {"s": np.float32(step), "z": np.int8(zero)}
    graph = helper.make_graph(
        nodes, "q",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [len(values)])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, [len(values)])],
        [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (theirs,) = session(model).run(None, {"x": array})
    np.testing.assert_array_equal(to_int8(array, Scale(step, zero)), theirs)


def test_channels_are_shifted_by_amounts_of_their_own() -> None:
    """Channels with similar shifts stay on the accelerator, with one shift per channel.

    A layer stays on the CPU if a channel would be shifted to the left, or if a tensor is added.
    """
    graph = integer_graph(channels_net(Graph()), BLOCKS)
    assert not graph.left
    assert not graph.islands
    for layer in graph.layers:
        (step,) = (op for op in layer.workload.epilogue if op.kind == "shr_channel")
        assert layer.shifts is not None
        assert layer.bias is not None
        assert step.shift_range[0] <= layer.shifts.min() < layer.shifts.max() <= step.shift_range[1]
        assert step.value == max(5, layer.shifts.min())

    def conv(output: int, added: bool = False, spread: int = 1) -> IntegerGraph:
        g = Graph()
        x = g.quantise(g.input("x", (1, 16, 4, 4)), -5)
        weight = g.weight("conv", (16, 16, 1, 1), -6 - spread * (np.arange(16) % 2))
        y = g.op("Conv", "conv", [x, weight])
        y = g.op("Add", "add", [y, x]) if added else y
        return integer_graph(g.model((g.quantise(y, output), (1, 16, 4, 4))), BLOCKS)

    assert _epilogue(conv(-3).layers[0]).startswith("bias, >> channel 8, ")
    assert _epilogue(conv(-3, spread=9).layers[0]).startswith("bias, >> channel, ")
    assert _epilogue(conv(-8).layers[0]).startswith("bias, >> channel, ")
    assert "too far apart" in conv(-12).left["conv"]
    assert "scales differ between channels" in conv(-3, added=True).left["conv"]


def test_a_large_shift_rounds_in_the_bias() -> None:
    """The rounding constant does not fit into an immediate operand."""
    g = Graph()
    x = g.quantise(g.input("x", (1, 16, 4, 4)), -12)
    product = g.op("Conv", "conv", [x, g.weight("conv", (16, 16, 1, 1), -12)])
    graph = integer_graph(g.model((g.quantise(product, -7), (1, 16, 4, 4))), BLOCKS)
    (layer,) = graph.layers
    assert layer.workload.epilogue[:2] == (EpilogueOp("bias"), EpilogueOp("shr", 17))
    assert layer.bias is not None
    assert set(layer.bias) == {1 << 16}


def test_the_reference_of_a_layer_wraps_no_sum() -> None:
    workload = parse_workload(f"dense:n=1,c={1 << 18},o=1")
    weight = np.full((1, 1 << 18, 1, 1), 127, np.int8)
    layer = Layer("fc", ("fc",), "MatMul", workload, "x", "y", weight=weight)
    data = np.full((1, 1 << 18), 127, np.int8)
    with pytest.raises(OverflowError, match="overflow 32 bits"):
        layer_reference(layer, {"x": data}, 16)
