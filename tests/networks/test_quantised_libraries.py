"""Compares quantised networks that run in integers on a CPU with onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_graphs import NumberedGraph, normal, session
from test_compiled_libraries import by_rule

from tilewright import networks
from tilewright.networks.artifact.library import CompiledArtifact, compile_files
from tilewright.networks.compiled.layers import KernelLayer, kernel_layers
from tilewright.targets.cpu.kernels.int8_dot_product import computes_int8
from tilewright.targets.cpu.spec import PLAIN_TILES, CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget

pytestmark = pytest.mark.skipif(
    not computes_int8(this_machine()), reason="kernels of int8 are for x86"
)
SHAPE = (1, 3, 9, 9)


class Net(NumberedGraph):
    """A QDQ network under construction, with random scales and zero points.

    Its activations have the dtype `kind`.
    """

    def __init__(self, kind: str, symmetric: bool, per_channel: bool, seed: int) -> None:
        super().__init__()
        self.kind, self.symmetric, self.per_channel = np.dtype(kind), symmetric, per_channel
        self.random = np.random.default_rng(seed)
        self.step = 0.0

    def quantised(self, x: str, scale: float = 0.0) -> str:
        """Quantise and dequantise a tensor, with a random scale unless one is given."""
        ends = np.iinfo(self.kind)
        self.step = scale or float(self.random.uniform(0.02, 0.05))
        zero = 0 if self.symmetric else int(self.random.integers(ends.min, ends.max + 1))
        if self.symmetric and self.kind == np.uint8:
            zero = 128
        about = [self.constant(np.float32(self.step)), self.constant(self.kind.type(zero))]
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *about), *about)

    def product(self, kind: str, x: str, shape: tuple[int, ...], **attributes: Any) -> str:
        """Add a convolution or dense layer with a bias."""
        axis = 0 if kind == "Conv" else 1
        fan_in = int(np.prod(shape)) / shape[axis]
        count = shape[axis] if self.per_channel else 1
        scale = self.random.uniform(0.5, 2, count) / (74 * np.sqrt(fan_in))
        zero = np.zeros(count, np.int8)
        if count == 1:
            scale, zero = scale.reshape(()), zero.reshape(())
        integers = self.random.integers(-127, 128, shape).astype(np.int8)
        about = [self.constant(scale.astype(np.float32)), self.constant(zero)]
        extra = {"axis": axis} if count > 1 else {}
        weight = self.op("DequantizeLinear", self.constant(integers), *about, **extra)
        bias = self.constant(self.random.normal(0, 0.5, shape[axis]).astype(np.float32))
        if kind == "Conv":
            return self.op(kind, x, weight, bias, **attributes)
        return self.op("Add", self.op(kind, x, weight), bias)

    def model(self, result: str) -> onnx.ModelProto:
        """Return the finished model."""
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)], self.constants,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def layers_of(
    model: onnx.ModelProto, folder: Path, spec: CpuSpec | None = None
) -> tuple[CompiledArtifact, list[KernelLayer]]:
    """Build a library with the rule schedules of the kernels. Return it and its layers."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    target, whole = CpuTarget(spec or this_machine()), networks.load(str(path)).whole
    layers = kernel_layers(whole.flat, target.space)
    picks = {layer.workload: by_rule(target, layer.workload) for layer in layers}
    made = compile_files(
        whole, layers, picks, target, "cpu", name="small", total_macs=1, tolerance=0.1
    )
    return CompiledArtifact(made.manifest, made.files), layers


