"""Compares networks that onnxruntime quantised dynamically with onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_graphs import NumberedGraph, normal, reference
from onnxruntime.quantization import QuantType, quantize_dynamic
from test_compiled_libraries import built
from test_quantised_libraries import layers_of

from tilewright import networks
from tilewright.networks.model_source import OnnxSource
from tilewright.networks.network import Network
from tilewright.networks.offloading.accelerator import Accelerator
from tilewright.networks.onnx.files import without_weights
from tilewright.networks.onnx.normalise import normalise
from tilewright.networks.onnx.reference_model import reference_model
from tilewright.networks.zoo.builder import Builder
from tilewright.targets.cpu.kernels.int8_dot_product import computes_int8
from tilewright.targets.cpu.spec import this_machine
from tilewright.targets.cpu.target import CpuTarget

INTEGERS = {"MatMulInteger", "ConvInteger"}
compiles_int8 = pytest.mark.skipif(
    not computes_int8(this_machine()), reason="kernels of int8 are for x86"
)


class Net(NumberedGraph):
    """A network under construction that quantises its activations dynamically."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(7)

    def dynamic(self, x: str) -> list[str]:
        """Add a DynamicQuantizeLinear. Return the names of integers, scale and zero point."""
        names = [f"{x}.{len(self.nodes)}.{part}" for part in ("q", "s", "z")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names, name=names[0]))
        return names

    def weights(
        self, shape: tuple[int, ...], kind: str, axis: int | None, zero: int
    ) -> tuple[str, str, str]:
        """Add integer weights with scale and zero point, one per channel if an axis is given."""
        ends = np.iinfo(kind)
        numbers = self.random.integers(ends.min, ends.max + 1, shape).astype(kind)
        count = () if axis is None else (shape[axis],)
        scale = self.random.uniform(0.01, 0.02, count).astype(np.float32)
        zeros = np.full(count, zero, kind)
        return self.constant(numbers), self.constant(scale), self.constant(zeros)

    def scaled(self, integers: str, scale: str, other: str) -> str:
        """Convert integer sums to float with the scales of both operands."""
        real = self.op("Cast", integers, to=TensorProto.FLOAT)
        return self.op("Mul", real, self.op("Mul", scale, other))

    def dense(self, x: str, shape: tuple[int, int], kind: str, axis: int | None, zero: int) -> str:
        """Add a matrix product."""
        q, s, z = self.dynamic(x)
        w, sw, wz = self.weights(shape, kind, axis, zero)
        return self.scaled(self.op("MatMulInteger", q, w, z, wz), s, sw)

    def conv(self, x: str, shape: tuple[int, ...], kind: str, **attributes: Any) -> str:
        """Add a convolution with a bias."""
        q, s, z = self.dynamic(x)
        w, sw, wz = self.weights(shape, kind, None, 0 if kind == "int8" else 128)
        y = self.scaled(self.op("ConvInteger", q, w, z, wz, **attributes), s, sw)
        bias = self.random.standard_normal((1, shape[0], *(1,) * (len(shape) - 2)))
        return self.op("Add", y, self.constant(bias.astype(np.float32)))

    def model(self, shape: tuple[int, ...], *results: str) -> onnx.ModelProto:
        """Return the finished model."""
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
            self.constants,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def far(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the largest error, relative to the largest value."""
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), 1e-30))


def exact(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[Any]:
    """Return onnxruntime's output, with sums that do not saturate."""
    return reference(reference_model(model), x)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in normalise(model, {}).graph.node]


DENSE = [
    ((6, 32), "int8", None, 0),
    ((6, 32), "int8", 1, 0),
    ((6, 32), "int8", 1, -3),
    ((2, 6, 32), "uint8", None, 128),
    ((2, 6, 32), "uint8", 1, 131),
    ((32,), "int8", None, 0),
]


