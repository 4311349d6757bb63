"""One round after another: the order of the stages, and where a run that stopped goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from search import Batch, FinishedRound, History, RunLedger, extend_history, model_errors
from search.stages import Known
from targets.base import Measurements
from tasks import rounds
from tasks.session import emit, refresh_wanted, store
from tasks.store import Manifest, cache_key
from tasks.tracking import StepLog
from tuning.study import Study


@dataclass(frozen=True)
class Progress:
    """A run between two rounds. `open` is false once the explorer has nothing left to propose."""

    study: Study
    log: StepLog
    history: History
    state: Manifest
    lowered: int = 0
    open: bool = True

    @staticmethod
    def start(study: Study, log: StepLog, state: Manifest) -> Progress:
        return Progress(study, log, History.empty(study.problem.space), state)


def run_round(progress: Progress, ledger: RunLedger, trials: int) -> Progress:
    """All stages of one round, and its trials in the ledger."""
    study, state, index = progress.study, progress.state, progress.history.round
    n = min(study.batch, trials - len(progress.history))
    history = rounds.keep_history(progress.history)
    named = rounds.generate_candidates(study, index, state, history, n)
    kept = rounds.filter_candidates(study, index, state, history, named, n)
    if not kept.values["kept"]:
        return replace(progress, open=False)
    chosen = rounds.lower_candidates(study, index, state, history, kept, n)
    batch = rounds.read_batch(study, chosen)
    known = _known(study, ledger, batch)
    measured = rounds.read_measurements(rounds.simulate_batch(study, index, chosen, known))
    ledger.append(study.problem.space, index, batch, measured)
    after = extend_history(progress.history, batch, measured)
    learned = rounds.retrain_models(study, index, state, rounds.keep_history(after))
    finished = replace(
        progress, history=after, state=learned, lowered=progress.lowered + batch.lowered
    )
    _report(finished, batch, measured)
    return finished


def resume(progress: Progress, ledger: RunLedger, trials: int) -> Progress:
    """Take up the rounds the ledger holds; models come from the cache, or are trained again."""
    past: list[tuple[Batch, FinishedRound, History]] = []
    history = progress.history
    for done in ledger.finished():
        if len(history) >= trials:
            break
        rows = progress.study.target.lower(progress.study.workload, done.configs)
        batch = Batch(rows, {}, done.failed, done.lowered)
        history = extend_history(history, batch, done.measured)
        past.append((batch, done, history))
    if not past:
        return progress
    manifests = [rounds.keep_history(after) for _, _, after in past]
    state = _learned(progress.study, progress.state, manifests)
    for batch, done, after in past:
        progress = replace(
            progress, history=after, state=state, lowered=progress.lowered + done.lowered
        )
        _report(progress, batch, done.measured)
    return progress


def _learned(study: Study, state: Manifest, histories: list[Manifest]) -> Manifest:
    """The memory after these rounds. Only the last one's data is needed, if all are known."""
    first, found = state, None
    for history in histories:
        inputs = rounds.retrain_inputs(study, state, history)
        key = cache_key("retrain_models", 1, study.target.fingerprint, inputs)
        last = history is histories[-1]
        found = None if refresh_wanted() else store().find("retrain_models", key, with_data=last)
        if found is None:
            break
        state = found
    if found is not None:
        return found
    for index, history in enumerate(histories):
        first = rounds.retrain_models(study, index, first, history)
    return first


def _known(study: Study, ledger: RunLedger, batch: Batch) -> Known:
    """What any run has measured of this batch already."""
    known = ledger.known(study.problem.space)
    flat = study.problem.space.ravel(batch.rows.configs)
    return {int(i): known[int(i)] for i in flat if int(i) in known}


def _report(progress: Progress, batch: Batch, measured: Measurements) -> None:
    history = progress.history
    best = history.best
    best_cycles = float("nan") if best is None else float(history.cycles[best])
    figures = {
        "best_cycles": best_cycles,
        "valid_share": float(np.mean(measured.valid)),
        "trials": float(len(history)),
        "lowered": float(batch.lowered),
        "failed_compiles": float(len(batch.failed)),
        **model_errors(batch.scores, measured),
    }
    progress.log.add(history.round - 1, figures)
    emit(
        "round",
        id=progress.study.workload.id,
        round=history.round - 1,
        trials=len(history),
        best=None if best is None else int(history.cycles[best]),
        valid_share=float(history.valid.mean()),
    )
