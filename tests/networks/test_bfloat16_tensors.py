"""Tests which tensors are stored in bfloat16, and the accuracy of such networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx_graphs import normal, reference
from test_compiled_libraries import by_rule
from tvm import relax

from tilewright import networks
from tilewright.networks.artifact import CompiledArtifact
from tilewright.networks.artifact.library import compile_files
from tilewright.networks.compiled.layers import activated_layers
from tilewright.networks.compiled.packed_tensors import PackedTensors
from tilewright.networks.tolerances import OF_BFLOAT16
from tilewright.networks.zoo.builder import Builder
from tilewright.targets.cpu import machine
from tilewright.targets.cpu.compile import lowering
from tilewright.targets.cpu.spec import DOTS_BFLOAT16, PLAIN_TILES, CpuSpec, this_machine
from tilewright.targets.cpu.target import CpuTarget

SPEC = replace(this_machine(), lanes=16, precision="bf16", bfloat16=PLAIN_TILES)
"""A CPU whose bfloat16 tiles are multiplied by plain arithmetic instead of tile instructions."""
SPECS = pytest.mark.parametrize("spec", [
    pytest.param(SPEC, id="plain"),
    pytest.param(replace(SPEC, bfloat16=DOTS_BFLOAT16), id="dots", marks=pytest.mark.skipif(
        not machine.multiplies_bfloat16(), reason="this processor has no AVX512-BF16",
    )),
])  # fmt: skip


def built(model: onnx.ModelProto, folder: Path, spec: CpuSpec = SPEC) -> CompiledArtifact:
    """Build an artifact with the rule schedules of the kernels."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    target, whole = CpuTarget(spec), networks.load(str(path)).whole
    layers = activated_layers(whole.flat, target.space, "bfloat16")
    picks = {layer.workload: by_rule(target, layer.workload) for layer in layers}
    made = compile_files(
        whole, layers, picks, target, "cpu", name="small", total_macs=1, tolerance=OF_BFLOAT16
    )
    return CompiledArtifact(made.manifest, made.files)


def stored(artifact: CompiledArtifact) -> dict[str, Any]:
    """Return the numbers of the bfloat16 operands of each layer, by the layer's name."""
    return {str(row["name"]): row.get("bfloat16", []) for row in artifact.rows}


def residual(net: Builder) -> str:
    """Return a ResNet block with a depthwise layer."""
    x = net.relu(net.conv(net.input, "stem", 32, kernel=3, stride=2, pad=1, bias=True), "stem.r")
    y = net.relu(net.conv(x, "wide", 64, kernel=1, bias=True), "wide.r")
    x = net.relu(net.add(net.conv(y, "narrow", 32, kernel=3, pad=1, bias=True), x, "sum"), "sum.r")
    y = net.relu(net.conv(x, "each", 32, kernel=3, pad=1, groups=32, bias=True), "each.r")
    x = net.conv(y, "last", 16, kernel=1, bias=True)
    return net.dense(net.flatten(net.global_average_pool(x, "pool"), "flatten"), "fc", 7)


def dense_block(net: Builder) -> str:
    """Return a DenseNet block without its BatchNorm."""
    x = net.conv(net.input, "first", 32, kernel=3, pad=1, bias=True)
    y = net.conv(x, "second", 32, kernel=1, bias=True)
    return net.conv(net.concat([x, y], "concat"), "last", 16, kernel=3, pad=1, bias=True)


@pytest.mark.slow(seconds=4)
@SPECS
def test_images_between_layers_that_multiply_in_bfloat16_are_stored_in_it(
    spec: CpuSpec, tmp_path: Path
) -> None:
    net = Builder("small", (1, 3, 20, 20), seed=1, weights=True)
    model = net.model(residual(net))
    artifact = built(model, tmp_path, spec)
    assert stored(artifact) == {
        "stem": [[3, 32]],  # data, weights, bias, the result; blocks of so many channels
        "wide": [[0, 32], [3, 32]],
        "narrow": [[0, 32], [3, 32], [4, 16]],  # also what is added
        "each": [[0, 16], [3, 32]],
        "last": [[0, 32], [3, 16]],
        "fc": [],
    }
    assert not any(check.is_wrong for check in artifact.verify(CpuTarget(spec)))
    image = normal(1, 3, 20, 20, seed=3)
    (ours,) = artifact.infer({"input": image}).values()
    theirs = reference(model, image)
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()


