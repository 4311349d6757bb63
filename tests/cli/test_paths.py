"""Checks that commands work in `/`, ignore files of the current folder, and show paths as typed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Place

ROOT = Path(__file__).parents[2]


def left(folder: Path, program: str, **variables: str) -> object:
    """Run code in a process that called `leave_working_folder`. Return its variable `found`."""
    script = (
        "import json, os\nfrom pathlib import Path\nfrom tilewright.core.working_folder import *\n"
        f"from tilewright.cli.paths import *\nleave_working_folder()\n{program}\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_library_call_stays_where_it_is(tmp_path: Path) -> None:
    program = """
import os
from pathlib import Path
from tilewright.core.working_folder import as_typed, from_start, started_in
assert from_start(Path("out")) == Path("out")
assert as_typed(f"{Path.cwd()}/out") == f"{Path.cwd()}/out"
print(started_in())
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True,
        check=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path)


def test_a_command_goes_to_a_folder_of_the_machine(tmp_path: Path) -> None:
    assert left(tmp_path, "leave_working_folder(); found = [os.getcwd(), str(started_in())]") == [
        "/", str(tmp_path),
    ]  # fmt: skip


def test_paths_are_shown_as_they_were_typed(tmp_path: Path) -> None:
    program = """
out, other = from_start(Path("runs/a")), from_start(Path("/b"))
found = [str(out), str(other)] + [as_typed(text.format(out=out)) for text in (
    "{out} is full", "no {out}/trials.sqlite; see {out}.", "{out}b", "{out}.npz", "file://{out}/x",
)]
"""
    out = tmp_path / "runs" / "a"
    assert left(tmp_path, program) == [
        str(out), "/b", "runs/a is full", "no runs/a/trials.sqlite; see runs/a.", f"{out}b",
        f"{out}.npz", f"file://{out}/x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("TILEWRIGHT_HOME", "home", "{here}/home"),
        ("NUMBA_CACHE_DIR", "../cache", "{above}/cache"),
        ("MATPLOTLIBRC", "/etc/matplotlibrc", "/etc/matplotlibrc"),
        ("MLFLOW_TRACKING_URI", "sqlite:///my.db", "sqlite:///{here}/my.db"),
        ("MLFLOW_TRACKING_URI", "sqlite:////tmp/my.db", "sqlite:////tmp/my.db"),
        ("MLFLOW_TRACKING_URI", "./mlruns", "{here}/mlruns"),
        ("MLFLOW_TRACKING_URI", "http://host:5000", "http://host:5000"),
        ("MLFLOW_TRACKING_URI", "databricks://profile", "databricks://profile"),
    ],
)
def test_relative_paths_of_variables_count_from_there(
    tmp_path: Path, name: str, given: str, meant: str
) -> None:
    result = left(tmp_path, f"found = os.environ[{name!r}]", **{name: given})
    assert result == meant.format(here=tmp_path, above=tmp_path.parent)


def test_names_come_before_files(tmp_path: Path) -> None:
    for name in ("digits_cnn", "vta-pynq", "net", "threads=1", "t.csv"):
        (tmp_path / name).touch()
    program = """
models, targets = ("digits_cnn", "net", "gone", "gone.onnx", "/a/b.onnx"), (
    "vta-pynq", "gone", "my.json", "replay:t.csv,u.csv", "cpu:lanes=8")
found = [[model_text(text) for text in models], [target_text(text) for text in targets],
         [warm_start_text(text) for text in ("champion", "m")],
         [run_text(text) for text in ("0" * 32, "out")]]
"""
    assert left(tmp_path, program) == [
        ["digits_cnn", f"{tmp_path}/net", "gone", f"{tmp_path}/gone.onnx", "/a/b.onnx"],
        ["vta-pynq", "gone", f"{tmp_path}/my.json", f"replay:{tmp_path}/t.csv,{tmp_path}/u.csv",
         "cpu:lanes=8"],
        ["champion", f"{tmp_path}/m"],
        ["0" * 32, f"{tmp_path}/out"],
    ]  # fmt: skip


@pytest.mark.nightly(seconds=8)
def test_files_and_folders_of_a_command_are_those_of_the_user(place: Place) -> None:
    """The command reads a specification by relative path and writes the default directory."""
    folder = place.folder / "mine"
    folder.mkdir()
    preset = ROOT / "tilewright" / "targets" / "vta" / "presets" / "vta-pynq.json"
    shutil.copyfile(preset, folder / "my.json")
    here = Place(folder)
    arguments = ("--target", "my.json", "--trials", "4", "--layers", "fc", "--bare")
    done = here.run("tune", "digits_cnn", *arguments)
    assert done.returncode == 0, done.stderr
    assert "results in tuned/digits_cnn-my-fc: " in done.stdout
    assert (folder / "tuned" / "digits_cnn-my-fc" / "summary.json").is_file()
    done = here.run("tune", "gone.onnx", *arguments)
    assert done.stderr.startswith("error: the file gone.onnx does not exist; "), done.stderr
