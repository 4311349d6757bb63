"""Moves the clock a day forward and back during a whole run. The results must not change."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import TILEWRIGHT, Place
from tests.reliability.commands import LAYERS, TUNE, Whole, left

SOURCE = Path(__file__).with_name("jumping_clock.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("clock") / "jumping_clock.so"
    subprocess.run(
        [
            "gcc",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            made,
            SOURCE,
            "-ldl",
        ],
        check=True,
    )
    return made


@pytest.mark.nightly(seconds=40)
def test_a_clock_that_is_set_a_day_forward_and_back_changes_no_result(
    tmp_path: Path, library: Path, whole: Whole
) -> None:
    """The clock jumps every 0.3 s in every process, including Prefect's server.

    Nothing may wait for a day, and no duration may be negative. No MLflow run may end before it
    begins.
    """
    place, jumped = Place(tmp_path), tmp_path / "jumped"
    done = subprocess.run(
        [str(TILEWRIGHT), *TUNE], cwd=tmp_path, text=True, capture_output=True, timeout=600,
        env=place.environment | {"LD_PRELOAD": str(library), "JUMPED": str(jumped)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert jumped.stat().st_size >= 2  # the command and its server
    assert left(place) == whole
    summary = place.json("out/summary.json")
    stated = [
        summary["wall_seconds"],
        *(workload["wall_seconds"] for workload in summary["workloads"]),
    ]
    assert len(stated) == 1 + len(LAYERS)
    assert all(0 < seconds < 600 for seconds in stated)
    with closing(sqlite3.connect(tmp_path / "home" / "mlflow" / "mlflow.db")) as database:
        runs = database.execute("select status, end_time - start_time from runs").fetchall()
    assert [status for status, _ in runs] == ["FINISHED"] * (1 + len(LAYERS))
    assert all(milliseconds >= 0 for _, milliseconds in runs)
