"""Checks that pipes, devices and endless files in a foreign folder do not block a command."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tune_bare import tune_bare
from tilewright.core.files import UnsafeFile, read_plain
from tilewright.evaluation.explain.finished_run import read_folder
from tilewright.tuning.output_dir import identity
from tilewright.tuning.run_metadata import read_run

RUN = {"workload": "dense:n=1,c=64,o=64", "tuner": "random", "trials": 2, "batch": 2}


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


PLANTS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a socket": _socket,
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.attack
@pytest.mark.parametrize("plant", PLANTS)
def test_readers_neither_wait_nor_read_without_end(plant: str, out: Path) -> None:
    for name in ("run.json", "summary.json"):
        PLANTS[plant](out / name)
    for call in (
        lambda: read_plain(out / "run.json"),
        lambda: read_run(out),
        lambda: read_folder(out),
    ):
        with pytest.raises(UnsafeFile, match=plant):
            call()


@pytest.mark.attack
def test_a_file_without_end_is_not_read_to_it(out: Path) -> None:
    (out / "file").write_bytes(bytes(100))
    assert read_plain(out / "file", limit=100) == bytes(100)
    with pytest.raises(UnsafeFile, match="larger than the limit of 99 bytes"):
        read_plain(out / "file", limit=99)


@pytest.mark.attack
@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("plant", ["a pipe", "a device"])
def test_a_command_that_looks_at_a_folder_says_so_in_one_message(plant: str, out: Path) -> None:
    PLANTS[plant](out / "summary.json")
    program = (
        "import sys, tilewright.cli\n"
        "sys.argv = ['tilewright', 'explain', sys.argv[-1]]\n"
        "try: tilewright.cli.main()\n"
        "except SystemExit as end: print(end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(out)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["2"]
    assert done.stderr.count("\n") == done.stderr.count("error: ") == 1, done.stderr


def test_a_folder_that_the_user_reaches_by_a_link_is_fine(out: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(out)
    tune_bare(**RUN, out=str(link))
    assert tune_bare(**RUN, out=str(out))["workloads"][0]["reused_trials"] == 2


def test_what_is_kept_in_a_folder_says_whose_it_is(tmp_path: Path) -> None:
    """A moved folder keeps its identity. A copy and a new folder get new ones."""
    first = tmp_path / "first"
    first.mkdir()
    known = identity(first)
    assert identity(first) == known
    moved = first.rename(tmp_path / "moved")
    assert identity(moved) == known
    copy = Path(shutil.copytree(moved, tmp_path / "copy"))
    assert identity(copy) != known
    assert identity(moved) == known
    first.mkdir()
    assert identity(first) not in (known, identity(copy))
    for text in ("", "[]", json.dumps({"id": 3, "place": 4}), "[" * 3000):
        (first / ".tune").write_text(text)
        assert len(identity(first)) == 32
