"""The two steps around the rounds of a workload: the schedule a user has without tuning, and the
proof that the chosen one computes the right numbers."""

from __future__ import annotations

import numpy as np

from targets.base import Lowered
from targets.capabilities import Baseline, Bound, Latency, Roofline, Verifies, capability
from targets.errors import TilewrightError, WorkloadError
from tuning.outcome import TRIAL, Schedule
from tuning.study import Study


class WrongSchedule(TilewrightError):
    """A schedule that runs well and computes wrong numbers."""


def untuned_schedule(study: Study) -> Schedule | None:
    """What a user has without tuning, lowered and measured like every other; None if the target has
    no such schedule, or it does not run."""
    baseline = capability(study.target, Baseline)
    if baseline is None:
        return None
    try:
        found = baseline.baseline(study.workload)
    except WorkloadError:
        return None
    if not found.measured.valid[0]:
        return None
    knobs = found.space.describe(found.config)
    return Schedule(found.source, found.space.name, found.config, knobs, found.latency)


def roofline_of(study: Study) -> Latency | None:
    """What no schedule beats; None if the target knows no bound."""
    bound = capability(study.target, Roofline)
    return None if bound is None else bound.roofline(study.workload)


def bound_of(study: Study) -> Latency | None:
    """The tighter bound that counts all necessary work; None if the target knows none."""
    limit = capability(study.target, Bound)
    return None if limit is None else limit.bound(study.workload)


def verify(study: Study, chosen: Schedule) -> int | None:
    """How many values a schedule gets wrong on random tensors: 0, or None if the target cannot run
    programs on data. Raises `WrongSchedule` otherwise."""
    verifies = capability(study.target, Verifies)
    if verifies is None:
        return None
    wrong = int(verifies.verify(_lowered(study, chosen))[0])
    if wrong:
        raise WrongSchedule(
            f"{study.workload}: schedule {chosen.knobs} computes {wrong} wrong values; "
            "please report this, with the seed and the target's specification"
        )
    return wrong


def _lowered(study: Study, chosen: Schedule) -> Lowered:
    """The very program that was measured."""
    if chosen.source == TRIAL:
        configs = np.array([chosen.config], dtype=np.int32)
        return study.target.lower(study.workload, configs)
    baseline = capability(study.target, Baseline)
    assert baseline is not None, "a schedule that is no trial came from there"
    return baseline.baseline(study.workload).lowered
