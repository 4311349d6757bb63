"""Kills `tilewright compare` by SIGKILL and repeats it. The result must be that of a normal run."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.reliability.commands import ROOT, wait_for
from tests.reliability.killed_comparison import TABLE, kept, outcome
from tilewright.evaluation.compare.record import RECORD

COMPARE = ("compare", "--replay", str(TABLE), "--tuners", "random,ml2tuner-published",
           "--seeds", "0,1", "--trials", "16", "--batch", "8", "--jobs", "2",
           "--out", "out")  # fmt: skip
RUNS = 4


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(6, marks=pytest.mark.slow(seconds=10), id="some"),
        pytest.param(1, marks=pytest.mark.nightly(seconds=60), id="all"),
    ],
)
def test_a_comparison_killed_at_any_write_ends_like_one_that_was_not(
    tmp_path: Path, step: int
) -> None:
    """No finished run is repeated or lost."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.killed_comparison", str(tmp_path), str(step)],
        cwd=ROOT, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["failures"] == {}
    assert len(report["places"]) >= 40
    assert {place.split()[0] for place in report["killed"]} == {"before", "in", "after"}


@pytest.mark.nightly(seconds=25)
def test_the_command_killed_at_several_moments_ends_like_one_that_was_not(tmp_path: Path) -> None:
    """The command uses several processes and MLflow. One kill comes while it records the end."""
    (tmp_path / "whole").mkdir()
    whole, place = Place(tmp_path / "whole"), Place(tmp_path)
    done = whole.run(*COMPARE)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    moments: list[Callable[[], bool]] = [
        lambda: len(kept(out)) >= 1,
        lambda: len(kept(out)) >= 3,
        lambda: (out / RECORD).exists(),
    ]
    for moment in moments:
        victim = place.fork(*COMPARE)
        wait_for(moment, victim)
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate(timeout=60)
        assert victim.returncode == -signal.SIGKILL
    again = place.run(*COMPARE)
    assert again.returncode == 0, again.stderr
    assert outcome(out) == outcome(whole.folder / "out")
    assert len(kept(out)) == len(set(kept(out))) == RUNS
    assert _champions(place) == _champions(whole)


def _champions(place: Place) -> set[str]:
    """Return the names of the models with a champion alias."""
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        rows = database.execute("select name from registered_model_aliases").fetchall()
    return {name for (name,) in rows}
