"""Compares imported modules that TVM runs with onnxruntime on the same ONNX files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import normal, reference

from tilewright import networks
from tilewright.networks import zoo
from tilewright.networks.errors import InputError
from tilewright.networks.network import Network
from tilewright.networks.zoo import bert, digits, mobilenet, resnet
from tilewright.networks.zoo.builder import Builder


@pytest.fixture(scope="module")
def network() -> Network:
    """Return a network that is compiled on its first run and shared by all tests."""
    return networks.load("digits_cnn")


@pytest.mark.slow(seconds=1.5)
def test_the_digits_network_agrees_on_every_held_out_image(network: Network) -> None:
    model = zoo.build("digits_cnn")
    images, labels = digits.held_out()
    ours = np.concatenate([network.run({"input": i[None]})["fc.out"] for i in images])
    theirs = np.concatenate([reference(model, i[None]) for i in images])
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert np.mean(ours.argmax(axis=1) == labels) >= 0.95


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    "inputs", [{}, {"image": normal(1, 1, 8, 8)}, {"input": normal(1, 1, 8, 9)}]
)
def test_arrays_that_do_not_fit_are_refused(
    network: Network, inputs: dict[str, NDArray[np.float32]]
) -> None:
    with pytest.raises(InputError):
        network.run(inputs)


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize(
    "build",
    [
        resnet.resnet18,
        pytest.param(mobilenet.mobilenet_v2, marks=pytest.mark.nightly(seconds=12)),
        pytest.param(mobilenet.mobilenet_v3, marks=pytest.mark.nightly(seconds=20)),
    ],
)
def test_a_network_on_small_images_agrees(build: Callable[[Builder], str], tmp_path: Path) -> None:
    net = Builder("small", (1, 3, 32, 32), seed=0, weights=True)
    model = net.model(build(net))
    (tmp_path / "small.onnx").write_bytes(model.SerializeToString())
    built = networks.load(tmp_path / "small.onnx")
    x = normal(1, 3, 32, 32)
    (ours,) = built.run({"input": x}).values()
    theirs = reference(model, x)
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * float(np.abs(theirs).max()))


@pytest.mark.slow(seconds=2.5)
@pytest.mark.parametrize(
    "name", ["bert_tiny", pytest.param("vit_tiny", marks=pytest.mark.nightly(seconds=12))]
)
def test_a_transformer_agrees(name: str) -> None:
    model, built = zoo.build(name), networks.load(name)
    (about,) = model.graph.input
    shape = built.examined.inputs[about.name]
    if name == "bert_tiny":
        x: NDArray[Any] = np.random.default_rng(1).integers(0, bert.VOCABULARY, shape)
    else:
        x = normal(*shape)
    (ours,) = built.run({about.name: x}).values()
    theirs = reference(model, x)
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.slow(seconds=2)
def test_indices_from_outside_read_no_foreign_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [4])
    row = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [4, 3])
    node = helper.make_node("Gather", ["table", "ids"], ["rows"], axis=0)
    graph = helper.make_graph([node], "g", [ids], [row], [numpy_helper.from_array(table, "table")])
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "gather.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    network = networks.load(path)
    result = network.run({"ids": np.array([2, -1, 0, -4])})["rows"]
    np.testing.assert_array_equal(result, table[[2, 3, 0, 0]])
    for outside in (1 << 40, 4, -5):
        with pytest.raises(InputError, match="'Gather_0' got an index outside of its 4"):
            network.run({"ids": np.array([2, -1, outside, 0])})
    assert "segfault" not in "".join(capfd.readouterr())
