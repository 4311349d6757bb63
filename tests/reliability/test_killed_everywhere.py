"""Checks that a tuning run killed at any write and repeated ends like an undisturbed run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.postgres import postgres

SOURCE = Path(__file__).with_name("kill_at_write.c")
OPTIONS = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def killed_everywhere(
    tuner: str, folder: Path, stride: int, *url: str, **environment: str
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.killed_everywhere", tuner, str(folder),
         str(stride), *url],
        capture_output=True, text=True, timeout=1200, cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    ("tuner", "stride"),
    [
        pytest.param("random", 11, marks=pytest.mark.slow(seconds=40)),
        pytest.param("random", 1, marks=pytest.mark.nightly(seconds=240)),
        pytest.param("ml2tuner", 5, marks=pytest.mark.nightly(seconds=120)),
    ],
)
def test_a_run_killed_at_any_write_ends_like_one_that_was_not(tuner: str, stride: int) -> None:
    """The tables are equal, and only the interrupted batch is measured again.

    For one place, the resumed run is also killed at every third place.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        library = Path(folder) / "kill_at_write.so"
        subprocess.run(["gcc", *OPTIONS, "-o", library, SOURCE, "-ldl"], check=True)
        report = killed_everywhere(tuner, Path(folder), stride, LD_PRELOAD=str(library))
    assert report["failures"] == {}
    assert report["places"] >= 60
    assert report["twice"] >= 30


@pytest.mark.nightly(seconds=90)
def test_a_run_killed_at_any_statement_on_postgresql_ends_like_one_that_was_not(
    tmp_path: Path,
) -> None:
    with postgres() as url:
        report = killed_everywhere("random", tmp_path, 1, url)
    assert report["failures"] == {}
    assert report["places"] >= 60
