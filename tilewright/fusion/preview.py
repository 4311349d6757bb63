"""Previews what fusing is worth before anything is tuned: with the schedules that are estimated
best."""

from __future__ import annotations

from tilewright.fusion.estimate_evaluator import estimating
from tilewright.fusion.run import decided, fitting, problem_of
from tilewright.targets.base import Target
from tilewright.tuning.fusion_interface import Decided, ToDecide
from tilewright.tuning.options import TuningOptions


def preview(options: TuningOptions, target: Target, network: str) -> Decided:
    """What the estimates would fuse in the network of that name, beside nothing and everything;
    each decision with what it saves. No trial is made, but whole networks are simulated. Raises
    `FusionError` for a target that runs no programs of ours, and what quantising raises."""
    options = options.model_copy(update={"fusion": "greedy"})
    asked = ToDecide(options, target, network, (), lambda _: [], lambda _: None)
    problem = problem_of(asked)
    evaluator = estimating(problem, options.seed)
    every = {"none": problem.none, "all": problem.all, "greedy": problem.greedy}
    named = {name: fitting(evaluator, labels) for name, labels in every.items()}
    return decided(asked, problem, evaluator, named, evaluator.count, by_estimates=True)
