"""Checks that a mistake in the input ends in one message with cause and next step, and no trace."""

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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
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


def _mistyped_names(folder: Path) -> list[str]:
    return ["digits_cnn", "--target", "vta-pink"]


def _mistyped_key(folder: Path) -> list[str]:
    (folder / "board.json").write_text(json.dumps({"LOG_BLOK": 4}))
    return ["digits_cnn", "--target", "board.json"]


def _empty_spec(folder: Path) -> list[str]:
    (folder / "board.json").write_text("{}")
    return ["digits_cnn", "--target", "board.json"]


def _bad_option_value(folder: Path) -> list[str]:
    return ["digits_cnn", "--tuner", "ml2tuner", "--option", "alpha=much"]


def _mistyped_layer(folder: Path) -> list[str]:
    return ["digits_cnn", "--layers", "conv2,conv33"]


def _nothing_to_tune(folder: Path) -> list[str]:
    return []


def _network_and_workload(folder: Path) -> list[str]:
    return ["digits_cnn", "--workload", "dense:n=1,c=64,o=64"]


def _broken_workload(folder: Path) -> list[str]:
    return ["--workload", "dense:n=1,c=64"]


def _layers_of_a_workload(folder: Path) -> list[str]:
    return ["--workload", "dense:n=1,c=64,o=64", "--layers", "fc"]


def _empty_layer(folder: Path) -> list[str]:
    return ["digits_cnn", "--layers", "conv2,,fc"]


def _layer_named_twice(folder: Path) -> list[str]:
    return ["digits_cnn", "--layers", "fc,fc"]


def _folder_as_model(folder: Path) -> list[str]:
    (folder / "mine").mkdir()
    return ["mine"]


def _folder_without_a_name(folder: Path) -> list[str]:
    return ["digits_cnn", "--bare", "--out", ""]


def _system_metrics_without_mlflow(folder: Path) -> list[str]:
    return ["digits_cnn", "--bare", "--system-metrics"]


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
    (_mistyped_names, "did you mean vta-pynq?"),
    (_mistyped_key, "did you mean LOG_BLOCK?"),
    (_empty_spec, "says nothing about a machine"),
    (_bad_option_value, "valid number"),
    (_mistyped_layer, "did you mean conv3"),
    (_nothing_to_tune, "tilewright zoo"),
    (_network_and_workload, "either"),
    (_broken_workload, "lacks o"),
    (_layers_of_a_workload, "a workload has none"),
    (_empty_layer, "--layers 'conv2,,fc' has an empty name"),
    (_layer_named_twice, "names fc twice"),
    (_folder_as_model, "mine is a folder; give the path of a model file"),
    (_folder_without_a_name, "--out '' names no folder"),
    (_system_metrics_without_mlflow, "--bare runs without it"),
]


LATE = (_text_file, _dynamic_shape, _unsupported_operator, _mistyped_layer)
"""Found out when the model is read, in a flow."""


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        pytest.param(
            mistake, hint, id=mistake.__name__.strip("_"),
            marks=[pytest.mark.slow(seconds=8)] if mistake in LATE[:2]
            else [pytest.mark.nightly(seconds=8)] if mistake in LATE else [],
        )
        for mistake, hint in MISTAKES
    ],
)  # fmt: skip
def test_a_mistake_is_one_message_and_exit_code_2(
    mistake: Callable[[Path], list[str]],
    hint: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    server = request.getfixturevalue("prefect_server") if mistake in LATE else None
    place = Place(tmp_path, server)
    arguments = mistake(place.folder)
    before = {path for path in place.folder.rglob("*") if "home" not in path.parts}
    command = place.run if mistake in LATE else place.call
    done = command("tune", *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    *_, message = done.stderr.strip().splitlines()
    assert message.startswith("error: ")
    assert hint in message
    assert len(message) > 30
    assert (place.folder / "home").exists() == (mistake in LATE), "a server was started"
    after = {path for path in place.folder.rglob("*") if "home" not in path.parts}
    outputs = {path.name for path in after - before if path.is_file()}
    assert outputs <= {"trials.sqlite"}, outputs


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("inspect", "mine"), "mine is a folder"),
        (("build", "mine", "--out", "built"), "mine is a folder"),
        (("build", "digits_cnn", "--out="), "--out '' names no folder"),
        (("build", "digits_cnn", "--out", "b", "--keep-float", "a,,b"), "has an empty name"),
        (("compare", "--network", "mine"), "mine is a folder"),
        (("codesign", "--networks", "mine", "--budget", "1"), "mine is a folder"),
        (("codesign", "--networks", "digits_cnn,,", "--budget", "1"), "has an empty name"),
        (("compare", "digits_cnn", "mine"), "mine is a folder"),
        (("serve", "digits_cnn", "--root", ""), "--root '' names no folder"),
    ],
)
def test_no_command_takes_a_folder_for_a_model_or_an_empty_name(
    arguments: tuple[str, ...], hint: str, place: Place
) -> None:
    (place.folder / "mine").mkdir()
    done = place.call(*arguments)
    assert done.returncode == 2, done.stdout
    assert hint in done.stderr
    assert {each.name for each in place.folder.iterdir()} <= {"mine", "home"}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("serve", "digits_cnn", "--cron", "every day"), "'0 2 * * *'"),
        (("serve", "digits_cnn", "--prefect-port", "99999"), "--prefect-port 99999 is not a port"),
        (("ui", "--prefect-port", "99999"), "--prefect-port 99999 is not a port"),
        (("ui", "--mlflow-port", "0"), "--mlflow-port 0 is not a port"),
        (("ui", "--prefect-port", "5000"), "--mlflow-port 5001"),
    ],
)
def test_a_port_or_schedule_that_cannot_be_is_found_before_anything_starts(
    arguments: tuple[str, ...], hint: str, place: Place
) -> None:
    done = place.call(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (message,) = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert hint in message
    assert not (place.folder / "home").exists()


def test_an_unknown_command_is_exit_code_2(place: Place) -> None:
    done = place.call("tunee")
    assert done.returncode == 2
    assert "tunee" in done.stderr


HEAVY = ["prefect", "mlflow", "tvm", "numba", "pandas", "scipy", "sklearn", "xgboost", "onnx"]
HEAVY += ["jax", "torch"]


@pytest.mark.parametrize(
    ("arguments", "more"), [(["--help"], ["numpy"]), (["tune", "resnet19"], [])]
)
def test_help_and_mistakes_load_neither_servers_nor_learners_nor_tvm(
    arguments: list[str], more: list[str], tmp_path: Path
) -> None:
    script = (
        "import sys; import tilewright.cli.app as cli\n"
        "heavy, sys.argv[1:] = sys.argv[1].split(), sys.argv[2:]\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "sys.exit(', '.join(sorted(set(heavy) & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, " ".join(HEAVY + more), *arguments],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
