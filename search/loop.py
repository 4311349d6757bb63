"""A tuning run as a plain loop: no server, no files but the ledger, no terminal."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from search import stages
from search.explorer import Candidates, Explorer, ExplorerState, History, Problem
from search.ledger import FinishedRound, Ledger, RunLedger
from targets.base import Configs, Measurements, Target
from targets.errors import TilewrightError
from targets.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """What one round did. `lowered` and `failed_compiles` count configs beyond the trials."""

    index: int
    candidates: int  # that the explorer named
    vetoed: int  # of those looked at, by Model V
    lowered: int
    failed_compiles: int
    configs: Configs  # the trials, in order
    measured: Measurements
    best_cycles: int | None  # of the whole run so far
    best_config: Configs | None  # shape (knobs,)
    model_errors: dict[str, float] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    reused: bool = False  # read from the ledger, not done now


def tune(
    target: Target,
    workload: Workload,
    explorer: Explorer,
    *,
    trials: int,
    batch: int = 8,
    seed: int = 0,
    ledger: Ledger | None = None,
    on_round: Callable[[Round], None] | None = None,
    state: ExplorerState | None = None,
) -> Iterator[Round]:
    """Tune one workload; yields each round when it is done, those a ledger already holds first.

    Stops after `trials` measurements or when the explorer has nothing left. `state` warm-starts
    the explorer. Raises `TilewrightError` if `trials` or `batch` is below 1.
    """
    if trials < 1 or batch < 1:
        raise TilewrightError(f"trials ({trials}) and batch ({batch}) must be at least 1")
    problem = stages.problem_of(target, workload, seed)
    session = Session(target, problem, explorer, state or ExplorerState())
    run = (
        None
        if ledger is None
        else ledger.run(workload.id, target.fingerprint, run_id(explorer, seed, batch))
    )
    for done in run.finished() if run else ():
        yield _tell(session.restore(done), on_round)
    while (left := trials - len(session.history)) > 0:
        finished = session.advance(min(batch, left), run)
        if finished is None:
            return
        yield _tell(finished, on_round)


def run_id(explorer: Explorer, seed: int, batch: int) -> str:
    """What makes two runs the same run: the tuner, its options, the seed and the batch size."""
    options = explorer.options.model_dump(mode="json")
    text = json.dumps([explorer.name, options, seed, batch], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Session:
    """A run in progress: the problem, the history and the memory, moved on round by round."""

    def __init__(
        self, target: Target, problem: Problem, explorer: Explorer, state: ExplorerState
    ) -> None:
        self.target = target
        self.problem = problem
        self.explorer = explorer
        self.state = explorer.begin(problem, state)
        self.history = History.empty(problem.space)

    def advance(self, n: int, run: RunLedger | None = None) -> Round | None:
        """One round of up to `n` trials; None if the explorer has nothing left to propose."""
        explorer, problem, history, state = self.explorer, self.problem, self.history, self.state
        clock = Stopwatch()
        named = clock.time(
            "generate", lambda: stages.generate_candidates(explorer, problem, state, history, n)
        )
        kept = clock.time(
            "filter", lambda: stages.filter_candidates(explorer, problem, state, history, named, n)
        )
        if not len(kept):
            return None
        lowered = clock.time("lower", lambda: stages.lower_candidates(self.target, problem, kept))
        batch = clock.time(
            "choose",
            lambda: stages.choose_candidates(explorer, problem, state, history, lowered, n),
        )
        known = run.known(problem.space) if run else {}
        measured = clock.time(
            "measure", lambda: stages.measure_batch(self.target, problem, batch.rows, known)
        )
        if run:
            clock.time("record", lambda: run.append(problem.space, history.round, batch, measured))
        self.history = stages.extend_history(history, batch, measured)
        self.state = clock.time(
            "retrain", lambda: stages.retrain(explorer, problem, state, self.history)
        )
        return self._round(named, kept.vetoed, batch, measured, clock.seconds)

    def restore(self, done: FinishedRound) -> Round:
        """One round from the ledger: nothing is proposed or measured, the models are refitted."""
        rows = self.target.lower(self.problem.workload, done.configs)
        batch = stages.Batch(rows, {}, done.failed, done.lowered)
        self.history = stages.extend_history(self.history, batch, done.measured)
        self.state = stages.retrain(self.explorer, self.problem, self.state, self.history)
        return self._round(Candidates(done.configs), 0, batch, done.measured, {}, reused=True)

    def _round(
        self,
        named: Candidates,
        vetoed: int,
        batch: stages.Batch,
        measured: Measurements,
        seconds: dict[str, float],
        reused: bool = False,
    ) -> Round:
        history, best = self.history, self.history.best
        return Round(
            index=history.round - 1,
            candidates=len(named),
            vetoed=vetoed,
            lowered=batch.lowered,
            failed_compiles=len(batch.failed),
            configs=batch.rows.configs,
            measured=measured,
            best_cycles=None if best is None else int(history.cycles[best]),
            best_config=None if best is None else history.configs[best],
            model_errors=stages.model_errors(batch.scores, measured),
            stage_seconds=seconds,
            reused=reused,
        )


class Stopwatch:
    """Wall-clock seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, stage: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.seconds[stage] = time.perf_counter() - start
        return result


def _tell(done: Round, on_round: Callable[[Round], None] | None) -> Round:
    if on_round is not None:
        on_round(done)
    return done
