"""What fusing is worth before anything is tuned: with the schedules that are estimated best."""

from __future__ import annotations

from collections.abc import Sequence

from fusion.evaluator import Evaluator
from fusion.run import decided, fitting, problem_of
from fusion.schedules import NoSchedule, Schedules
from targets.base import Target
from targets.built import Pick
from targets.capabilities import blocks_of
from targets.errors import WorkloadError
from targets.workload import Workload
from tuning.fusing import Decided, ToDecide
from tuning.options import TuningOptions
from tuning.picks import tuned_picks


def foresee(options: TuningOptions, target: Target, network: str) -> Decided:
    """What the estimates would fuse in the network of that name, beside nothing and everything;
    each decision with what it saves. No trial is made, but whole networks are simulated. Raises
    `FusionError` for a target that runs no programs of ours, and what quantising raises."""
    options = options.model_copy(update={"fusion": "greedy"})
    asked = ToDecide(options, target, network, (), lambda _: [], lambda _: None)
    problem = problem_of(asked)

    def estimated(workloads: Sequence[Workload]) -> list[Pick | None]:
        return [_estimated(workload, target, options.seed) for workload in workloads]

    evaluator = Evaluator(problem, Schedules(blocks_of(target), estimated))
    every = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    named = {name: fitting(evaluator, labels) for name, labels in every.items()}
    here, spent = named[options.fusion], evaluator.count
    for place in range(len(problem)):
        try:
            evaluator(problem.flipped(here, [place]))
        except NoSchedule:
            continue  # what it saves stays unknown
    return decided(asked, problem, evaluator, named, spent)


def _estimated(workload: Workload, target: Target, seed: int) -> Pick | None:
    try:
        return tuned_picks([workload], target, 0, seed)[0]
    except WorkloadError:
        return None
