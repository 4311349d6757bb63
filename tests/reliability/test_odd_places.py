"""Tests folders whose names have a special meaning in URLs, and workspaces that cannot exist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TILEWRIGHT, Place

pytestmark = pytest.mark.attack

ROOT = Path(__file__).parents[2]

TUNE = ("tune", "digits_cnn", "--layers", "fc", "--tuner", "random", "--trials", "2", "--out",
        "out")  # fmt: skip


def run(
    folder: Path, *arguments: str, workspace: str = "", **named: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TILEWRIGHT), *arguments], cwd=folder,
        env=Place(folder).environment | {"TILEWRIGHT_HOME": workspace} | named,
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Check that a command refused to start, and return its only message."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.nightly(seconds=14)
def test_a_run_in_a_folder_of_odd_letters_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """An empty TILEWRIGHT_HOME counts as unset.

    The user has no home folder either, so plots are drawn without the libraries' font cache.
    """
    folder = tmp_path / "a ?b#c%d &é"
    folder.mkdir()
    done = run(folder, *TUNE, workspace="", HOME="/proc/nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "out" / "convergence.png").stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} == {".tilewright", "out"}
    workspace = folder / ".tilewright"
    assert {path.name for path in workspace.iterdir()} == {
        "cache", "mlflow", "prefect", "secret", "secret.seal", "tilewright.log", "workspace.json",
    }  # fmt: skip
    assert {path.name for path in (workspace / "mlflow").iterdir()} == {"artifacts", "mlflow.db"}
    assert len(list((workspace / "mlflow" / "artifacts").rglob("summary.json"))) == 1
    assert (workspace / "prefect" / "prefect.db").stat().st_size > 100_000


@pytest.mark.slow(seconds=4)
def test_a_user_without_a_name(tmp_path: Path) -> None:
    """Users in containers may have no name.

    The test runs in a user namespace, so that the user ID outside stays the same. It is skipped if
    the kernel does not allow this.
    """
    known = Place(tmp_path).environment
    kept = {name: value for name, value in known.items() if name not in ("HOME", "USER", "LOGNAME")}
    unnamed = ["unshare", "-U", "--map-user=12345", "--map-group=12345"]
    program = (
        "from tilewright.services.workspace import use_workspace; use_workspace()\n"
        "import prefect, mlflow, pathlib; print(pathlib.Path.home())"
    )
    command = [*unnamed, sys.executable, "-P", "-c", program]
    if shutil.which("unshare") is None or subprocess.run([*unnamed, "true"]).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        command, cwd=tmp_path, env=kept | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("/\n", 0), done.stderr


@pytest.mark.nightly(seconds=5)
def test_workspaces_that_cannot_be_are_one_message_before_anything_is_written(
    tmp_path: Path,
) -> None:
    deep = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 100)
    assert "too long for a database" in refused(run(tmp_path, "ui", workspace=str(deep)))
    assert "too long" in refused(run(tmp_path, "ui", workspace="g" * 300))
    assert "control characters" in refused(run(tmp_path, "ui", workspace="two\nlines"))
    not_utf8 = os.fsdecode(b"\xff\xfe")
    assert "not UTF-8" in refused(run(tmp_path, "ui", workspace=not_utf8))
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot write to loop" in refused(run(tmp_path, "ui", workspace="loop"))
    (tmp_path / "file").touch()
    assert "cannot write to" in refused(run(tmp_path, "ui", workspace="file"))
    assert {path.name for path in tmp_path.iterdir()} == {"loop", "file"}
