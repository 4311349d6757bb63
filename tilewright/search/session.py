"""Keeps the data of a run in progress: what was tried, what the tuner knows, what is unlearned.

The steps that move it on are called in `flows.tuning`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilewright.search import round_steps
from tilewright.search.explorer import ExplorerState, History
from tilewright.search.round_steps import Batch
from tilewright.search.run_record import FinishedRound
from tilewright.search.runner import LocalRunner, Result
from tilewright.search.setting import Setting
from tilewright.targets.base import Configs, Measurements
from tilewright.targets.capabilities import Latency


@dataclass(frozen=True)
class Round:
    """What one round did. `lowered` and `failed_compiles` count configs beyond the trials; `best`
    is the fastest of the whole run so far, None if nothing was valid."""

    index: int
    candidates: int  # that the explorer named
    vetoed: int  # of those looked at, by Model V
    lowered: int
    failed_compiles: int
    configs: Configs  # the trials, in order
    measured: Measurements
    best: Latency | None
    best_config: Configs | None  # shape (knobs,)
    model_errors: dict[str, float] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    reused: bool = False  # read from the trial store, not done now

    @property
    def best_latency(self) -> float | None:
        """In the unit of `Measurements.latency`: cycles where the target counts them."""
        if self.best is None or self.best.cycles > 0:
            return self.best_cycles
        return self.best.seconds

    @property
    def best_cycles(self) -> int | None:
        """None on a target that counts none, too."""
        return None if self.best is None or self.best.cycles < 0 else self.best.cycles


@dataclass(frozen=True)
class Proposal:
    """A batch to measure, and how it came about."""

    result: Result[Batch]
    candidates: int
    vetoed: int
    stage_seconds: dict[str, float]

    @property
    def batch(self) -> Batch:
        """The batch itself."""
        return self.result.value


@dataclass
class TrialRequest:
    """A workload that shares its trials waits for the next round, or has nothing left to try.

    Resuming it sets `granted`, 0 to end its rounds, and `made`: the trials of all workloads
    until then. `baseline` is the latency without trials, in the unit of `History.latency`, where it
    is the same each time.
    """

    history: History
    exhausted: bool = False
    baseline: float | None = None
    granted: int = 0
    made: int = 0


class Session:
    """A run in progress: the problem, the runner of its steps, the history, and what the tuner
    knows."""

    def __init__(
        self, setting: Setting, state: ExplorerState | None = None, run: LocalRunner | None = None
    ) -> None:
        self.setting = setting
        self.run = run or LocalRunner()
        self.history = History.empty(setting.problem.space)
        self.start = state or ExplorerState()
        self.state: Result[ExplorerState] | None = None
        self.unlearned: list[History] = []
        self.learning = 0.0  # seconds, since the last proposal
        self._kept: Result[History] | None = None
        self._settled: dict[int, tuple[Proposal, Measurements]] = {}

    def learned(self, state: Result[ExplorerState], histories: Sequence[Result[History]]) -> None:
        """Take up what the tuner knows now, after these histories."""
        self.state, self.unlearned = state, []
        if histories:
            self._kept = histories[-1]

    def history_for_steps(self, pending: Configs | None = None) -> Result[History]:
        """What steps get: the history that is stored already, if it is the present one; with
        configs that are `pending`, shape (p, knobs)."""
        if pending is not None:
            return self.run.keep(replace(self.history, pending=pending))
        if self._kept is None or self._kept.value is not self.history:
            self._kept = self.run.keep(self.history)
        return self._kept

    def finish(self, proposal: Proposal, measured: Measurements) -> Round:
        """Take up a measured batch; it is learned from before the next proposal."""
        self.history = round_steps.extend_history(self.history, proposal.batch, measured)
        self.unlearned.append(self.history)
        return self._round(proposal, measured, self.history)

    def settled(self, index: int, proposal: Proposal, measured: Measurements) -> None:
        """Remember how a round came about that is not the next one: others were faster."""
        self._settled[index] = proposal, measured

    def take_up(self, finished: Sequence[FinishedRound]) -> list[Round]:
        """Rounds of the record: nothing is proposed or measured, models are refitted when they are
        needed."""
        past: list[tuple[Proposal, Measurements, History, Mapping[str, float] | None]] = []
        for done in finished:
            own = self._settled.pop(done.index, None)
            proposal, measured = own or (self._again(done), done.measured)
            self.history = round_steps.extend_history(self.history, proposal.batch, measured)
            self.unlearned.append(self.history)
            past.append((proposal, measured, self.history, None if own else done.errors))
        return [self._round(*each) for each in past]

    def _again(self, done: FinishedRound) -> Proposal:
        target, workload = self.setting.target, self.setting.problem.workload
        rows, kept = target.lower(workload, done.configs), None
        if len(done.compiled):
            kept = replace(target.lower(workload, done.compiled), programs={})
        batch = Batch(rows, {}, done.failed, done.lowered, compiled=kept)
        return Proposal(Result(batch), len(done.configs), 0, {})

    def _round(
        self,
        proposal: Proposal,
        measured: Measurements,
        history: History,
        recorded: Mapping[str, float] | None = None,
    ) -> Round:
        """Of a round that is reused the errors of the models are those `recorded`."""
        best, batch = history.best, proposal.batch
        return Round(
            index=history.round - 1,
            candidates=proposal.candidates,
            vetoed=proposal.vetoed,
            lowered=batch.lowered,
            failed_compiles=len(batch.failed),
            configs=batch.rows.configs,
            measured=measured,
            best=latency_at(history, best),
            best_config=None if best is None else history.configs[best],
            model_errors=round_steps.model_errors(batch.scores, measured)
            if recorded is None
            else dict(recorded),
            stage_seconds=proposal.stage_seconds,
            reused=recorded is not None,
        )


class Stopwatch:
    """Wall-clock seconds by stage, on top of those `before`."""

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.seconds = dict(before or {})

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Time what is done within; nothing where it fails."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start


def latency_at(history: History, row: int | None) -> Latency | None:
    """Of one trial; None for no row."""
    if row is None:
        return None
    return Latency(float(history.seconds[row]), int(history.cycles[row]))


def rows_of_batch(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    """Some rows of a batch, by place (n,)."""
    scores = {name: values[rows] for name, values in batch.scores.items()}
    return replace(batch, rows=batch.rows.rows(rows), scores=scores)
