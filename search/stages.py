"""The stages of a round as functions on plain data. `search.loop` calls them in order in one
process; a workflow engine may call each where it likes and store what lies between.

    generate_candidates → filter_candidates → lower_candidates → choose_candidates
        → measure_batch → extend_history → retrain
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.explorer import Candidates, Choice, Explorer, ExplorerState, History, Problem
from search.threads import one_thread
from targets.base import Configs, Lowered, Measurements, Target
from targets.capabilities import Estimates, capability
from targets.workload import Workload

Known = Mapping[int, tuple[str, str, int, float]]
"""Measurements at hand: flat index → status, reason, cycles, seconds."""


@dataclass(frozen=True)
class Batch:
    """The rows of a round that are measured, and what else the round lowered.

    `failed` (m, knobs) are configs lowered beyond the batch that did not compile, `lowered` counts
    all lowered beyond the batch.
    """

    rows: Lowered
    scores: dict[str, NDArray[np.float64]]
    failed: Configs
    lowered: int


def problem_of(target: Target, workload: Workload, seed: int) -> Problem:
    """The problem a target poses for a workload; with closed-form estimates if it offers any."""
    estimates = capability(target, Estimates)
    return Problem(
        workload,
        target.space(workload),
        seed,
        target.hardware_features(),
        None if estimates is None else lambda configs: estimates.estimate(workload, configs),
    )


@one_thread
def generate_candidates(
    explorer: Explorer, problem: Problem, state: ExplorerState, history: History, n: int
) -> Candidates:
    """What the explorer would try next, best first. Empty when the space is exhausted."""
    return explorer.generate(problem, state, history, n)


@one_thread
def filter_candidates(
    explorer: Explorer,
    problem: Problem,
    state: ExplorerState,
    history: History,
    candidates: Candidates,
    n: int,
) -> Candidates:
    """Model V's veto: the candidates worth lowering."""
    return explorer.veto(problem, state, history, candidates, n) if len(candidates) else candidates


def lower_candidates(target: Target, problem: Problem, candidates: Candidates) -> Lowered:
    """Compile all of them; failures are rows."""
    return target.lower(problem.workload, candidates.configs)


@one_thread
def choose_candidates(
    explorer: Explorer,
    problem: Problem,
    state: ExplorerState,
    history: History,
    lowered: Lowered,
    n: int,
) -> Batch:
    """The batch to measure: Model A's re-ranking, where the explorer has one."""
    choice = explorer.choose(problem, state, history, lowered, n) if len(lowered) else _nothing()
    beyond = np.ones(len(lowered), dtype=np.bool_)
    beyond[choice.rows] = False
    return Batch(
        rows=lowered.rows(choice.rows),
        scores=choice.scores,
        failed=lowered.configs[beyond & ~lowered.ok],
        lowered=int(beyond.sum()),
    )


def measure_batch(target: Target, problem: Problem, rows: Lowered, known: Known) -> Measurements:
    """Run the batch; rows that `known` holds are not run again."""
    flat = problem.space.ravel(rows.configs)
    fresh = np.array([int(i) not in known for i in flat], dtype=np.bool_)
    if fresh.all():
        return target.measure(rows)
    measured = target.measure(rows.rows(fresh)) if fresh.any() else _unmeasured(0)
    merged = _unmeasured(len(rows), tuple(measured.counters))
    merged.status[fresh], merged.reason[fresh] = measured.status, measured.reason
    merged.cycles[fresh], merged.seconds[fresh] = measured.cycles, measured.seconds
    for name, values in measured.counters.items():
        merged.counters[name][fresh] = values
    for row in np.flatnonzero(~fresh):
        status, reason, cycles, seconds = known[int(flat[row])]
        merged.status[row], merged.reason[row] = status, reason
        merged.cycles[row], merged.seconds[row] = cycles, seconds
    return merged


def extend_history(history: History, batch: Batch, measured: Measurements) -> History:
    """The history with the finished round."""
    return history.after(batch.rows, measured, batch.failed)


@one_thread
def retrain(
    explorer: Explorer, problem: Problem, state: ExplorerState, history: History
) -> ExplorerState:
    """The models after the round that `history` ends with."""
    return explorer.learn(problem, state, history)


def model_errors(
    scores: Mapping[str, NDArray[np.float64]], measured: Measurements
) -> dict[str, float]:
    """How wrong the models were on a batch before they saw it: `P_rmse`, `A_rmse` in log2 cycles
    over its valid rows, `V_brier` the mean squared error of the chance. Absent where unknown."""
    valid, errors = measured.valid, {}
    for name in ("P", "A"):
        if name in scores and valid.any():
            error = scores[name][valid] - np.log2(measured.cycles[valid])
            errors[f"{name}_rmse"] = float(np.sqrt(np.mean(error**2)))
    if "V" in scores and len(valid):
        errors["V_brier"] = float(np.mean((scores["V"] - valid) ** 2))
    return {name: error for name, error in errors.items() if np.isfinite(error)}


def _nothing() -> Choice:
    return Choice(np.empty(0, dtype=np.int64))


def _unmeasured(n: int, counters: tuple[str, ...] = ()) -> Measurements:
    return Measurements(
        status=np.empty(n, dtype=object),
        reason=np.empty(n, dtype=object),
        cycles=np.full(n, -1, dtype=np.int64),
        seconds=np.full(n, np.nan),
        counters={name: np.full(n, -1, dtype=np.int64) for name in counters},
    )
