"""Checks that a bad model file is refused with one message that gives cause and next step."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx_graphs import model, normal

from tilewright import networks
from tilewright.core.errors import TilewrightError
from tilewright.networks import zoo
from tilewright.networks.errors import DynamicShapeError, ModelFileError
from tilewright.networks.onnx.files import read_model_file, stub, tensor_bytes
from tilewright.networks.quantisation import model_with_weights


def _relu(shape: tuple[int | str, ...] = (1, 4)) -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], {}, shape, "y")


def _product(path: Path) -> onnx.ModelProto:
    """Write a product whose weights are in a separate file."""
    source = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": normal(256, 128)}, (1, 256), "y"
    )
    onnx.save(source, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return onnx.load(path, load_external_data=False)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.onnx' is not a file"):
        networks.load(tmp_path / "absent.onnx")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is not a file"):
        networks.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho hello\n", b"\x89PNG\r\n" + bytes(99)])
def test_other_files_are_no_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not an ONNX model"):
        networks.load(path)


def _small_convolution() -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    data: bytes = model(nodes, {"w": normal(2, 1, 3, 3)}, (1, 1, 4, 4), "y").SerializeToString()
    return data


SMALL_CONVOLUTION = _small_convolution()


@settings(
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kept=st.integers(0, len(SMALL_CONVOLUTION)) | st.just(len(SMALL_CONVOLUTION)),
    flips=st.lists(
        st.tuples(st.integers(0, len(SMALL_CONVOLUTION) - 1), st.integers(0, 255)), max_size=3
    ),
)
def test_a_damaged_file_never_escapes_the_typed_errors(
    tmp_path: Path, kept: int, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(SMALL_CONVOLUTION)
    for where, value in flips:
        data[where] = value
    path = tmp_path / "damaged.onnx"
    path.write_bytes(data[:kept])
    with contextlib.suppress(TilewrightError):
        assert networks.load(path).report(16, 16).operators


def test_a_dynamic_input_says_which_and_how_to_fix_it(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    onnx.save(_relu(("batch", 3, "h", 8)), path)
    with pytest.raises(
        DynamicShapeError, match=r"'x' .*\(batch, 3, h, 8\).*--input-shape x=1x3x224x8"
    ):
        networks.load(path).report(16, 16)
    assert networks.load(path, {"x": (1, 3, 8, 8)}).report(16, 16).inputs == {"x": (1, 3, 8, 8)}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 4)}, "no input 'z'; its inputs are 'x'"),
        ({"x": (1, 5)}, "1x5 does not fit"),
        ({"x": (1, 4, 1)}, "does not fit"),
        ({"x": (0, 4)}, "does not fit"),
    ],
)
def test_a_wrong_input_shape_is_refused(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_relu((1, 4)), path)
    with pytest.raises(DynamicShapeError, match=message):
        networks.load(path, shapes).report(16, 16)


def test_absurd_sizes_are_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    onnx.save(_relu((1, 2**40)), path)
    with pytest.raises(ModelFileError, match="more than"):
        networks.load(path).report(16, 16)
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    onnx.save(model(nodes, {"shape": np.array([2**20, 2**20])}, (1, 1), "y"), path)
    with pytest.raises(ModelFileError, match="more than"):
        networks.load(path).report(16, 16)


def test_a_tensor_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lying.onnx"
    source = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": normal(4, 4)}, (1, 4), "y"
    )
    source.graph.initializer[0].dims[1] = 4000
    onnx.save(source, path)
    with pytest.raises(ModelFileError, match=r"'w' .* contains 64 bytes, .* needs 64000"):
        networks.load(path)


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    _product(tmp_path / "model.onnx")
    network = networks.load(tmp_path / "model.onnx")
    assert [str(w) for w, _, _ in network.workloads(16, 16)] == ["dense:n=1,c=256,o=128"]
    x = normal(1, 256, seed=3)
    np.testing.assert_allclose(network.run({"x": x})["y"], x @ normal(256, 128), atol=1e-4)


def test_weights_beyond_what_a_graph_holds_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """The weights file is sparse. Reading it would show up only as used memory."""
    rows = 12_000
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size))
        for name, size in (("x", rows), ("y", 50_000))
    ]
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    source = helper.make_model(
        helper.make_graph([product], "large", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    weight = stub("w", (rows, 50_000), TensorProto.FLOAT)
    for key, value in (("location", "weights.bin"), ("length", str(tensor_bytes(weight)))):
        weight.external_data.add(key=key, value=value)
    source.graph.initializer.append(weight)
    onnx.save(source, tmp_path / "model.onnx")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(tensor_bytes(weight))
    network = networks.load(tmp_path / "model.onnx")
    assert network.examined.found.macs == {"product": rows * 50_000}
    with pytest.raises(ModelFileError, match=r"has 2\.4 GB of weights.*export the model in parts"):
        _ = network.whole


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", ""])
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    source = _product(folder / "model.onnx")
    (tmp_path / "secret.bin").write_bytes(bytes(256 * 128 * 4))
    next(
        e for e in source.graph.initializer[0].external_data if e.key == "location"
    ).value = location
    onnx.save(source, folder / "model.onnx")
    with pytest.raises(ModelFileError, match="outside the model's folder"):
        networks.load(folder / "model.onnx")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    _product(folder / "model.onnx")
    (tmp_path / "secret.bin").write_bytes((folder / "weights.bin").read_bytes())
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelFileError, match="outside the model's folder"):
        networks.load(folder / "model.onnx")


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(bytes(10))])
def test_external_data_that_is_missing_or_short_is_named(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    _product(tmp_path / "model.onnx")
    damage(tmp_path / "weights.bin")
    with pytest.raises(ModelFileError, match=r"weights\.bin"):
        networks.load(tmp_path / "model.onnx")


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    """The ONNX standard requires topological order, but onnxruntime does not."""
    source = model(
        [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])],
        {}, (1, 4), "y",
    )  # fmt: skip
    onnx.save(source, tmp_path / "model.onnx")
    x = np.array([[1, -2, 3, -4]], np.float32)
    made = networks.load(tmp_path / "model.onnx").run({"x": x})
    np.testing.assert_array_equal(made["y"], [[0, 2, 0, 4]])


def test_nodes_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    source = model(
        [helper.make_node("Add", ["a", "x"], ["y"]), helper.make_node("Neg", ["y"], ["a"])],
        {}, (1, 4), "y",
    )  # fmt: skip
    onnx.save(source, tmp_path / "model.onnx")
    with pytest.raises(ModelFileError, match="not valid ONNX"):
        networks.load(tmp_path / "model.onnx").report(16, 16)


def test_shapes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    source = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": normal(4, 4)}, (1, 4), "y"
    )
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    onnx.save(source, tmp_path / "model.onnx")
    with pytest.raises(TilewrightError, match=r"contradicts itself.*MatMul.*Incompatible dim"):
        networks.load(tmp_path / "model.onnx").report(16, 16)


def test_a_written_model_is_whole_and_reads_back(tmp_path: Path) -> None:
    path = zoo.write("mobilenet_v2", tmp_path / "new" / "m.onnx", seed=3)
    assert [entry.name for entry in path.parent.iterdir()] == ["m.onnx"]
    assert read_model_file(path) == zoo.build("mobilenet_v2", seed=3)
    assert read_model_file(path) != zoo.build("mobilenet_v2", seed=4)


# --- torch.export archives, which may run code when they are read ---------------------------------

CODE = b"\x80\x04cposix\nsystem\n(S'touch ran'\ntR."
"""A pickle that runs a command."""


@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".pth"])
@pytest.mark.parametrize("sandbox", [True, False])
def test_an_exported_program_is_not_opened_without_permission(
    tmp_path: Path, suffix: str, sandbox: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"m{suffix}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/models/model.json", "{}")
        archive.writestr("m/data/weights/weight_0", CODE)
        archive.writestr("m/data/sample_inputs/model.pt", CODE)
    for read_it in (networks.load, model_with_weights):
        with pytest.raises(ModelFileError, match=r"--allow-code \(allow_code=True\)"):
            read_it(path, **({"sandbox": sandbox} if read_it is networks.load else {}))
    assert not (tmp_path / "ran").exists()


def test_with_permission_pytorch_alone_reads_it(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"PK")
    with pytest.raises(ModelFileError, match=r"PyTorch|torch \d"):
        networks.load(tmp_path / "m.pt2", allow_code=True)