@pytest.mark.parametrize(("shape", "kind", "axis", "zero"), DENSE)
def test_a_product_is_one_of_dequantised_tensors(
    shape: tuple[int, ...], kind: str, axis: int | None, zero: int
) -> None:
    net = Net()
    model = net.model(shape, net.dense("x", (32, 24), kind, axis, zero))
    written = normalise(model, {})
    dequantised = ["DequantizeLinear"] * 2
    assert operators(model) == ["DynamicQuantizeLinear", *dequantised, "MatMul"]
    assert operators(without_weights(model)) == operators(model)
    x = normal(*shape)
    assert far(reference(written.model, x), exact(model, x)) < 1e-6
    assert {written.absorbed[name].into for name in ("n2", "n4")} == {"n1"}


@compiles_int8
@pytest.mark.slow(seconds=0.7)
@pytest.mark.parametrize(("shape", "kind", "axis", "zero"), DENSE)
def test_its_kernel_gives_the_numbers_of_onnxruntime(
    shape: tuple[int, ...], kind: str, axis: int | None, zero: int, tmp_path: Path
) -> None:
    """The kernel uses integers if the weights have no zero point, and float32 otherwise."""
    net = Net()
    y = net.dense("x", (32, 24), kind, axis, zero)
    y = net.op("Relu", net.op("Add", y, net.constant(normal(24))))
    model = net.model(shape, y)
    artifact, (layer,) = layers_of(model, tmp_path)
    assert layer.workload.dequantises == (zero in (0, 128))
    assert [step.kind for step in layer.workload.epilogue][-2:] == ["bias", "max"]
    for x in (normal(*shape), np.zeros(shape, np.float32), np.full(shape, 3, np.float32)):
        (ours,) = artifact.infer({"x": x}).values()
        assert far(ours, exact(model, x)) < 1e-5


@compiles_int8
@pytest.mark.slow(seconds=0.7)
def test_without_kernels_of_int8_its_numbers_are_the_same(tmp_path: Path) -> None:
    net, shape = Net(), (6, 32)
    model = net.model(shape, net.dense("x", (32, 24), "int8", 1, 0))
    spec = replace(this_machine(), precision="f32")
    artifact, (layer,) = layers_of(model, tmp_path, spec)
    assert layer.workload.dtype == "float32"
    (ours,) = artifact.infer({"x": normal(*shape)}).values()
    assert far(ours, exact(model, normal(*shape))) < 1e-5


@compiles_int8
@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((1, 3, 9, 9), (16, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((1, 8, 9, 9), (8, 1, 3, 3), {"pads": [0, 1, 2, 1], "group": 8}),
        ((1, 8, 5, 5), (16, 8, 1, 1), {}),
        ((1, 8, 20), (16, 8, 3), {"auto_pad": "SAME_UPPER"}),
    ],
)
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_pads_of_a_convolution_stand_for_zeros(
    shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], kind: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    net = Net()
    model = net.model(shape, net.conv("x", weight, kind, **attributes))
    assert INTEGERS.isdisjoint(operators(model))
    artifact, (layer,) = layers_of(model, tmp_path)
    assert layer.workload.dequantises
    x = normal(*shape) + 1
    (ours,) = artifact.infer({"x": x}).values()
    assert far(ours, exact(model, x)) < 1e-5


@pytest.mark.slow(seconds=0.7)
def test_a_tensor_is_quantised_as_onnxruntime_does(tmp_path: Path) -> None:
    net, shape = Net(), (4, 33)
    names = net.dynamic("x")
    results = [net.op("Cast", name, to=TensorProto.FLOAT) for name in names]
    model = net.model(shape, *results)
    artifact, _ = layers_of(model, tmp_path)
    halves = np.linspace(-127.5, 127.5, 256, dtype=np.float32)[: 4 * 33].reshape(shape)
    halves[0, 0], halves[0, 1] = -127.5, 127.5  # a scale of one: ties
    for x in (normal(*shape), normal(*shape) + 9, np.zeros(shape, np.float32), halves):
        ours = artifact.infer({"x": x})
        for place, name in enumerate(results):
            alone = net.model(shape, name)
            np.testing.assert_array_equal(list(ours.values())[place], reference(alone, x))


