"""Tests libraries for several input sizes: each size matches onnxruntime or is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.networks.artifact import ArtifactError, SizedLibrary, load
from tilewright.networks.errors import DynamicShapeError, InputError
from tilewright.networks.onnx.static_shapes import shapes_at

CHANNELS = 16


def convolution() -> onnx.ModelProto:
    """Return a convolution network with a dynamic batch."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((CHANNELS, 3, 3, 3), np.float32),
        "d": rng.standard_normal((CHANNELS, 10), np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], name="pool"),
        helper.make_node("Flatten", ["c"], ["e"], name="flatten"),
        helper.make_node("MatMul", ["e", "d"], ["y"], name="fc"),
    ]
    return _model(nodes, weights, ["batch", 3, 8, 8], ["batch", 10])


def attention() -> onnx.ModelProto:
    """Return an attention over dynamic tokens, which would also attend to padding."""
    weights = {"q": np.random.default_rng(0).standard_normal((32, 32), np.float32) / 8}
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["a"], name="query"),
        helper.make_node("Transpose", ["x"], ["t"], name="keys", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"], name="softmax", axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y"], name="context"),
    ]
    return _model(nodes, weights, ["batch", "tokens", 32], ["batch", "tokens", 32])


def _model(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray],
    read: list[int | str], given: list[int | str],
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "sized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, read)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, given)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and its library `art` for batches of 1 and 4.

    Tests only read it.
    """
    folder = tmp_path_factory.mktemp("batched")
    path = _saved(convolution(), folder)
    tilewright.build(path, folder / "art", target="cpu", trials=0, sizes={"batch": (4, 1)})
    return folder


@pytest.mark.slow(seconds=10)
def test_inputs_between_two_sizes_are_padded_and_their_outputs_cut(batched: Path) -> None:
    path = batched / "model.onnx"
    session = tilewright.load(batched / "art", allow_code=True)
    assert session.get_inputs()[0].shape == ("batch", 3, 8, 8)
    assert session.get_outputs()[0].shape == ("batch", 10)
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for images in (1, 2, 3, 4):
        feeds = {"x": np.random.default_rng(images).standard_normal((images, 3, 8, 8), np.float32)}
        (ours,), (expected,) = session.run(["y"], feeds), theirs.run(None, feeds)
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    message = r"'batch' is [50], but the library was built for 1, 4"
    for wrong in ((5, 3, 8, 8), (0, 3, 8, 8)):
        with pytest.raises(InputError, match=message):
            session.run(None, {"x": np.zeros(wrong, np.float32)})
    with pytest.raises(InputError, match="has shape 3×3×9×8 instead of batch×3×8×8"):
        session.run(None, {"x": np.zeros((3, 3, 9, 8), np.float32)})
    with pytest.raises(InputError, match="has shape 3×8×8 instead of batch×3×8×8"):
        session.run(None, {"x": np.zeros((3, 8, 8), np.float32)})
    with pytest.raises(InputError, match="'x' is missing"):
        session.run(None, {})


@pytest.mark.slow(seconds=15)
def test_where_padding_changes_the_outputs_only_the_sizes_themselves_run(tmp_path: Path) -> None:
    path = _saved(attention(), tmp_path)
    sizes = {"tokens": (8, 16), "batch": (1, 2)}
    tilewright.build(path, tmp_path / "art", target="cpu", trials=0, sizes=sizes)
    session = tilewright.load(tmp_path / "art", allow_code=True)
    assert isinstance(session.artifact, SizedLibrary)
    assert session.artifact.padded == {"batch"}
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in ((1, 8, 32), (2, 16, 32)):
        feeds = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
        (ours,), (expected,) = session.run(None, feeds), theirs.run(None, feeds)
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    message = r"'tokens' is 12, .* padding may change the outputs: operator 'softmax'"
    with pytest.raises(InputError, match=message):
        session.run(None, {"x": np.zeros((1, 12, 32), np.float32)})


@pytest.mark.slow(seconds=10)
def test_a_maximum_over_a_dynamic_dimension_sees_no_padding(tmp_path: Path) -> None:
    weights = {"w": np.abs(np.random.default_rng(0).standard_normal((16, 8), np.float32))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"], name="dense"),
        helper.make_node("ReduceMax", ["q"], ["y"], name="most", axes=[1], keepdims=0),
    ]
    path = _saved(_model(nodes, weights, [1, "tokens", 16], [1, 8]), tmp_path)
    tilewright.build(path, tmp_path / "art", target="cpu", trials=0, sizes={"tokens": (4, 8)})
    session = tilewright.load(tmp_path / "art", allow_code=True)
    with pytest.raises(InputError, match=r"built for 4, 8; .*'most' \(ReduceMax\)"):
        session.run(None, {"x": np.full((1, 6, 16), -1, np.float32)})


@pytest.mark.slow(seconds=1)
def test_a_damaged_size_is_found_when_it_is_needed(batched: Path, tmp_path: Path) -> None:
    shutil.copytree(batched / "art", tmp_path / "art")
    manifest = json.loads((tmp_path / "art/manifest.json").read_text())
    first = manifest["sizes"][0]
    for change in ({"sizes": []}, {"sizes": [first | {"at": {}}]}):
        with pytest.raises(ValueError, match="sizes do not match the inputs"):
            SizedLibrary({**manifest, **change}, tmp_path / "art", None)
    inner = first["library"] | {"specification": {"kind": "cpu", "keys": {"threads": -1}}}
    damaged = {**manifest, "sizes": [{**first, "library": inner}, *manifest["sizes"][1:]]}
    opened = SizedLibrary(damaged, tmp_path / "art", None).libraries[0][1]
    assert opened.manifest["specification"] == manifest["specification"]
    library = tmp_path / "art/size2/network.so"
    library.write_bytes(library.read_bytes()[:-4] + b"more")
    with pytest.raises(ArtifactError, match="holds machine code"):
        load(tmp_path / "art")
    session = tilewright.load(tmp_path / "art", allow_code=True)
    session.run(None, {"x": np.zeros((1, 3, 8, 8), np.float32)})
    with pytest.raises(ArtifactError, match=r"size2/network\.so has other bytes"):
        session.run(None, {"x": np.zeros((2, 3, 8, 8), np.float32)})


def test_sizes_that_cannot_be_are_refused() -> None:
    inputs = {"ids": ("batch", "tokens"), "mask": ("batch", "tokens"), "image": (1, 3)}
    shapes = shapes_at(inputs, {"batch": (2, 1), "tokens": (64, 128)})
    assert [dict(item.sizes) for item in shapes] == [
        {"batch": b, "tokens": t} for b in (1, 2) for t in (64, 128)
    ]
    assert shapes[1].shapes == {"ids": (1, 128), "mask": (1, 128)}
    with pytest.raises(DynamicShapeError, match=r"no dynamic dimension 'rows'.*'batch', 'tokens'"):
        shapes_at(inputs, {"rows": (1,)})
    with pytest.raises(DynamicShapeError, match="'tokens' of the input 'ids' is dynamic, too"):
        shapes_at(inputs, {"batch": (1,)})
    with pytest.raises(DynamicShapeError, match="integers from 1"):
        shapes_at(inputs, {"batch": (0,), "tokens": (1,)})
    with pytest.raises(DynamicShapeError, match="17 combinations"):
        shapes_at(inputs, {"batch": tuple(range(1, 18)), "tokens": (1,)})


def test_an_accelerator_has_one_shape(tmp_path: Path) -> None:
    path = _saved(convolution(), tmp_path)
    with pytest.raises(ArtifactError, match="use --input-shape instead"):
        tilewright.build(path, tmp_path / "art", trials=0, sizes={"batch": (1, 2)})
