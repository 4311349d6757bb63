"""Tests calibration samples: all accepted forms, and the messages for other files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_graphs import normal
from quantise_nets import residual_net

from tilewright.core import files
from tilewright.networks.errors import InputError
from tilewright.networks.quantisation import (
    Input,
    calibration_inputs,
    quantise,
    read_samples,
    seeded_samples,
)

SHAPE = (1, 8, 12, 12)
INPUTS = (Input("input", SHAPE, np.dtype(np.float32)),)
TOKENS = (Input("ids", (2, 4), np.dtype(np.int64), categories=30),)


def _save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("shape", "count"), [(SHAPE, 1), ((5, *SHAPE), 5), ((5, *SHAPE[1:]), 5), ((1, *SHAPE), 1)]
)
def test_samples_may_be_stacked(shape: tuple[int, ...], count: int, tmp_path: Path) -> None:
    values = normal(*shape)
    samples = read_samples(_save(tmp_path / "x.npz", input=values), INPUTS)
    assert [feed["input"].shape for feed in samples.feeds] == [SHAPE] * count
    np.testing.assert_array_equal(
        np.stack([feed["input"] for feed in samples.feeds]), values.reshape(count, *SHAPE)
    )
    assert "may be larger on new inputs" in samples.warning


def test_a_batch_is_one_sample_and_types_are_converted(tmp_path: Path) -> None:
    ids = np.arange(24, dtype=np.int32).reshape(6, 4)
    samples = read_samples(_save(tmp_path / "x.npz", ids=ids), TOKENS)
    assert [feed["ids"].tolist() for feed in samples.feeds] == ids.reshape(3, 2, 4).tolist()
    assert samples.feeds[0]["ids"].dtype == np.int64


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, value in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        _save(tmp_path / f"{name}.npz", input=np.full(SHAPE, value))
    (tmp_path / "notes.txt").write_text("not a sample")
    samples = read_samples(tmp_path, INPUTS)
    assert [feed["input"].max() for feed in samples.feeds] == [1, 2, 3]


def test_the_inputs_of_a_model_say_what_a_sample_is(tmp_path: Path) -> None:
    model = residual_net()
    assert calibration_inputs(model) == INPUTS
    samples = read_samples(_save(tmp_path / "x.npz", input=normal(8, *SHAPE)), INPUTS)
    assert len(samples.held_out) == 2
    assert quantise(model, samples).report.warnings == ()


def test_seeded_samples_pick_rows_that_exist_and_are_the_same_each_time() -> None:
    first, again = (seeded_samples((*INPUTS, *TOKENS)) for _ in range(2))
    assert "give samples of real data" in first.warning
    drawn = np.stack([feed["ids"] for feed in first.feeds])
    assert drawn.min() >= 0
    assert 2 <= drawn.max() < 30
    np.testing.assert_array_equal(drawn, np.stack([feed["ids"] for feed in again.feeds]))


def _refused(path: Path, inputs: tuple[Input, ...] = INPUTS) -> str:
    with pytest.raises(InputError) as caught:
        read_samples(path, inputs)
    message = str(caught.value)
    assert ";" in message  # separates the cause from the next step
    return message


def test_what_is_no_file_of_samples_is_refused(tmp_path: Path) -> None:
    assert "do not exist" in _refused(tmp_path / "missing.npz")
    (tmp_path / "empty").mkdir()
    assert "contains no .npz file" in _refused(tmp_path / "empty")
    (tmp_path / "text.npz").write_text("no archive")
    assert "not an NPZ file" in _refused(tmp_path / "text.npz")
    whole = _save(tmp_path / "cut.npz", input=normal(*SHAPE)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not an NPZ file" in _refused(tmp_path / "cut.npz")
    objects = _save(tmp_path / "objects.npz", input=np.array([{"a": 1}], object))
    assert "Python objects" in _refused(objects)


def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1 << 20)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros((256, *SHAPE), np.float32))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("input.npy", buffer.getvalue())
    assert (tmp_path / "bomb.npz").stat().st_size < 1 << 14
    assert "when unpacked" in _refused(tmp_path / "bomb.npz")


def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    def message(inputs: tuple[Input, ...] = INPUTS, **arrays: Any) -> str:
        return _refused(_save(tmp_path / "x.npz", **arrays), inputs)

    assert "'image'" in message(image=normal(*SHAPE))
    assert "(1, 8, 12, 13)" in message(input=normal(1, 8, 12, 13))
    assert "int64" in message(input=np.zeros(SHAPE, np.int64))
    assert "float32" in message(TOKENS, ids=np.zeros((2, 4), np.float32))
    assert "not finite" in message(input=np.full(SHAPE, np.nan))
    assert "not finite" in message(input=np.full(SHAPE, 1e300))
    assert "too large for int64" in message(TOKENS, ids=np.full((2, 4), 2**63, np.uint64))
    assert "numbers of samples: 2 of input, 3 of ids" in message(
        (*INPUTS, *TOKENS), input=normal(2, *SHAPE), ids=np.zeros((6, 4), np.int64)
    )
    assert "at least one" in message(input=np.zeros((0, *SHAPE), np.float32))


def test_values_a_model_cannot_run_on_are_refused() -> None:
    from tilewright.networks.quantisation import Samples

    nodes = [
        onnx.helper.make_node("Gather", ["table", "ids"], ["rows"], name="table"),
        onnx.helper.make_node("MatMul", ["rows", "w"], ["y"], name="product"),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "tokens",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, (2, 4))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 4, 16))],
        [
            onnx.numpy_helper.from_array(normal(30, 16), "table"),
            onnx.numpy_helper.from_array(normal(16, 16), "w"),
        ],
    )
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    assert calibration_inputs(model) == TOKENS
    assert quantise(model).report.layers[0].operators == ("product",)
    with pytest.raises(InputError, match="cannot run on a calibration sample"):
        quantise(model, Samples(({"ids": np.full((2, 4), 99)},)))
