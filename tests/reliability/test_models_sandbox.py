"""Checks that an untrusted model is read in a separate process, which may crash, hang or starve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.cli.conftest import Place
from tilewright import networks
from tilewright.core.child_process import Limits
from tilewright.networks import zoo
from tilewright.networks.errors import DynamicShapeError, ModelFileError
from tilewright.networks.network import Network
from tilewright.networks.sandbox import SandboxedSource
from tilewright.services.prefect_server import Login


def _model(nodes: list[onnx.NodeProto], width: int = 4) -> onnx.ModelProto:
    tensor = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, width])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, width])
    graph = helper.make_graph(nodes, "test", [tensor], [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow(seconds=4)
def test_a_model_read_apart_is_the_model(tmp_path: Path) -> None:
    path = tmp_path / "digits.onnx"
    path.write_bytes(zoo.build("digits_cnn").SerializeToString())
    here, sandbox = networks.load(path), networks.load(path, sandbox=True)
    assert sandbox.examined == here.examined
    assert sandbox.report(16, 16) == here.report(16, 16)
    assert sandbox.workloads(16, 16) == here.workloads(16, 16)


def _cycle() -> bytes:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    return bytes(_model([*nodes, helper.make_node("Relu", ["b"], ["y"])]).SerializeToString())


def _outside() -> bytes:
    source = _model([helper.make_node("MatMul", ["x", "w"], ["y"])])
    weights = numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../../../../../../etc/passwd")
    source.graph.initializer.append(weights)
    return bytes(source.SerializeToString())


def _gigantic() -> bytes:
    source = _model([helper.make_node("MatMul", ["x", "w"], ["y"])])
    weights = source.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT)
    weights.dims.extend([2**40, 2**20])
    return bytes(source.SerializeToString())


def _absurd() -> bytes:
    return bytes(_model([helper.make_node("Relu", ["x"], ["y"])], 2**45).SerializeToString())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_cycle(), "sorted"),
        (_outside(), "outside the model's folder"),
        (_gigantic(), "claims the shape"),
        (_absurd(), "more than"),
        (b"GIF89a" + bytes(200), "not an ONNX model"),
    ],
    ids=["cycle", "outside", "gigantic", "absurd", "no model"],
)
@pytest.mark.slow(seconds=0.5)
def test_a_hostile_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "hostile.onnx"
    path.write_bytes(content)
    with pytest.raises((ModelFileError, DynamicShapeError), match=message):
        _ = networks.load(path, sandbox=True).examined


@pytest.mark.slow(seconds=2)
def test_a_file_that_takes_too_long_or_too_much_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(zoo.build("digits_cnn").SerializeToString())
    slow = Network(SandboxedSource(path, {}, Limits(seconds=0.05)))
    with pytest.raises(ModelFileError, match=r"took more than 0\.05 s"):
        _ = slow.examined
    starved = Network(SandboxedSource(path, {}, Limits(seconds=60.0, memory_bytes=300 << 20)))
    with pytest.raises(ModelFileError, match=r"crashed the reader process|cannot be read"):
        _ = starved.examined


@pytest.mark.nightly(seconds=28)
def test_modules_lying_in_the_folder_are_not_imported(
    tmp_path: Path, prefect_server: Login
) -> None:
    """An attacker may send a file `numpy.py` with a model."""
    place = Place(tmp_path, prefect_server)
    (tmp_path / "digits.onnx").write_bytes(zoo.build("digits_cnn").SerializeToString())
    for name in ("numpy", "networks", "tasks", "targets", "prefect", "mlflow", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\n")
    assert place.script("inspect", "digits.onnx").returncode == 0
    done = place.script("tune", "digits.onnx", "--tuner", "random", "--trials", "1", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "touched").exists()
