"""Tests the checks of a recorded winner, which is measured again."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilewright.targets.capabilities import Latency
from tilewright.targets.workload import parse_workload
from tilewright.tuning.options import TuningOptions
from tilewright.tuning.tuning_task import TuningTask, tuning_task_of
from tilewright.tuning.verification import reproduces, schedule_of_baseline, verify_schedule


@dataclass(frozen=True)
class Clock:
    """The part of a target that matters here: whether its measurements repeat."""

    deterministic: bool


def study(deterministic: bool) -> TuningTask:
    return cast(TuningTask, SimpleNamespace(target=Clock(deterministic)))


@pytest.mark.parametrize(
    ("claimed", "found", "exact", "noisy"),
    [
        (Latency(1e-3, 100), Latency(1e-3, 100), True, True),
        (Latency(1e-3, 99), Latency(1e-3, 100), False, True),
        (Latency(1e-4, 100), Latency(1e-3, 100), False, True),
        (Latency(1e-3, 1), Latency(1e-3, 100), False, False),
        (Latency(1e-3, -1), Latency(1.9e-3, -1), False, True),
        (Latency(1e-3, -1), Latency(2.1e-3, -1), False, False),
        (Latency(1e-3, -1), Latency(0.1e-3, -1), False, True),
    ],
)
def test_equal_where_measuring_repeats_and_at_most_twice_as_long_elsewhere(
    claimed: Latency, found: Latency, exact: bool, noisy: bool
) -> None:
    got: Any = [reproduces(study(kind).target, claimed, found) for kind in (True, False)]
    assert got == [exact, noisy]


def test_a_baseline_schedule_is_verified_on_the_data_of_its_own_space() -> None:
    """The extended space stores the biases of this layer in another form than the template."""
    options = TuningOptions(model="digits_cnn", target="vta-pynq", tuner="random")
    text = "conv2d:n=1,c=32,h=4,w=4,o=32,k=3,s=1,p=1"
    ours = tuning_task_of(options, parse_workload(text, "bias, >> 8, min 127, max 0"))
    schedule = schedule_of_baseline(ours)
    assert schedule is not None
    assert (schedule.space, ours.target.space(ours.workload).name) == ("template", "extended")
    assert verify_schedule(ours, schedule) == 0
