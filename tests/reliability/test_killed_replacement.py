"""Checks that results of an earlier run are not attributed to a killed run in the same folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.commands import ROOT
from tests.reliability.killed_replacement import CHANGES, RUN
from tests.tune_bare import tune_bare


@pytest.mark.attack
@pytest.mark.nightly(seconds=35)
def test_a_folder_is_complete_only_with_the_results_of_the_run_it_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.killed_replacement", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.keys() == CHANGES.keys()
    assert min(item["boundaries"] for item in report.values()) > 40
    assert [name for name, item in report.items() if item["claims"]] == []


@pytest.mark.slow(seconds=4)
def test_trials_says_whether_this_run_is_complete(tmp_path: Path) -> None:
    def said() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", "trials", str(tmp_path / "out")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    tune_bare(**RUN, out=str(tmp_path / "out"))
    assert said() == "2 trials of 1 workload; the run is complete"
    old = (tmp_path / "out" / "summary.json").read_bytes()
    tune_bare(**RUN | {"seed": 1}, out=str(tmp_path / "out"))
    assert said().endswith("the run is complete")
    (tmp_path / "out" / "summary.json").write_bytes(old)
    assert said().endswith("the run was stopped")
