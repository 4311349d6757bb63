"""Times labelled networks whose workloads are not tuned, by their best estimated schedules."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.errors import WorkloadError
from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.problem import FusionProblem
from tilewright.fusion.schedules import FusionSchedules
from tilewright.targets.artifact_types import Pick
from tilewright.targets.base import Target
from tilewright.targets.capabilities import blocks_of
from tilewright.targets.workload import Workload
from tilewright.tuning.schedule_lookup import pick_without_trials


def estimating(problem: FusionProblem, seed: int) -> Evaluator:
    """Who times them. No trial is made, but whole networks are simulated. Raises `FusionError` for
    a target that runs no programs of ours."""

    def estimated(workloads: Sequence[Workload]) -> list[Pick | None]:
        return [_estimated(workload, problem.target, seed) for workload in workloads]

    return Evaluator(problem, FusionSchedules(blocks_of(problem.target), estimated))


def _estimated(workload: Workload, target: Target, seed: int) -> Pick | None:
    try:
        return pick_without_trials(workload, target, seed)
    except WorkloadError:
        return None