def by_onnxruntime(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the output with onnxruntime, one operator at a time in float32.

    onnxruntime's int8 sums would saturate on a CPU without VNNI.
    """
    return np.asarray(session(model).run(None, {"x": x})[0])


def steps_apart(model: onnx.ModelProto, artifact: CompiledArtifact, step: float) -> NDArray[Any]:
    x = normal(*SHAPE, seed=5)
    (ours,) = artifact.infer({"x": x}).values()
    return np.abs(ours - by_onnxruntime(model, x)) / step


@pytest.mark.slow(seconds=5)
@given(
    st.sampled_from(["uint8", "int8"]), st.booleans(), st.booleans(), st.integers(0, 1 << 16),
    st.sampled_from(["plain", "odd", "depthwise", "strided", "dense"]),
)  # fmt: skip
@settings(max_examples=8, derandomize=True, deadline=None)
def test_a_layer_is_within_a_step_of_onnxruntime_s(
    tmp_path_factory: pytest.TempPathFactory, kind: str, symmetric: bool, per_channel: bool,
    seed: int, layer: str,
) -> None:  # fmt: skip
    net = Net(kind, symmetric, per_channel, seed)
    x = net.quantised("x")
    if layer == "dense":
        flat = net.op("Reshape", x, net.constant(np.array([27, 9], np.int64)))
        y = net.op("Relu", net.product("MatMul", flat, (9, 20)))
    elif layer == "depthwise":
        y = net.product("Conv", x, (3, 1, 3, 3), group=3, pads=[1, 1, 1, 1])
        y = net.op("Clip", y, net.constant(np.float32(0)), net.constant(np.float32(6)))
    else:
        pads = [0, 1, 2, 1] if layer == "odd" else [1, 1, 1, 1]
        strides = [2, 2] if layer == "strided" else [1, 1]
        y = net.product("Conv", x, (16, 3, 3, 3), pads=pads, strides=strides)
        y = y if layer == "odd" else net.op("Relu", y)
    y = net.quantised(y)
    artifact, layers = layers_of(net.model(y), tmp_path_factory.mktemp("net"))
    (result,) = layers
    assert result.workload.out_dtype == result.workload.data_dtype == kind
    apart = steps_apart(net.model(y), artifact, net.step)
    assert apart.max() < 1.01
    assert (apart > 0.5).mean() < 0.02  # only ties of float32 sums
    assert not any(check.is_wrong for check in artifact.verify())


@pytest.mark.slow(seconds=1.2)
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_a_shortcut_is_added_by_the_kernel_that_runs_last(
    kind: str, rounded: bool, tmp_path: Path
) -> None:
    net = Net(kind, False, True, 3)
    x = net.quantised("x")
    one = net.quantised(net.product("Conv", x, (16, 3, 1, 1)))
    two = net.product("Conv", x, (16, 3, 3, 3), pads=[1, 1, 1, 1])
    two = net.quantised(two) if rounded else two
    y = net.quantised(net.op("Relu", net.op("Add", two, one)))
    model = net.model(y)
    artifact, layers = layers_of(model, tmp_path)
    steps = [[step.kind for step in layer.workload.epilogue] for layer in layers]
    assert steps[0] == ["dequantise", "bias", "quantise"]
    middle = ["round"] if rounded else []
    assert steps[1][:3] == ["dequantise", "bias", *middle, "add_dequantised"][:3]
    assert steps[1].count("add_dequantised") == 1
    assert steps[1][-1] == "quantise"
    apart = steps_apart(model, artifact, net.step)
    assert apart.max() < 3.01 if rounded else apart.max() < 1.01  # a tie of two roundings
    assert (apart > 0.5).mean() < 0.02


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("tiles", ["", PLAIN_TILES])
def test_a_network_stays_in_integers_from_layer_to_layer(tiles: str, tmp_path: Path) -> None:
    spec = replace(this_machine(), lanes=16, int8_tiles=tiles) if tiles else this_machine()
    net = Net("uint8", False, True, 4)
    x = net.quantised("x")
    y = net.quantised(net.op("Relu", net.product("Conv", x, (16, 3, 3, 3), pads=[1, 1, 1, 1])))
    pooled = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    product = net.product("Conv", net.quantised(pooled), (16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    wide = net.quantised(
        net.product("Conv", net.quantised(net.op("Relu", product)), (24, 16, 1, 1))
    )
    flat = net.op("Flatten", net.quantised(net.op("GlobalAveragePool", wide)))
    y = net.quantised(net.product("MatMul", flat, (24, 10)))
    model = net.model(y)
    artifact, layers = layers_of(model, tmp_path, spec)
    assert [layer.workload.data_dtype for layer in layers] == ["uint8"] * 4
    assert [layer.workload.out_dtype for layer in layers] == ["uint8"] * 4
    assert steps_apart(model, artifact, net.step).max() < 1.01


@pytest.mark.slow(seconds=5)
def test_a_clip_that_integers_make_by_themselves_is_left_out(tmp_path: Path) -> None:
    """A bound of 6 is the largest integer. A bound of 2.5 is lower, and no kernel clips at it."""
    for bound, wanted in ((6.0, "quantise"), (2.5, "bias")):
        net = Net("uint8", False, False, 1)
        y = net.product("Conv", net.quantised("x"), (16, 3, 1, 1))
        y = net.op("Clip", y, net.constant(np.float32(0)), net.constant(np.float32(bound)))
        zero = net.constant(np.uint8(0))
        scale = net.constant(np.float32(6 / 255))
        y = net.op("DequantizeLinear", net.op("QuantizeLinear", y, scale, zero), scale, zero)
        artifact, (layer,) = layers_of(net.model(y), tmp_path)
        assert [step.kind for step in layer.workload.epilogue][-1] == wanted
        assert "max" not in [step.kind for step in layer.workload.epilogue]
        assert steps_apart(net.model(y), artifact, 6 / 255).max() < 1.01


def test_weights_that_int8_does_not_hold_are_multiplied_in_float32(tmp_path: Path) -> None:
    net = Net("uint8", False, False, 2)
    integers = net.random.integers(0, 256, (8, 3, 1, 1)).astype(np.uint8)
    about = [net.constant(np.float32(0.01)), net.constant(np.uint8(3))]
    weight = net.op("DequantizeLinear", net.constant(integers), *about)
    y = net.quantised(net.op("Conv", net.quantised("x"), weight))
    _, (layer,) = layers_of(net.model(y), tmp_path)
    assert layer.workload.dtype == "float32"
