"""Checks networks with operators that TVM cannot import: onnxruntime runs them and what follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal

import tilewright
from tilewright import networks
from tilewright.flows.build import build_artifact
from tilewright.networks.accelerator import Accelerator
from tilewright.networks.artifact import CompiledArtifact, load
from tilewright.networks.errors import UnsupportedOperatorError
from tilewright.search import LocalRunner
from tilewright.targets import make_target
from tilewright.tuning.build_options import BuildOptions

SHAPE = (1, 3, 32, 32)


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, name: str, value: object) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, name: str, inputs: list[str], **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, name: str, out: int, into: int, kernel: int, stride: int) -> str:
        drawn = np.random.default_rng(len(self.tensors)).standard_normal(
            (out, into, kernel, kernel)
        )
        scaled = (drawn / np.sqrt(into * kernel**2)).astype(np.float32)
        weight = self.constant(f"{name}.weight", scaled)
        pad = kernel // 2
        return self.op("Conv", name, [x, weight], strides=[stride] * 2, pads=[pad] * 4)


def detector(path: Path) -> Path:
    """Boxes and scores, NonMaxSuppression, and the index of what it kept, whose number only a
    running model knows. The scores are an output, too, and the image is read behind the boxes."""
    net = _Graph()
    x = net.op("Relu", "relu1", [net.conv("image", "conv1", 16, 3, 3, 2)])
    x = net.op("Relu", "relu2", [net.conv(x, "conv2", 32, 16, 3, 2)])
    shape = net.constant("box_shape", np.array([1, 4, 64]))
    boxes = net.op("Reshape", "boxes4", [net.conv(x, "box", 4, 32, 1, 1), shape])
    boxes = net.op("Transpose", "boxes", [boxes], perm=[0, 2, 1])
    shape = net.constant("score_shape", np.array([1, 3, 64]))
    scores = net.op("Reshape", "scores3", [net.conv(x, "score", 3, 32, 1, 1), shape])
    scores = net.op("Sigmoid", "scores", [scores])
    limits = [
        net.constant("most", np.array([60])), net.constant("overlap", np.array([0.3], np.float32)),
        net.constant("least", np.array([0.1], np.float32)),
    ]  # fmt: skip
    kept = net.op("NonMaxSuppression", "nms", [boxes, scores, *limits])
    index = net.op("Gather", "index", [kept, net.constant("column", np.array(2))], axis=1)
    mean = net.op("GlobalAveragePool", "mean", ["image"])
    rows = net.op("Shape", "rows", [index])
    count = net.op("Cast", "count", [rows], to=TensorProto.FLOAT)
    net.op("Add", "both", [mean, count])
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        net.nodes, "detector", [of("image", TensorProto.FLOAT, SHAPE)],
        [of("index", TensorProto.INT64, ("kept",)), of("scores", TensorProto.FLOAT, (1, 3, 64)),
         of("both", TensorProto.FLOAT, (1, 3, 1, 1))],
        net.tensors,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.mark.slow(seconds=15)
def test_a_detector_gives_what_onnxruntime_gives(tmp_path: Path) -> None:
    path = detector(tmp_path / "detector.onnx")
    options = BuildOptions(str(path), tmp_path / "art", "cpu", trials=0)
    made = build_artifact(LocalRunner(), options)
    kinds = [each["operator"] for each in made.manifest["tail"]["operators"]]
    assert kinds == ["NonMaxSuppression", "Gather", "Shape", "Cast", "Add"]
    assert len(made.manifest["layers"]) == 4
    session = tilewright.load(tmp_path / "art", allow_code=True)
    assert [(v.name, v.shape) for v in session.get_outputs()] == [
        ("index", (-1,)), ("scores", (1, 3, 64)), ("both", (1, 3, 1, 1)),
    ]  # fmt: skip
    theirs = onnxruntime.InferenceSession(path)
    lengths = set()
    for seed in range(12):
        image = normal(*SHAPE, seed=seed)
        found, wanted = session.run(None, {"image": image}), theirs.run(None, {"image": image})
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
        np.testing.assert_allclose(found[2], wanted[2], rtol=1e-5)
        lengths.add(len(found[0]))
    assert len(lengths) > 1
    artifact = load(tmp_path / "art", allow_code=True)
    assert isinstance(artifact, CompiledArtifact)
    assert artifact.output_error() < 1e-5
    _, spent = artifact.run({"image": image}, layers=True)
    assert spent.others[-1][0] == "onnxruntime"
    assert spent.others[-1][1] > 0


@pytest.mark.slow(seconds=5)
def test_layers_before_an_operator_that_cannot_be_imported_are_tuned(tmp_path: Path) -> None:
    network = networks.load(detector(tmp_path / "detector.onnx"))
    found = network.workloads_on(Accelerator.of(make_target("cpu")))
    assert [names for _, _, names in found] == [("conv1",), ("conv2",), ("box",), ("score",)]
    with pytest.raises(UnsupportedOperatorError, match="'nms'"):
        network.workloads(16, 16)


def test_a_network_that_begins_with_such_an_operator_is_refused(tmp_path: Path) -> None:
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"], name="where")], "first",
        [of("x", TensorProto.FLOAT, (4, 4))], [of("y", TensorProto.INT64, (2, "n"))],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "first.onnx",
    )
    with pytest.raises(UnsupportedOperatorError, match="'where'"):
        networks.load(tmp_path / "first.onnx").split()