@pytest.mark.slow(seconds=0.7)
def test_two_activations_are_multiplied(tmp_path: Path) -> None:
    net, shape = Net(), (2, 6, 32)
    one, two = net.dynamic("x"), net.dynamic(net.op("Transpose", "x", perm=[0, 2, 1]))
    product = net.op("MatMulInteger", one[0], two[0], one[2], two[2])
    model = net.model(shape, net.scaled(product, one[1], two[1]))
    assert "MatMul" in operators(model)
    artifact, (layer,) = layers_of(model, tmp_path)
    assert layer.workload.operator == "batch_matmul"
    (ours,) = artifact.infer({"x": normal(*shape)}).values()
    assert far(ours, exact(model, normal(*shape))) < 1e-5


@pytest.mark.slow(seconds=0.7)
@pytest.mark.parametrize("second", ["activation", "constant"])
def test_products_of_integers_that_stay_have_no_kernel_of_floats(
    second: str, tmp_path: Path
) -> None:
    """No operator scales the sums, so they stay int32."""
    net, shape = Net(), (6, 32)
    q, _, z = net.dynamic("x")
    if second == "constant":
        w, _, wz = net.weights((32, 6), "int8", 1, 1)
    else:
        w, wz = net.op("Transpose", q, perm=[1, 0]), z
    sums = net.op("MatMulInteger", q, w, z, wz)
    model = net.model(shape, net.op("Cast", sums, to=TensorProto.FLOAT))
    assert "MatMulInteger" in operators(model)
    artifact, layers = layers_of(model, tmp_path)
    assert layers == []
    (ours,) = artifact.infer({"x": normal(*shape)}).values()
    np.testing.assert_array_equal(ours, exact(model, normal(*shape)))


def test_what_has_another_zero_point_stays() -> None:
    net = Net()
    q, s, _ = net.dynamic("x")
    w, sw, wz = net.weights((32, 6), "int8", None, 0)
    other = net.constant(np.uint8(3))
    model = net.model((6, 32), net.scaled(net.op("MatMulInteger", q, w, other, wz), s, sw))
    assert "MatMulInteger" in operators(model)


def test_one_tensor_is_quantised_once() -> None:
    net = Net()
    parts = [net.dense("x", (32, 24), "int8", None, 0) for _ in range(2)]
    model = net.model((6, 32), net.op("Add", *parts))
    result = operators(model)
    assert result.count("DynamicQuantizeLinear") == 1
    assert result.count("DequantizeLinear") == 3  # of the data once
    written = normalise(model, {}).model
    assert far(reference(written, normal(6, 32)), exact(model, normal(6, 32))) < 1e-6


def test_an_accelerator_leaves_its_products_to_the_cpu() -> None:
    net = Net()
    y = net.conv("x", (16, 16, 3, 3), "int8", pads=[1, 1, 1, 1])
    model = net.model((1, 16, 6, 6), y)
    network = Network(OnnxSource("net", model, lambda: model, {}))
    conv = next(o for o in network.report(16, 16).operators if o.op_type == "ConvInteger")
    assert (conv.status, conv.workload) == ("cpu", None)
    assert "computed at run time" in conv.reason
    (workload,) = network.workloads_on(Accelerator.for_target(CpuTarget(this_machine())))
    assert str(workload.workload.epilogue[0]) == "dequantise uint8"


@compiles_int8
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_a_network_that_onnxruntime_quantised_agrees_with_it(
    kind: QuantType, tmp_path: Path
) -> None:
    net = Builder("small", (1, 3, 12, 12), 0, True)
    x = net.relu(net.conv(net.input, "stem", 16, kernel=3, stride=2, pad=1, bias=True), "relu")
    x = net.add(net.conv(x, "middle", 16, kernel=3, pad=1, bias=True), x, "add")
    y = net.linear(net.flatten(net.global_average_pool(x, "pool"), "flat"), "fc", 10)
    onnx.save(net.model(y), tmp_path / "float.onnx")
    quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", weight_type=kind, per_channel=True
    )
    model = onnx.load(tmp_path / "int8.onnx")
    assert {node.op_type for node in model.graph.node} >= {"ConvInteger", "MatMulInteger"}
    artifact = built(model, tmp_path)
    image = normal(1, 3, 12, 12)
    (ours,) = artifact.infer({net.input: image}).values()
    (theirs,) = networks.load(tmp_path / "int8.onnx").whole.reference({net.input: image}).values()
    assert far(ours, theirs) < 0.02  # a sum near a tie may be rounded to either side
