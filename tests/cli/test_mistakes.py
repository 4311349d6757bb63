"""A mistake in the input: one message that names the cause and the next step, and no trace."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Place


def _text_file(folder: Path) -> list[str]:
    (folder / "notes.onnx").write_text("this is no model")
    return ["notes.onnx"]


def _missing_file(folder: Path) -> list[str]:
    return ["nowhere.onnx"]


def _unknown_network(folder: Path) -> list[str]:
    return ["resnet19"]


def _dynamic_shape(folder: Path) -> list[str]:
    return _model(folder, "Relu", ["N", 3, 8, 8])


def _unsupported_operator(folder: Path) -> list[str]:
    return _model(folder, "Frobnicate", [1, 3, 8, 8])


def _model(folder: Path, operator: str, shape: list[int | str]) -> list[str]:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    node = helper.make_node(operator, ["x"], ["y"], name="the_node")
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "mine.onnx")
    return ["mine.onnx"]


def _unknown_target(folder: Path) -> list[str]:
    return ["digits_cnn", "--target", "tpu"]


def _broken_spec(folder: Path) -> list[str]:
    (folder / "board.json").write_text("{")
    return ["digits_cnn", "--target", "board.json"]


def _spec_that_cannot_be_encoded(folder: Path) -> list[str]:
    (folder / "board.json").write_text(json.dumps({"LOG_BLOCK": 3}))
    return ["digits_cnn", "--target", "board.json"]


def _unknown_tuner(folder: Path) -> list[str]:
    return ["digits_cnn", "--tuner", "oracle"]


def _unknown_option(folder: Path) -> list[str]:
    return ["digits_cnn", "--tuner", "ml2tuner", "--option", "beta=1"]


def _unknown_space(folder: Path) -> list[str]:
    return ["digits_cnn", "--space", "outer"]


def _zero_trials(folder: Path) -> list[str]:
    return ["digits_cnn", "--trials", "0"]


def _read_only_folder(folder: Path) -> list[str]:
    (folder / "locked").mkdir()
    (folder / "locked").chmod(0o555)
    return ["digits_cnn", "--out", "locked/out"]


def _file_in_the_way(folder: Path) -> list[str]:
    (folder / "out").write_text("")
    return ["digits_cnn", "--out", "out"]


MISTAKES: list[tuple[Callable[[Path], list[str]], str]] = [
    (_text_file, "notes.onnx"),
    (_missing_file, "nowhere.onnx"),
    (_unknown_network, "resnet18"),
    (_dynamic_shape, "N"),
    (_unsupported_operator, "Frobnicate"),
    (_unknown_target, "vta-pynq"),
    (_broken_spec, "board.json"),
    (_spec_that_cannot_be_encoded, "36"),
    (_unknown_tuner, "ml2tuner"),
    (_unknown_option, "alpha"),
    (_unknown_space, "extended"),
    (_zero_trials, "--trials"),
    (_read_only_folder, "read-only"),
    (_file_in_the_way, "not a folder"),
]


LATE = (_text_file, _dynamic_shape, _unsupported_operator, _unknown_tuner, _unknown_option)
"""Found out when the server has been started."""


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        pytest.param(
            mistake, hint, id=mistake.__name__.strip("_"),
            marks=[pytest.mark.slow(seconds=8)] if mistake in LATE else [],
        )
        for mistake, hint in MISTAKES
    ],
)  # fmt: skip
def test_a_mistake_is_one_message_and_exit_code_2(
    mistake: Callable[[Path], list[str]], hint: str, place: Place
) -> None:
    arguments = mistake(place.folder)
    before = {path for path in place.folder.rglob("*") if "home" not in path.parts}
    done = place.run("tune", *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    *_, message = done.stderr.strip().splitlines()
    assert message.startswith("error: ")
    assert hint in message
    assert len(message) > 30
    after = {path for path in place.folder.rglob("*") if "home" not in path.parts}
    outputs = {path.name for path in after - before if path.is_file()}
    assert outputs <= {"ledger.jsonl.lease", ".tune.lease"}, outputs


def test_an_unknown_command_is_exit_code_2(place: Place) -> None:
    done = place.run("tunee")
    assert done.returncode == 2
    assert "tunee" in done.stderr


def test_light_commands_load_neither_prefect_nor_mlflow_nor_tvm() -> None:
    script = (
        "import sys; import cli.app as cli\n"
        "sys.argv = ['tilewright', '--help']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'prefect', 'mlflow', 'tvm', 'numba', 'numpy', 'pandas', 'xgboost', 'onnx'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
