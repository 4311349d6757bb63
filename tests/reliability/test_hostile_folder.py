"""Checks that commands do not import, execute or read files that an attacker left in the folder.

One folder holds all files of `hostile_folder`. Each command does its usual work there. Afterwards
none of the planted files has been executed or even opened.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.cli.test_servers import read_until, stop
from tests.reliability.hostile_folder import ZEN, plant, watching
from tests.sharing import free_port

pytestmark = [pytest.mark.nightly(seconds=15), pytest.mark.attack]

TUNE = (
    "tune",
    "digits_cnn",
    "--layers",
    "conv2,fc",
    "--tuner",
    "ml2tuner-published",
    "--batch",
    "8",
)


@dataclass(frozen=True)
class Hostile:
    """A folder and the files that were planted in it."""

    place: Place
    files: list[Path]

    @contextmanager
    def unharmed(self) -> Iterator[list[str]]:
        """Check that no planted file is opened or executed inside the context.

        The caller appends the printed outputs to the yielded list.
        """
        printed: list[str] = []
        with watching(self.files) as opened:
            yield printed
        assert opened == set()
        assert list((self.place.folder / "marks").iterdir()) == []
        assert ZEN not in "".join(printed)

    def run(self, *arguments: str) -> None:
        with self.unharmed() as printed:
            done = self.place.script(*arguments)
            printed += [done.stdout, done.stderr]
            assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    place = Place(tmp_path_factory.mktemp("hostile"))
    files = plant(place.folder, place.folder / "marks")
    assert len(files) > 50
    return Hostile(place, files)


@pytest.fixture(scope="module")
def bare(hostile: Hostile) -> str:
    """Make a run in the hostile folder. Return its output directory."""
    hostile.run(*TUNE, "--trials", "32", "--bare", "--out", "bare")
    return "bare"


def test_tune_runs_no_code_of_its_folder(hostile: Hostile) -> None:
    hostile.run(*TUNE, "--trials", "8", "--out", "tracked", "--isolate", "60")


def test_what_shows_a_run(hostile: Hostile, bare: str) -> None:
    hostile.run("trials", bare)
    hostile.run("explain", bare, "--samples", "16")


def test_compare_runs_no_code_of_its_folder(hostile: Hostile) -> None:
    hostile.run(
        "compare", "--tuners", "default,random", "--workloads", "dense:n=1,c=32,o=32", "--trials",
        "8", "--seeds", "0", "--jobs", "2",
    )  # fmt: skip


def test_ui_runs_no_code_of_its_folder(hostile: Hostile) -> None:
    ports = ("--prefect-port", str(free_port()), "--mlflow-port", str(free_port()))
    with hostile.unharmed() as printed:
        pages = hostile.place.start("ui", *ports)
        try:
            printed += read_until(pages, "Ctrl-C")
        finally:
            assert stop(pages) == 0


def test_serve(hostile: Hostile) -> None:
    """The server also starts a run."""
    made = hostile.place.folder / "served" / "summary.json"
    with hostile.unharmed() as printed:
        server = hostile.place.start(
            "serve", "digits_cnn", "--tuner", "random", "--trials", "4", "--every", "15",
            "--prefect-port", str(free_port()), "--out", "served",
        )  # fmt: skip
        try:
            printed += read_until(server, "serving")
            _wait_for(made, server)
        finally:
            stop(server)


def _wait_for(made: Path, server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not made.exists():
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
