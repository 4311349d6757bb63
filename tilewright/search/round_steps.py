"""The steps of a tuning round, as plain functions of plain data.

`flows.tuning` executes the steps in this order through a runner (`search.runner`). Each step takes
a task and its session, or the batch of the round.

    begin_models → retrain_models → generate_candidates → filter_candidates → lower_and_choose
        → measure_batch

After the last step, the record of the run (`search.run_record`) stores the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.core.thread_pools import on_one_thread
from tilewright.search.explorer import BatchChoice, Candidates, ExplorerState
from tilewright.search.session import Batch, Session
from tilewright.search.task import Task
from tilewright.targets.base import Lowered, Measurements, Ragged, Status


class Trial(NamedTuple):
    """The measurement of one config.

    Attributes:
        status: outcome of the measurement: `valid`, or the type of failure
            (`targets.base.STATUSES`).
        reason: reason for a failure, or "".
        cycles: measured cycles, or -1 if the target does not count cycles.
        seconds: measured seconds; NaN if the trial is not valid.
        repeats: seconds of each repetition; empty if the measurement was not repeated.
    """

    status: Status
    reason: str
    cycles: int
    seconds: float
    repeats: tuple[float, ...] = ()


Known = Mapping[int, Trial]
"""Existing trials by the flat index of their config."""


def begin_models(task: Task, session: Session) -> ExplorerState:
    """Prepare the tuner for its first round, and return its state.

    Args:
        task: the workload, the target and the tuner.
        session: trials and models before the first round.
    """
    with on_one_thread():
        return task.explorer.begin(task.problem, session.models)


def retrain_models(task: Task, session: Session) -> ExplorerState:
    """Retrain the tuner's models on the oldest round from which they have not learned yet.

    Args:
        task: the workload, the target and the tuner.
        session: trials and models so far; `session.unlearned` must not be empty.

    Returns:
        The tuner's state after training.
    """
    with on_one_thread():
        return task.explorer.learn(task.problem, session.models, session.unlearned[0])


def generate_candidates(task: Task, session: Session, n: int) -> Candidates:
    """Ask the tuner for candidates for the next batch, best first.

    Args:
        task: the workload, the target and the tuner.
        session: trials and models so far.
        n: batch size; the tuner may return more candidates.

    Returns:
        The candidates; empty if the space is exhausted.
    """
    with on_one_thread():
        return task.explorer.generate(task.problem, session.models, session.history, n)


def filter_candidates(task: Task, session: Session, candidates: Candidates, n: int) -> Candidates:
    """Remove the candidates that the tuner vetoes because they are unlikely to be valid.

    The tuner's validity classifier, Model V, predicts the probability of being valid.

    Args:
        task: the workload, the target and the tuner.
        session: trials and models so far.
        candidates: the tuner's candidates, best first.
        n: batch size.

    Returns:
        The candidates to lower, best first.
    """
    if not len(candidates):
        return candidates
    with on_one_thread():
        return task.explorer.veto(task.problem, session.models, session.history, candidates, n)


def lower_and_choose(task: Task, session: Session, kept: Candidates, n: int) -> Batch:
    """Lower the candidates, and choose at most `n` configs to measure.

    Args:
        task: the workload, the target and the tuner.
        session: trials and models so far.
        kept: the candidates that remain after the veto.
        n: batch size.

    Returns:
        The batch to measure. A chosen config that did not compile is a row of the batch and becomes
        a failed trial.
    """
    lowered = task.target.lower(task.problem.workload, kept.configs)
    return replace(choose_batch(task, session, lowered, n), vetoed=kept.vetoed)


def choose_batch(task: Task, session: Session, lowered: Lowered, n: int) -> Batch:
    """Choose at most `n` configs to measure from the lowered configs.

    A tuner may also choose configs that compiled in earlier rounds but were not measured. These
    configs are lowered again.

    Args:
        task: the workload, the target and the tuner.
        session: trials and models so far.
        lowered: the lowered configs of this round.
        n: batch size.

    Returns:
        The batch to measure.
    """
    choice = BatchChoice(np.empty(0, dtype=np.int64))
    if len(lowered):
        with on_one_thread():
            choice = task.explorer.choose(task.problem, session.models, session.history, lowered, n)
    unmeasured = np.ones(len(lowered), dtype=np.bool_)
    unmeasured[choice.rows] = False
    rows = lowered.rows(choice.rows)
    if choice.earlier is not None and len(choice.earlier):
        # Programs are not kept from round to round, so these configs are compiled a second time.
        again = task.target.lower(task.problem.workload, choice.earlier)
        rows = rows.followed_by(again) if len(rows) else again
    kept = None
    if choice.keep_compiled:
        kept = replace(lowered.rows(unmeasured & lowered.ok), programs={})
    return Batch(
        rows=rows,
        scores=choice.scores,
        unmeasured_failed=lowered.configs[unmeasured & ~lowered.ok],
        unmeasured_count=int(unmeasured.sum()),
        reasons=tuple(map(str, lowered.reasons[~lowered.ok])),
        unmeasured_compiled=kept,
    )


def measure_batch(task: Task, batch: Batch, known: Known) -> Measurements:
    """Measure the configs of a batch on the target.

    Args:
        task: the workload, the target and the tuner.
        batch: the configs to measure, with their programs.
        known: existing trials by the flat index of their config. These configs are not measured
            again.

    Returns:
        Measurements with one row per config of the batch.
    """
    flat = task.problem.space.ravel(batch.rows.configs)
    unknown = np.array([int(i) not in known for i in flat], dtype=np.bool_)
    if unknown.all():
        return task.target.measure(batch.rows)
    held = measurements_of([known[int(i)] for i in flat[~unknown]])
    if not unknown.any():
        return held
    return _merge_measurements(unknown, task.target.measure(batch.rows.rows(unknown)), held)


def trial_at(measured: Measurements, row: int) -> Trial:
    """Convert one row of measurements to a trial.

    Args:
        measured: measurements of several configs.
        row: index of the row.
    """
    repeats = () if measured.repeats is None else tuple(map(float, measured.repeats[row]))
    return Trial(
        measured.status[row], str(measured.reason[row]), int(measured.cycles[row]),
        float(measured.seconds[row]), repeats,
    )  # fmt: skip


def measurements_of(trials: Sequence[Trial]) -> Measurements:
    """Convert trials to measurements.

    Args:
        trials: trials of several configs.

    Returns:
        Measurements with one row per trial, without hardware counters.
    """
    repeated = any(trial.repeats for trial in trials)
    return Measurements(
        status=np.array([trial.status for trial in trials], dtype=object),
        reason=np.array([trial.reason for trial in trials], dtype=object),
        cycles=np.array([trial.cycles for trial in trials], dtype=np.int64),
        seconds=np.array([trial.seconds for trial in trials], dtype=np.float64),
        repeats=Ragged.from_rows([np.array(t.repeats) for t in trials]) if repeated else None,
    )


def model_errors(
    scores: Mapping[str, NDArray[np.float64]], measured: Measurements
) -> dict[str, float]:
    """Compute the errors of the models' predictions for a measured batch.

    Args:
        scores: predictions by role of the model, each of shape (n,).
        measured: measurements of the batch.

    Returns:
        `P_rmse` and `A_rmse`, the root mean squared errors in log2 latency over the valid rows, and
        `V_brier`, the mean squared error of the predicted probability. Errors that cannot be
        computed are left out.
    """
    valid, errors = measured.valid, {}
    for name in ("P", "A"):
        if name in scores and valid.any():
            error = scores[name][valid] - np.log2(measured.latency[valid])
            errors[f"{name}_rmse"] = float(np.sqrt(np.mean(error**2)))
    if "V" in scores and len(valid):
        errors["V_brier"] = float(np.mean((scores["V"] - valid) ** 2))
    return {name: error for name, error in errors.items() if np.isfinite(error)}


def _merge_measurements(
    fresh: NDArray[np.bool_], new: Measurements, held: Measurements
) -> Measurements:
    """Combine new and existing measurements of a batch's configs in the order of the batch.

    Args:
        fresh: bool array with one entry per row of the batch: True for rows of `new`, False for
            rows of `held`.
        new: measurements that were made now.
        held: measurements that existed before. They have no hardware counters, so -1 is filled in.

    Returns:
        Measurements with one row per config of the batch.
    """
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
    return Ragged.from_rows(
        [
            nothing if part.repeats is None else part.repeats[row]
            for part in parts
            for row in range(len(part))
        ]
    )
