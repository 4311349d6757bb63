"""Runs each command with a read-only workspace: it works without records or says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Place
from tests.draws import nightly_after
from tests.reliability.killed_comparison import TABLE
from tilewright.services.workspace import Workspace, use_workspace

TUNE = ("tune", "digits_cnn", "--layers", "fc", "--tuner", "random", "--trials", "2")
COMPARE = ("compare", "--tuners", "random", "--seeds", "0", "--trials", "4", "--batch", "4")
WORKS = [
    (*TUNE, "--bare", "--out", "tuned"),
    ("trials", "tuned"),
    ("diff", "tuned", "tuned"),
    ("build", "digits_cnn", "--trials", "0", "--out", "artifact"),
    ("run", "artifact", "--input", "image.npz", "--output", "logits.npz"),
    ("verify", "artifact"),
    ("inspect", "digits_cnn"),
    (*COMPARE, "--replay", str(TABLE), "--no-mlflow", "--out", "compared"),
    ("target", "show", "vta-pynq"),
    ("--version", "--json"),
]
"""Commands that work, in order: some read the files that an earlier one wrote."""
REFUSED = [
    (*TUNE, "--out", "elsewhere"),
    ("clean", "--yes"),
    ("ui",),
    (*COMPARE, "--replay", str(TABLE), "--out", "elsewhere"),
    (*COMPARE, "--network", "digits_cnn", "--no-mlflow", "--out", "elsewhere"),
    (
        "codesign",
        "--networks",
        "digits_cnn",
        "--budget",
        "1",
        "--trials",
        "2",
        "--out",
        "elsewhere",
    ),
    ("dataset", "build", "--rows", "2", "--cpu-rows", "0", "--out", "elsewhere"),
    ("compare", "digits_cnn", "--tuners", "random", "--trials", "2", "--out", "elsewhere"),
    ("clean",),
    ("serve", "digits_cnn"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a place with a read-only workspace that holds the records of an earlier command.

    Permissions do not limit root, so root gets a read-only disk instead.
    """
    folder = tmp_path_factory.mktemp("read-only")
    home = folder / "home"
    home.mkdir()
    (home / "pages.json").write_text("{}")
    np.savez(folder / "image.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    if os.geteuid():
        home.chmod(0o555)
        yield Place(folder)
        home.chmod(0o755)
        return
    if shutil.which("mount") is None:
        pytest.skip("no disk can be mounted")
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, "size=64m,mode=700", "tmpfs", str(home)], check=True)
    try:
        _fill(home)
        subprocess.run([*mount, "remount,ro", "tmpfs", str(home)], check=True)
        yield Place(folder)
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def _fill(home: Path) -> None:
    before = dict(os.environ)
    try:
        use_workspace(Workspace(home))
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.slow(seconds=8)
def test_what_keeps_no_records_works(place: Place) -> None:
    for command in WORKS:
        done = place.run(*command)
        assert done.returncode == 0, (command, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize(
    "command",
    nightly_after(4, [(command,) for command in REFUSED], 6),
    ids=lambda command: " ".join(command)[:30],
)
def test_what_keeps_records_says_so_before_any_work(place: Place, command: tuple[str, ...]) -> None:
    done = place.run(*command)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("…")]
    assert len(lines) == 1, done.stderr
    named = lines[0].removeprefix("error: cannot write to ").partition(":")[0]
    assert (place.folder / named).resolve() == (place.folder / "home").resolve()
    assert lines[0].endswith("; set TILEWRIGHT_HOME to a folder that you can write to")
    assert not (place.folder / "elsewhere").exists()
