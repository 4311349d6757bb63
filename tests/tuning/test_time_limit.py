"""Tests the time limit `--for`: the run stops in time and can be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trial_tables import tables
from tests.tune_bare import tune_bare, tune_options
from tilewright.core.options import OptionsError
from tilewright.flows import tuning
from tilewright.tuning.events import Event, Note
from tilewright.tuning.options import TuningOptions, seconds_of_duration
from tilewright.tuning.time_limit import TimeLimit

RUN: dict[str, Any] = {"model": "digits_cnn", "layers": ["conv3", "fc"], "tuner": "random",
                       "trials": 16, "batch": 8}  # fmt: skip


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("shared", [{}, {"stop_gain": 0.0}], ids=["each its own", "shared"])
def test_a_run_that_time_ended_has_one_round_each_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: dict[str, float]
) -> None:
    out = tmp_path / "out"
    options = TuningOptions.parse(**RUN, **shared, out=str(out), time_limit="1s")
    heard: list[Event] = []
    with monkeypatch.context() as patched:
        patched.setattr(tuning, "seconds_of_duration", lambda text: 0)  # the time is up at once
        first = tune_options(options, heard.append)
    assert [row["trials"] for row in first["workloads"]] == [8, 8]
    assert all(row["stopped_by_time"] for row in first["workloads"])
    if shared:
        assert first["stop_gain"]["why"] == "time"
    told = [event.text for event in heard if isinstance(event, Note)]
    assert any("the time limit --for 1s stopped 2 of 2 workloads early" in text for text in told)
    again = tune_options(options.model_copy(update={"time_limit": "24h"}))
    assert [row["reused_trials"] for row in again["workloads"]] == [8, 8]
    assert not any("stopped_by_time" in row for row in again["workloads"])
    unlimited = tmp_path / "unlimited"
    tune_bare(**RUN, **shared, out=str(unlimited))
    assert tables(out) == tables(unlimited)
    assert (out / "schedules.json").read_bytes() == (unlimited / "schedules.json").read_bytes()


def test_workloads_share_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tilewright.tuning.time_limit.time.monotonic", lambda: now)
    limit = TimeLimit(60, workloads=3)
    assert limit.begin_workload() == 120
    now = 110.0  # the first workload took less than its share
    assert limit.begin_workload() == 135
    now = 170.0  # the second workload took much longer
    assert limit.begin_workload() == 170
    assert TimeLimit(60, workloads=4, at_a_time=2).begin_workload() == 200
    assert TimeLimit(60, workloads=4).begin_workload(pooled=True) == 230
    assert TimeLimit(None, workloads=4).begin_workload() is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m5s", 5405), ("", None)]
)
def test_durations_are_read(text: str, seconds: int | None) -> None:
    assert TuningOptions.parse(time_limit=text).time_limit == text
    assert seconds_of_duration(text) == seconds


@pytest.mark.parametrize("text", ["10", "m", "10 m", "-1s", "1.5h", "0s", "0h0m", "1m1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=r"--for .*: not a duration; write hours, minutes"):
        TuningOptions.parse(time_limit=text)


def test_a_limit_of_time_is_part_of_the_command() -> None:
    options = TuningOptions.parse(model="digits_cnn", time_limit="10m")
    assert options.command_line("tune") == "tilewright tune digits_cnn --for 10m"
