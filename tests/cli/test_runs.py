"""Tests `tilewright runs`: listing, showing and deleting runs."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Place

pytestmark = pytest.mark.slow(seconds=9)

TUNE = ("tune", "digits_cnn", "--layers", "fc", "--trials", "4", "--tuner", "random", "--bare")


def test_runs_are_listed_shown_and_deleted(guest: Place) -> None:
    for out in "tuned/one", "tuned/two":
        assert guest.run(*TUNE, "--out", out).returncode == 0
    listed = guest.run("runs", "list")
    ids = re.findall(r"^folder-[0-9a-f]{16}", listed.stdout, re.MULTILINE)
    assert len(ids) == 2, listed.stdout + listed.stderr
    shown = guest.run("runs", "show", "tuned/one").stdout
    assert "cycles per inference after each trial, above the bound" in shown
    assert "repeat   tilewright tune digits_cnn --tuner random --trials 4" in shown
    asked = guest.run("runs", "delete", "tuned/one")
    assert "nothing is deleted yet; repeat with --yes" in asked.stdout
    assert (guest.folder / "tuned" / "one" / "summary.json").exists()
    done = guest.run("runs", "delete", "tuned/one", "--yes")
    assert done.returncode == 0, done.stderr
    assert not (guest.folder / "tuned" / "one").exists()
    assert (guest.folder / "tuned" / "two" / "summary.json").exists()
    again = guest.run("runs", "delete", "tuned/one", "--yes")
    assert again.returncode == 2
    assert "there is no run" in again.stderr
