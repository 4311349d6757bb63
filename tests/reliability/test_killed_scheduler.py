"""Tests `tilewright tune --stop-gain` under SIGKILL: a resumed run schedules the same rounds."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.reliability.commands import Whole, killed, left

pytestmark = pytest.mark.nightly(seconds=23)

SHARED = ("tune", "digits_cnn", "--tuner", "ml2tuner-published", "--trials", "12", "--batch", "4",
        "--seed", "7", "--stop-gain", "0.0005", "--bare", "--out", "out")  # fmt: skip
EACH = 12
"""Number of write boundaries that every killed command passes at least."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    place = Place(tmp_path_factory.mktemp("shared"))
    assert killed(place, -1, SHARED) == 0
    return left(place)


def test_one_killed_again_and_again_schedules_as_one_that_was_not(
    undisturbed: Whole, tmp_path: Path
) -> None:
    """The trials, the schedules and the reasons to stop must be equal."""
    place, kills = Place(tmp_path), 0
    while (status := killed(place, EACH + 5 * kills, SHARED)) == -signal.SIGKILL:
        kills += 1
    assert status == 0
    assert kills >= 4
    assert left(place) == undisturbed
    assert told(place) == told(undisturbed.place)


def told(place: Place) -> list[object]:
    """Return the trial counts and the reasons to stop from the summary."""
    summary = json.loads((place.folder / "out" / "summary.json").read_text())
    trials = [row["trials"] for row in summary["workloads"]]
    assert len(set(trials)) > 1
    return [trials, summary["stop_gain"]]
