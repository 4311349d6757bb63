"""Checks that a wrong input gives one message with cause and next step, not a traceback."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.conftest import Place


def _model(operator: str, shape: list[int | str]) -> Callable[[Path], None]:
    """Return a function that writes `mine.onnx`, a model with a single operator."""

    def write(folder: Path) -> None:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        node = helper.make_node(operator, ["x"], ["y"], name="the_node")
        graph = helper.make_graph([node], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        onnx.save(model, folder / "mine.onnx")

    return write


def _file(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(text)

    return write


def _read_only_folder(folder: Path) -> None:
    (folder / "locked").mkdir()
    (folder / "locked").chmod(0o555)


DIGITS, BOARD = "digits_cnn", "digits_cnn --target board.json"
MISTAKES: dict[str, tuple[str, str]] = {
    "text_file": ("notes.onnx", "notes.onnx"),
    "missing_file": ("nowhere.onnx", "nowhere.onnx"),
    "unknown_network": ("resnet19", "resnet18"),
    "dynamic_shape": ("mine.onnx", "N"),
    "unsupported_operator": ("mine.onnx", "Frobnicate"),
    "unknown_target": (f"{DIGITS} --target tpu", "vta-pynq"),
    "broken_spec": (BOARD, "board.json"),
    "spec_that_cannot_be_encoded": (BOARD, "36"),
    "unknown_tuner": (f"{DIGITS} --tuner oracle", "ml2tuner"),
    "unknown_option": (f"{DIGITS} --tuner ml2tuner --option beta=1", "alpha"),
    "unknown_space": (f"{DIGITS} --space outer", "extended"),
    "zero_trials": (f"{DIGITS} --trials 0", "--trials"),
    "read_only_folder": (f"{DIGITS} --out locked/out", "read-only"),
    "file_in_the_way": (f"{DIGITS} --out out", "not a folder"),
    "mistyped_names": (f"{DIGITS} --target vta-pink", "did you mean vta-pynq?"),
    "mistyped_key": (BOARD, "did you mean LOG_BLOCK?"),
    "empty_spec": (BOARD, "does not describe a machine"),
    "bad_option_value": (f"{DIGITS} --tuner ml2tuner --option alpha=much", "valid number"),
    "mistyped_layer": (f"{DIGITS} --layers conv2,conv33", "did you mean conv3"),
    "nothing_to_tune": ("", "tilewright zoo"),
    "network_and_workload": (f"{DIGITS} --workload dense:n=1,c=64,o=64", "either"),
    "broken_workload": ("--workload dense:n=1,c=64", "lacks o"),
    "layers_of_a_workload": (
        "--workload dense:n=1,c=64,o=64 --layers fc", "a single workload is tuned"
    ),
    "empty_layer": (f"{DIGITS} --layers conv2,,fc", "--layers 'conv2,,fc' contains an empty name"),
    "layer_named_twice": (f"{DIGITS} --layers fc,fc", "names fc twice"),
    "folder_as_model": ("mine", "mine is a folder; give the path of a model file"),
    "folder_without_a_name": (f"{DIGITS} --bare --out ''", "--out '' is an empty path"),
    "system_metrics_without_mlflow": (
        f"{DIGITS} --bare --system-metrics", "which --bare switches off"
    ),
}  # fmt: skip
"""For each mistake, the arguments after `tilewright tune` and a part of the expected message."""
PREPARED: dict[str, Callable[[Path], None]] = {
    "text_file": _file("notes.onnx", "this is no model"),
    "dynamic_shape": _model("Relu", ["N", 3, 8, 8]),
    "unsupported_operator": _model("Frobnicate", [1, 3, 8, 8]),
    "broken_spec": _file("board.json", "{"),
    "spec_that_cannot_be_encoded": _file("board.json", json.dumps({"LOG_BLOCK": 3})),
    "mistyped_key": _file("board.json", json.dumps({"LOG_BLOK": 4})),
    "empty_spec": _file("board.json", "{}"),
    "read_only_folder": _read_only_folder,
    "file_in_the_way": _file("out", ""),
    "folder_as_model": lambda folder: (folder / "mine").mkdir(),
}
"""For some mistakes, a function that prepares the working folder of the command."""
LATE = {
    "text_file": pytest.mark.slow(seconds=8), "dynamic_shape": pytest.mark.slow(seconds=8),
    "unsupported_operator": pytest.mark.nightly(seconds=8),
    "mistyped_layer": pytest.mark.nightly(seconds=8),
}  # fmt: skip
"""Marks for mistakes that are found late, when a flow reads the model."""


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=LATE.get(name, ())) for name in MISTAKES]
)
def test_a_mistake_is_one_message_and_exit_code_2(
    mistake: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    arguments, hint = MISTAKES[mistake]
    server = request.getfixturevalue("prefect_server") if mistake in LATE else None
    place = Place(tmp_path, server)
    if mistake in PREPARED:
        PREPARED[mistake](place.folder)
    before = {path for path in place.folder.rglob("*") if "home" not in path.parts}
    command = place.run if mistake in LATE else place.call
    done = command("tune", *shlex.split(arguments))
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
        (("build", "digits_cnn", "--out="), "--out '' is an empty path"),
        (("build", "digits_cnn", "--out", "b", "--keep-float", "a,,b"), "contains an empty name"),
        (("compare", "--network", "mine"), "mine is a folder"),
        (("codesign", "--networks", "mine", "--budget", "1"), "mine is a folder"),
        (("codesign", "--networks", "digits_cnn,,", "--budget", "1"), "contains an empty name"),
        (("compare", "digits_cnn", "mine"), "mine is a folder"),
        (("serve", "digits_cnn", "--root", ""), "--root '' is an empty path"),
    ],
)
def test_no_command_takes_a_folder_for_a_model_or_an_empty_name(
    arguments: tuple[str, ...], hint: str, place: Place
) -> None:
    (place.folder / "mine").mkdir()
    done = place.call(*arguments)
    assert done.returncode == 2, done.stdout
    assert hint in done.stderr
    assert {path.name for path in place.folder.iterdir()} <= {"mine", "home"}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("serve", "digits_cnn", "--cron", "every day"), "'0 2 * * *'"),
        (
            ("serve", "digits_cnn", "--prefect-port", "99999"),
            "--prefect-port 99999 is not a valid port",
        ),
        (("ui", "--prefect-port", "99999"), "--prefect-port 99999 is not a valid port"),
        (("ui", "--mlflow-port", "0"), "--mlflow-port 0 is not a valid port"),
        (("ui", "--prefect-port", "5000", "--mlflow-port", "5000"), "--mlflow-port 5001"),
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
