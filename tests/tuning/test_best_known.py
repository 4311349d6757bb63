"""Checks that an output directory keeps the best schedule of all runs in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trial_tables import rows
from tests.tune_bare import tune_bare, tune_options
from tilewright.tuning.events import Event, Note
from tilewright.tuning.options import TuningOptions

RUN: dict[str, Any] = {"workload": "dense:n=1,c=64,o=64", "batch": 4}
MANY, FEW = {"tuner": "random", "trials": 40}, {"tuner": "random", "trials": 4}
OTHER = {"tuner": "ml2tuner", "trials": 4, "seed": 1}


def cycles(summary: Any) -> int:
    return int(summary["workloads"][0]["tuned_cycles"])


@pytest.mark.parametrize("later", [FEW, OTHER], ids=["fewer trials", "another tuner"])
def test_a_later_run_never_worsens_what_the_directory_holds(
    tmp_path: Path, later: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    alone = tune_bare(**RUN, **later, out=str(tmp_path / "alone"))
    best = tune_bare(**RUN, **MANY, out=str(out))
    assert cycles(alone) > cycles(best), "the later run is worse by itself"
    assert "found_by" not in best["workloads"][0]
    held = (out / "schedules.json").read_bytes()
    heard: list[Event] = []
    again = tune_options(TuningOptions.parse(**RUN, **later, out=str(out)), heard.append)
    assert cycles(again) == cycles(best)
    assert (out / "schedules.json").read_bytes() == held
    (row,) = again["workloads"]
    assert row["found_by"] == {"tuner": "random", "seed": 0, "trials": 40}
    assert row["trials"] == 4
    told = [event.text for event in heard if isinstance(event, Note)]
    assert any("that tuner random with seed 0 found in 40 trials" in text for text in told)


def test_a_better_run_replaces_what_the_directory_holds(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    few = tune_bare(**RUN, **FEW, out=out)
    many = tune_bare(**RUN, **MANY, out=out)
    assert cycles(many) < cycles(few)
    assert "found_by" not in many["workloads"][0]


def test_a_forged_trial_of_an_earlier_run_is_not_believed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    best = tune_bare(**RUN, **MANY, out=str(out))
    rows(out, "update trials set cycles = 1, seconds = 1e-8 where cycles = ("
              "select max(cycles) from trials)")  # fmt: skip
    again = tune_bare(**RUN, **OTHER, out=str(out))
    assert cycles(again) == cycles(best)
    assert rows(out, "select count(*) as n from trials where rejected is null and cycles = 1") == [
        {"n": 0}
    ]
