"""The task of tuning one workload, and the key under which its trials are stored."""

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
"""Key of a run in the trial store: ID of the workload, fingerprint of the target and ID of the
run."""


class Task(Protocol):
    """A workload, a target and a tuner: the fixed input of every step of a round.

    In a run of the command line, the task is a `tuning.tuning_task.TuningTask`. Its target is for
    example `targets.vta.target.VtaTarget`. Its default tuner is `search.tuners.ml2tuner.ML2Tuner`.
    """

    @property
    def target(self) -> Target:
        """Target that compiles and measures the programs."""

    @property
    def explorer(self) -> Explorer:
        """Tuner of the task."""

    @property
    def problem(self) -> Problem:
        """Problem that the tuner solves: the workload, its search space and a seed."""


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
    """Build the task of tuning a workload from a target and a tuner.

    Args:
        target: target that compiles and measures the programs.
        workload: the workload to tune.
        explorer: the tuner.
        seed: seed of all random generators.

    Raises:
        WorkloadError: the target has no schedule space for the workload.
    """
    return GivenTask(target, explorer, problem_of(target, workload, seed))


def problem_of(target: Target, workload: Workload, seed: int) -> Problem:
    """Build the tuning problem of a workload on a target.

    The problem includes closed-form estimates and the cost of trials, if the target offers them.

    Args:
        target: target that compiles and measures the programs.
        workload: the workload to tune.
        seed: seed of all random generators.

    Raises:
        WorkloadError: the target has no schedule space for the workload.
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
    """Compute the ID of a run: a hash of the tuner, its options, the seed and the batch size.

    Args:
        explorer: the tuner.
        seed: seed of all random generators.
        batch: number of trials per round.

    Returns:
        Twelve hexadecimal digits.
    """
    options = explorer.options.model_dump(mode="json")
    text = json.dumps([explorer.name, options, seed, batch], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shared_key(key: RunKey) -> RunKey:
    """Return the key of the shared variant of a run, on which several processes work.

    The key differs from that of a run by a single process with the same settings. Only a run by a
    single process is reproducible trial by trial.

    Args:
        key: key of the run by a single process.
    """
    workload, target, run = key
    return workload, target, f"{run}-shared"
