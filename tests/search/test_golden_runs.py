"""Checks that seeds give the recorded trials, and configs the recorded programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.search.golden_runs import (
    LAYERS,
    LINEAR_ALGEBRA,
    TARGETS,
    TUNERS,
    lowered,
    processor,
    tuned,
)

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "golden" / "runs.json").read_text())

pytestmark = pytest.mark.slow(seconds=1.5)


@pytest.mark.parametrize(("preset", "space"), TARGETS)
def test_schedules_lower_and_run_as_recorded(preset: str, space: str) -> None:
    for layer in range(len(LAYERS)):
        assert lowered(preset, space, layer) == RECORDED["lowered"][f"{preset} {space} {layer}"]


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_tuner_makes_the_trials_that_were_recorded(tuner: str) -> None:
    if tuner in LINEAR_ALGEBRA and processor() != RECORDED["processor"]:
        pytest.skip(f"recorded on {RECORDED['processor']}, and this is {processor()}")
    assert tuned(tuner) == RECORDED["tuned"][tuner]
