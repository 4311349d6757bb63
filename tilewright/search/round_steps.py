"""Implements the steps of a tuning round: plain functions of plain data.

`flows.tuning` calls them in this order, and a runner (`search.runner`) performs each call.

    begin → generate_candidates → filter_candidates → lower_candidates → simulate_batch
        → retrain_models
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.thread_pools import one_thread
from tilewright.search.explorer import BatchChoice, Candidates, ExplorerState, History
from tilewright.search.setting import Setting
from tilewright.targets.base import Configs, Lowered, Measurements, Ragged, Status


class Trial(NamedTuple):
    """A measurement at hand. `seconds` is NaN where it is not valid; `repeats` are those of every
    repetition, where there were any."""

    status: Status
    reason: str
    cycles: int
    seconds: float
    repeats: tuple[float, ...] = ()


Known = Mapping[int, Trial]
"""Measurements at hand by flat index."""


@dataclass(frozen=True)
class Batch:
    """The rows of a round that are measured, with their programs, and what else it lowered.

    `failed` (m, knobs) are configs lowered beyond the batch that did not compile, `lowered` counts
    all lowered beyond the batch. `reasons` says of each of all that failed why; it is of the batch
    that was just lowered, and empty of one that was stored. `compiled` are the rows lowered beyond
    the batch that stay candidates, without their programs; None if the tuner keeps none.
    """

    rows: Lowered
    scores: dict[str, NDArray[np.float64]]
    failed: Configs
    lowered: int
    reasons: tuple[str, ...] = ()
    compiled: Lowered | None = None


@one_thread
def begin(setting: Setting, state: ExplorerState) -> ExplorerState:
    """What the tuner knows before the first round."""
    return setting.explorer.begin(setting.problem, state)


@one_thread
def generate_candidates(
    setting: Setting, state: ExplorerState, history: History, n: int
) -> Candidates:
    """The configs the tuner would try next, best first. Empty when the space is exhausted."""
    return setting.explorer.generate(setting.problem, state, history, n)


@one_thread
def filter_candidates(
    setting: Setting, state: ExplorerState, history: History, candidates: Candidates, n: int
) -> Candidates:
    """Model V's veto: the candidates worth lowering."""
    if not len(candidates):
        return candidates
    return setting.explorer.veto(setting.problem, state, history, candidates, n)


def lower_candidates(
    setting: Setting, state: ExplorerState, history: History, kept: Candidates, n: int
) -> Batch:
    """Lower all of them, and choose the `n` to measure. Failures to lower are kept as rows."""
    lowered = setting.target.lower(setting.problem.workload, kept.configs)
    return choose_batch(setting, state, history, lowered, n)


@one_thread
def choose_batch(
    setting: Setting, state: ExplorerState, history: History, lowered: Lowered, n: int
) -> Batch:
    """The batch to measure: Model A's re-ranking, where the tuner has one."""
    choice = (
        setting.explorer.choose(setting.problem, state, history, lowered, n)
        if len(lowered)
        else _nothing()
    )
    beyond = np.ones(len(lowered), dtype=np.bool_)
    beyond[choice.rows] = False
    rows = lowered.rows(choice.rows)
    if choice.earlier is not None and len(choice.earlier):
        # Programs are not kept from round to round: each of these is compiled a second time.
        again = setting.target.lower(setting.problem.workload, choice.earlier)
        rows = rows.before(again) if len(rows) else again
    kept = replace(lowered.rows(beyond & lowered.ok), programs={}) if choice.keep_compiled else None
    return Batch(
        rows=rows,
        scores=choice.scores,
        failed=lowered.configs[beyond & ~lowered.ok],
        lowered=int(beyond.sum()),
        reasons=tuple(map(str, lowered.reasons[~lowered.ok])),
        compiled=kept,
    )


def simulate_batch(setting: Setting, history: History, batch: Batch, known: Known) -> Measurements:
    """Measure the batch that follows `history`. Rows that `known` holds are not measured again."""
    flat = setting.problem.space.ravel(batch.rows.configs)
    unknown = np.array([int(i) not in known for i in flat], dtype=np.bool_)
    if unknown.all():
        return setting.target.measure(batch.rows)
    held = measurements_of([known[int(i)] for i in flat[~unknown]])
    if not unknown.any():
        return held
    return _merged(unknown, setting.target.measure(batch.rows.rows(unknown)), held)


@one_thread
def retrain_models(setting: Setting, state: ExplorerState, history: History) -> ExplorerState:
    """Models P, V and A after the round that `history` ends with."""
    return setting.explorer.learn(setting.problem, state, history)


def trial_at(measured: Measurements, row: int) -> Trial:
    """One row of measurements."""
    repeats = () if measured.repeats is None else tuple(map(float, measured.repeats[row]))
    return Trial(
        measured.status[row], str(measured.reason[row]), int(measured.cycles[row]),
        float(measured.seconds[row]), repeats,
    )  # fmt: skip


def measurements_of(trials: Sequence[Trial]) -> Measurements:
    """One row a trial; counters are not kept."""
    repeated = any(trial.repeats for trial in trials)
    return Measurements(
        status=np.array([trial.status for trial in trials], dtype=object),
        reason=np.array([trial.reason for trial in trials], dtype=object),
        cycles=np.array([trial.cycles for trial in trials], dtype=np.int64),
        seconds=np.array([trial.seconds for trial in trials], dtype=np.float64),
        repeats=Ragged.of([np.array(t.repeats) for t in trials]) if repeated else None,
    )


def extend_history(history: History, batch: Batch, measured: Measurements) -> History:
    """The history with the finished round."""
    return history.after(batch.rows, measured, batch.failed, batch.compiled)


def model_errors(
    scores: Mapping[str, NDArray[np.float64]], measured: Measurements
) -> dict[str, float]:
    """How wrong the models were on a batch before they saw it, from their `scores` (n,) by role:
    `P_rmse`, `A_rmse` in log2 latency over its valid rows, `V_brier` the mean squared error of the
    chance. Absent where unknown."""
    valid, errors = measured.valid, {}
    for name in ("P", "A"):
        if name in scores and valid.any():
            error = scores[name][valid] - np.log2(measured.latency[valid])
            errors[f"{name}_rmse"] = float(np.sqrt(np.mean(error**2)))
    if "V" in scores and len(valid):
        errors["V_brier"] = float(np.mean((scores["V"] - valid) ** 2))
    return {name: error for name, error in errors.items() if np.isfinite(error)}


def _merged(fresh: NDArray[np.bool_], new: Measurements, held: Measurements) -> Measurements:
    """Rows of `new` where `fresh` is set, the others of `held`."""
    order = np.argsort(np.concatenate([np.flatnonzero(fresh), np.flatnonzero(~fresh)]))
    both = Measurements(
        np.concatenate([new.status, held.status]),
        np.concatenate([new.reason, held.reason]),
        np.concatenate([new.cycles, held.cycles]),
        np.concatenate([new.seconds, held.seconds]),
        {
            name: np.concatenate([values, np.full(len(held), -1, dtype=np.int64)])
            for name, values in new.counters.items()
        },
        _repeats(new, held),
    )
    return both.rows(order)


def _repeats(*parts: Measurements) -> Ragged | None:
    if all(part.repeats is None for part in parts):
        return None
    nothing = np.empty(0)
    return Ragged.of(
        [
            nothing if part.repeats is None else part.repeats[row]
            for part in parts
            for row in range(len(part))
        ]
    )


def _nothing() -> BatchChoice:
    return BatchChoice(np.empty(0, dtype=np.int64))
