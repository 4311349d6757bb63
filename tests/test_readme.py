"""Checks the README: it is short, begins with working commands, and its `make` targets exist."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks
from tilewright.services.prefect_server import Login

README = ROOT / "README.md"
LINES = 120


def test_the_readme_is_short_and_says_how_to_install() -> None:
    text = README.read_text()
    assert text.count("\n") <= LINES
    assert "\n## Install\n" in text
    assert "\n## Sixty seconds\n" in text


def test_the_readme_has_the_two_commands_first() -> None:
    assert blocks(README)[0].commands == ["make tune", "make test"]


@pytest.mark.nightly(seconds=15)
def test_make_tune_tunes(tmp_path: Path, prefect_server: Login) -> None:
    """The recipe runs on the smallest network. Its set-up has already been done."""
    environment = os.environ | {"TILEWRIGHT_HOME": str(tmp_path / ".tilewright")}
    done = subprocess.run(
        ["make", "--no-print-directory", "tune", "NETWORK=digits_cnn", "TRIALS=8",
         f"OUT={tmp_path / 'made'}"],
        cwd=ROOT, env=environment | prefect_server.settings,
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "summary.json").exists()


@pytest.mark.parametrize(("target", "left_out"), [("test", False), ("check", True)])
def test_make_runs_this_suite(target: str, left_out: bool) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "-m pytest" in done.stdout
    assert ("not slow" in done.stdout) == left_out
