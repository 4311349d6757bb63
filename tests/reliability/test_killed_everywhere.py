"""Kills a tuning run at every write boundary, none left out, then runs the same command again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly(seconds=20)

CALLS = {"open", "pwrite", "write", "fsync", "ftruncate", "replace"}


@pytest.mark.parametrize("tuner", ["ml2tuner", "default"])
def test_a_run_killed_at_any_write_ends_like_one_that_was_not(tuner: str) -> None:
    """Ledger and schedules byte for byte; no trial measured again but the batch in flight. For one
    torn record every boundary of the resumed run is killed as well."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.reliability.killed_everywhere", tuner, folder],
            capture_output=True, text=True, timeout=600,
            cwd=Path(__file__).parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["failures"] == {}
    assert report["boundaries"] == len(report["places"]) >= 45
    assert report["twice"] >= 30
    assert {place.split()[-1] for place in report["places"]} == CALLS
