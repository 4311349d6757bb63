"""Labelled networks whose workloads are not tuned: with the schedules that are estimated best."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.evaluator import Evaluator
from fusion.problem import Problem
from fusion.schedules import Schedules
from targets.base import Target
from targets.built import Pick
from targets.capabilities import blocks_of
from targets.errors import WorkloadError
from targets.workload import Workload
from tuning.picks import tuned_picks


def estimating(problem: Problem, seed: int) -> Evaluator:
    """Who times them. No trial is made, but whole networks are simulated. Raises `FusionError` for
    a target that runs no programs of ours."""

    def estimated(workloads: Sequence[Workload]) -> list[Pick | None]:
        return [_estimated(workload, problem.target, seed) for workload in workloads]

    return Evaluator(problem, Schedules(blocks_of(problem.target), estimated))


def _estimated(workload: Workload, target: Target, seed: int) -> Pick | None:
    try:
        return tuned_picks([workload], target, 0, seed)[0]
    except WorkloadError:
        return None
