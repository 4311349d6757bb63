"""Checks that a killed build can be repeated, and that an incomplete artifact is never accepted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.commands import ROOT


@pytest.mark.attack
@pytest.mark.slow(seconds=6)
def test_a_build_killed_at_any_write_is_written_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.killed_build", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {name: item["failures"] for name, item in report.items()} == {
        "empty": {}, "over another": {},
    }  # fmt: skip
    assert min(item["boundaries"] for item in report.values()) > 30
    own = ["a.bin", "b.bin", "cpu/c.so", "manifest.json"]
    assert report["empty"]["files"] == own
    assert report["over another"]["files"] == [*own, "notes.txt"]
