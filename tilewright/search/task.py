"""The task of tuning a workload, and the key under which its trials are stored."""

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
"""ID of a workload, fingerprint of a target and ID of a run."""


class Task(Protocol):
    """A workload, a target and a tuner: the fixed input of every step of a round.

    In a run of the command it is a `tuning.tuning_task.TuningTask`, on a target such as
    `targets.vta.target.VtaTarget`, with the tuner `search.tuners.ml2tuner.ML2Tuner` unless another
    tuner is chosen.
    """

    @property
    def target(self) -> Target:
        """Target that compiles and measures the programs."""

    @property
    def explorer(self) -> Explorer:
        """Tuner of the task."""

    @property
    def problem(self) -> Problem:
        """Problem that the tuner solves: the workload and its space, with a seed."""


@dataclass(frozen=True)
class GivenTask:
    """A task whose target, tuner and problem already exist as objects.

    In contrast, `tuning.tuning_task.TuningTask` refers to its target and tuner by name.

    Attributes:
        target: target that compiles and measures the programs.
        explorer: tuner of the task.
        problem: problem that the tuner solves.
    """

    target: Target
    explorer: Explorer
    problem: Problem


def make_task(target: Target, workload: Workload, explorer: Explorer, seed: int) -> GivenTask:
    """Return the task of tuning a workload, with its target and tuner as objects.

    Args:
        target: target that compiles and measures the programs.
        workload: the workload to tune.
        explorer: the tuner.
        seed: seed of all random generators.

    Raises:
        WorkloadError: the target has no schedule for the workload.
    """
    return GivenTask(target, explorer, problem_of(target, workload, seed))


def problem_of(target: Target, workload: Workload, seed: int) -> Problem:
    """Return the tuning problem of a workload on a target.

    It includes closed-form estimates and the cost of trials, if the target offers them.

    Raises:
        WorkloadError: the target has no schedule for the workload.
    """
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
    """Return the ID of a run: a hash of the tuner, its options, the seed and the batch size."""
    options = explorer.options.model_dump(mode="json")
    text = json.dumps([explorer.name, options, seed, batch], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shared_key(key: RunKey) -> RunKey:
    """Return the key of a run that several processes share.

    It differs from the key of a run by one process with the same settings, because only the latter
    can be repeated trial by trial.
    """
    workload, target, run = key
    return workload, target, f"{run}-shared"