@pytest.mark.slow(seconds=2)
def test_a_concatenation_and_a_batch_norm_pass_it_on(tmp_path: Path) -> None:
    net = Builder("small", (1, 3, 12, 12), seed=1, weights=True)
    model = net.model(dense_block(net))
    last = model.graph.node[-1]
    drawn = {f"norm.{n}": np.abs(normal(64, seed=n)) + 0.1 for n in range(4)}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in drawn.items()
    )
    norm = helper.make_node("BatchNormalization", [last.input[0], *drawn], ["normed"], name="norm")
    last.input[0] = "normed"
    model.graph.node.insert(len(model.graph.node) - 1, norm)
    artifact = built(model, tmp_path)
    assert stored(artifact) == {
        "first": [[3, 32]], "second": [[0, 32], [3, 32]], "last": [[0, 32]],
    }  # fmt: skip
    image = normal(1, 3, 12, 12, seed=3)
    (ours,) = artifact.infer({"input": image}).values()
    theirs = reference(model, image)
    assert np.abs(ours - theirs).max() < 0.03 * np.abs(theirs).max()
    _, profile = artifact.run({"input": image}, layers=True)
    others = [name for name, _ in profile.others]
    assert not [name for name in others if name.startswith(("widen", "narrow"))]


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_pools_and_pixels_of_channels_pass_it_on(pool: str, tmp_path: Path) -> None:
    """The network goes down and up in resolution, as a U-Net does."""
    tensors = {
        "first": normal(32, 3, 3, 3), "up": normal(64, 32, 2, 2, seed=1),
        "second": normal(64, 32, 1, 1, seed=2), "last": normal(16, 64, 3, 3, seed=3),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], name="first", pads=[1] * 4),
        helper.make_node(pool, ["a"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Conv", ["p", "second"], ["b"], name="second"),
        helper.make_node("ConvTranspose", ["b", "up"], ["u"], name="up", strides=[2, 2]),
        helper.make_node("Concat", ["u", "a"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "last"], ["y"], name="last", pads=[1] * 4),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "up", [helper.make_tensor_value_info("x", 1, (1, 3, 12, 14))],
        [helper.make_tensor_value_info("y", 1, (1, 16, 12, 14))],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifact = built(model, tmp_path)
    assert stored(artifact) == {
        "first": [[2, 32]], "second": [[0, 32], [2, 32]], "up": [[0, 32], [2, 32]],
        "last": [[0, 32]],
    }  # fmt: skip
    assert not any(check.is_wrong for check in artifact.verify(CpuTarget(SPEC)))
    image = normal(1, 3, 12, 14, seed=3)
    result, profile = artifact.run({"x": image}, layers=True)
    theirs = reference(model, image)
    assert np.abs(result["y"] - theirs).max() < 0.03 * np.abs(theirs).max()
    others = [name for name, _ in profile.others]
    assert sum("transpose" in name for name in others) == 2  # what is given, and the result
    assert not [name for name in others if name.startswith(("widen", "narrow"))]


def test_a_network_without_bfloat16_has_no_such_tensors(tmp_path: Path) -> None:
    net = Builder("small", (1, 3, 12, 12), seed=1, weights=True)
    path = tmp_path / "model.onnx"
    path.write_bytes(net.model(dense_block(net)).SerializeToString())
    target, whole = CpuTarget(this_machine()), networks.load(str(path)).whole
    layers = activated_layers(whole.flat, target.space, "float32")
    picks = {layer.workload: by_rule(target, layer.workload) for layer in layers}
    made = compile_files(whole, layers, picks, target, "cpu", name="small", total_macs=1)
    artifact = CompiledArtifact(made.manifest, made.files)
    assert not any(stored(artifact).values())


@given(arrays.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1), unique=True))
def test_operators_between_layers_round_as_bfloat16_does(bits: NDArray[np.uint32]) -> None:
    numbers = bits.view(np.float32)
    rounded = np.zeros(64, np.uint16)
    _narrowing()(tvm.runtime.tensor(numbers), out := tvm.runtime.tensor(rounded))
    ours = out.numpy().view(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        theirs = numbers.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)


_compiled: list[Any] = []


def _narrowing() -> Any:
    if not _compiled:
        builder = relax.BlockBuilder()
        read = relax.Var("x", relax.TensorType((64,), "float32"))
        with builder.function("main", [read]):
            builder.emit_func_output(PackedTensors(builder).narrow(read))
        function = builder.finalize()["narrow"].with_attr("global_symbol", "narrow")
        target = CpuTarget(this_machine()).code_target()
        module = tvm.IRModule({"narrow": function})
        _compiled.append(tvm.compile(module, target=target, tir_pipeline=lowering())["narrow"])
    return _compiled[0]
