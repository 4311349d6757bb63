"""Defines the task of tuning a workload, and the key of its trials."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tilewright.search.explorer import Explorer
from tilewright.search.problem import Problem
from tilewright.targets.base import Target
from tilewright.targets.capabilities import UNKNOWN_COSTS, Estimates, HasCosts, capability
from tilewright.targets.workload import Workload

RunKey = tuple[str, str, str]
"""ID of a workload, fingerprint of a target, ID of a run."""


class Task(Protocol):
    """A workload that is tuned on a target by a tuner: what every step of a round needs beside the
    session. In a run of the command it is a `tuning.tuning_task.TuningTask`, on a target such as
    `targets.vta.target.VtaTarget`, tuned by `search.tuners.ml2tuner.ML2Tuner` unless another tuner
    is chosen."""

    @property
    def target(self) -> Target:
        """What compiles and measures."""

    @property
    def explorer(self) -> Explorer:
        """The tuner."""

    @property
    def problem(self) -> Problem:
        """What the tuner is asked: the workload and its space, with a seed."""


@dataclass(frozen=True)
class GivenTask:
    """A task of objects that are at hand. `tuning.tuning_task.TuningTask` names them instead."""

    target: Target
    explorer: Explorer
    problem: Problem


def make_task(target: Target, workload: Workload, explorer: Explorer, seed: int) -> GivenTask:
    """Return the task of tuning a workload. Raises `WorkloadError` if the target has no schedule
    for it."""
    return GivenTask(target, explorer, problem_of(target, workload, seed))


def problem_of(target: Target, workload: Workload, seed: int) -> Problem:
    """The problem a target poses for a workload; with closed-form estimates and with what trials
    cost if it knows. Raises `WorkloadError` if the target has no schedule for it."""
    estimates, priced = capability(target, Estimates), capability(target, HasCosts)
    return Problem(
        workload,
        target.space(workload),
        seed,
        target.hardware_features(),
        None if estimates is None else partial(estimates.estimate, workload),
        UNKNOWN_COSTS if priced is None else priced.costs(workload),
        target.deterministic,
    )


def run_id(explorer: Explorer, seed: int, batch: int) -> str:
    """What makes two runs the same run: the tuner, its options, the seed and the batch size."""
    options = explorer.options.model_dump(mode="json")
    text = json.dumps([explorer.name, options, seed, batch], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shared_key(key: RunKey) -> RunKey:
    """Return the key of a run that several processes make. A run of one process with the same
    settings has another key, because it can be repeated trial by trial."""
    workload, target, run = key
    return workload, target, f"{run}-shared"
