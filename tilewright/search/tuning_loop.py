"""The loop of tuning: generate, filter, lower, simulate, retrain, record.

A runner performs the steps (`search.runner`). Trials are kept in a `Record`: of one writer
(`SoloRecord`), or shared between processes (`search.shared_ledger`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.search import round_steps
from tilewright.search.blas_threads import BLAS_ON_ONE_THREAD
from tilewright.search.explorer import ExplorerState, History
from tilewright.search.round_steps import Batch, Known
from tilewright.search.run_ledger import FinishedRound, RunLedger
from tilewright.search.runner import LocalRunner, Result
from tilewright.search.setting import Setting
from tilewright.search.validation_records import (
    ValidationMeasurement,
    forget_validation,
    keep_validation,
    validation_of,
)
from tilewright.targets.base import Configs, Measurements
from tilewright.targets.capabilities import Latency

More = Callable[[History], int]
"""How many trials a run may make now that its rounds have shown this; 0 ends it."""
POLL_SECONDS = 0.05
"""How often a run looks again while all there is left to try is being measured by others."""


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
    reused: bool = False  # read from the ledger, not done now

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


class Record(Protocol):
    """Where the trials of a run are kept, and where those of others come from.

    `claim` and `settle`, and what is asked before them, happen in a `turn`. `problems` tells what
    was found in it that cannot be of this problem, and was set aside.
    """

    problems: list[str]

    def turn(self) -> AbstractContextManager[None]:
        """Within, nobody else changes the record. Raises `LeaseHeld` if it stays taken."""
        ...

    def news(self, first: int, trials: int) -> list[FinishedRound]:
        """The rounds from index `first` on that are over; no more of them than hold `trials`."""
        ...

    def pending(self) -> Configs | None:
        """What others are measuring now, shape (p, knobs); None if there are no others."""
        ...

    def known(self) -> Known:
        """What need not be measured again."""
        ...

    def claim(self, batch: Batch) -> None:
        """Say that this batch is ours to measure."""
        ...

    def settle(
        self, index: int, batch: Batch, measured: Measurements
    ) -> tuple[int, NDArray[np.int64]]:
        """Append a measured batch; returns the index of its round, `index` if nobody was faster,
        and the rows that counted, shape (at most rows,)."""
        ...

    def correct(self, measured: Known) -> int:
        """Put what trials measure now in the place of what was recorded; returns of how many. In
        no `turn`."""
        ...

    def fresh(self, choice: str) -> list[ValidationMeasurement]:
        """What was measured for a choice, beside the trials. This and what follows in no `turn`."""
        ...

    def keep_validation(self, choice: str, found: Sequence[ValidationMeasurement]) -> None:
        """Add to that."""
        ...

    def forget_validation(self, choice: str) -> None:
        """Set it aside."""
        ...


class SoloRecord:
    """One writer, and a ledger or none."""

    def __init__(self, setting: Setting, run: RunLedger | None) -> None:
        self.setting = setting
        self.run = run
        self.problems = [] if run is None else run.vet(setting.problem.space)
        self._asked = False

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def news(self, first: int, trials: int) -> list[FinishedRound]:
        if self.run is None or self._asked:
            return []
        self._asked = True
        return take_rounds(self.run.finished(), first, trials)

    def pending(self) -> Configs | None:
        return None

    def known(self) -> Known:
        if self.run is None:
            return {}
        others = self.setting.target.deterministic
        return self.run.known(self.setting.problem.space, of_others=others)

    def claim(self, batch: Batch) -> None:
        pass

    def settle(
        self, index: int, batch: Batch, measured: Measurements
    ) -> tuple[int, NDArray[np.int64]]:
        if self.run is not None:
            self.run.append(self.setting.problem.space, index, batch, measured)
        return index, np.arange(len(measured))

    def correct(self, measured: Known) -> int:
        if self.run is None:
            return 0
        others = self.setting.target.deterministic
        return self.run.correct(self.setting.problem.space, measured, of_others=others)

    def fresh(self, choice: str) -> list[ValidationMeasurement]:
        return [] if self.run is None else validation_of(self.run, choice)

    def keep_validation(self, choice: str, found: Sequence[ValidationMeasurement]) -> None:
        if self.run is not None:
            keep_validation(self.run, choice, found)

    def forget_validation(self, choice: str) -> None:
        if self.run is not None:
            forget_validation(self.run, choice)


class Session:
    """A run in progress: the problem, the history and the state, moved on round by round."""

    def __init__(
        self,
        setting: Setting,
        state: ExplorerState | None = None,
        run: LocalRunner | None = None,
    ) -> None:
        self.setting = setting
        self.run = run or LocalRunner()
        self.history = History.empty(setting.problem.space)
        self._start = state or ExplorerState()
        self._state: Result[ExplorerState] | None = None
        self._kept: Result[History] | None = None
        self._unlearned: list[History] = []
        self._learning = 0.0  # seconds, since the last proposal
        self._settled: dict[int, tuple[Proposal, Measurements]] = {}

    @property
    def state(self) -> ExplorerState:
        """What the tuner remembers after the rounds so far. Computed when it is asked for, so that
        nothing is learned from a last round."""
        return self.state_result.value

    @property
    def state_result(self) -> Result[ExplorerState]:
        """The same, as its runner knows it."""
        if self._state is None:
            self._state = self.run.begin(self.setting, self._start)
        if self._unlearned:
            begun = time.perf_counter()
            histories = [self.run.keep(history) for history in self._unlearned]
            self._state = self.run.retrain(self.setting, self._state, histories)
            self._kept = histories[-1]
            self._learning += time.perf_counter() - begun
            self._unlearned = []
        return self._state

    def learn(self) -> None:
        """Learn from what is not learned from yet, so that `propose` need not."""
        if self._unlearned:
            _ = self.state_result

    def advance(self, n: int) -> Round | None:
        """One round of up to `n` trials without a record; None if there is nothing to propose."""
        proposal = self.propose(n)
        if proposal is None:
            return None
        proposal, measured = self.measure(proposal, {})
        return self.finish(proposal, measured)

    def propose(self, n: int, pending: Configs | None = None) -> Proposal | None:
        """What to measure next, at most `n` configs, none of them tried or `pending`; None if there
        is nothing left."""
        with BLAS_ON_ONE_THREAD:
            return self._proposal(n, pending)

    def _proposal(self, n: int, pending: Configs | None) -> Proposal | None:
        run, setting, state = self.run, self.setting, self.state_result
        clock, self._learning = Stopwatch({"retrain": self._learning}), 0.0
        history = self._history(pending)
        with clock.of("generate"):
            named = run(round_steps.generate_candidates, setting, state, history, n)
        with clock.of("filter"):
            kept = run(round_steps.filter_candidates, setting, state, history, named, n)
        if not len(kept.value):
            return None
        with clock.of("lower"):
            batch = run(round_steps.lower_candidates, setting, state, history, kept, n)
        return Proposal(batch, len(named.value), kept.value.vetoed, clock.seconds)

    def _history(self, pending: Configs | None = None) -> Result[History]:
        """What steps get: the history that is stored already, if it is the present one."""
        if pending is not None:
            return self.run.keep(replace(self.history, pending=pending))
        if self._kept is None or self._kept.value is not self.history:
            self._kept = self.run.keep(self.history)
        return self._kept

    def measure(self, proposal: Proposal, known: Known) -> tuple[Proposal, Measurements]:
        """Run the batch, but for what is `known`."""
        clock, batch = Stopwatch(proposal.stage_seconds), proposal.result
        flat = self.setting.problem.space.ravel(proposal.batch.rows.configs)
        held = {int(i): known[int(i)] for i in flat if int(i) in known}
        with clock.of("measure"):
            measured = self.run(
                round_steps.simulate_batch, self.setting, self._history(), batch, held
            )
        return replace(proposal, stage_seconds=clock.seconds), measured.value

    def finish(self, proposal: Proposal, measured: Measurements) -> Round:
        """Take up a measured batch; it is learned from before the next proposal."""
        self.history = round_steps.extend_history(self.history, proposal.batch, measured)
        self._unlearned.append(self.history)
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
            self._unlearned.append(self.history)
            past.append((proposal, measured, self.history, None if own else done.errors))
        return [self._round(*each) for each in past]

    def _again(self, done: FinishedRound) -> Proposal:
        rows = self.setting.target.lower(self.setting.problem.workload, done.configs)
        batch = Batch(rows, {}, done.failed, done.lowered)
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


def rounds(
    session: Session, record: Record, *, trials: int, batch: int, more: More | None = None
) -> Iterator[Round]:
    """Tune until the record holds `trials` or the explorer has nothing left; yields each round when
    it is done, those the record already holds first. `more` is asked before each further round, in
    no turn of the record, so that it may take its time.

    Raises `TilewrightError` if `trials` or `batch` is below 1, what the record raises, and what
    `more` does.
    """
    if trials < 1 or batch < 1:
        raise TilewrightError(f"trials ({trials}) and batch ({batch}) must be at least 1")
    allowed = trials if more is None else 0
    while True:
        if allowed > len(session.history):
            session.learn()  # not while others wait for their turn
        with record.turn():
            news = record.news(session.history.round, trials - len(session.history))
            if not news:
                pending = record.pending()
                busy = 0 if pending is None else len(pending)
                n = min(batch, allowed - len(session.history) - busy)
                proposal = session.propose(n, pending) if n > 0 else None
                known = {} if proposal is None else record.known()
                if proposal is not None:
                    record.claim(proposal.batch)
        if news:
            yield from session.take_up(news)
        elif proposal is not None:
            yield from _measured(session, record, proposal, known)
        elif busy:
            time.sleep(POLL_SECONDS)
        elif n > 0 or more is None or (granted := more(session.history)) < 1:
            return
        else:
            allowed = min(len(session.history) + granted, trials)


def _measured(
    session: Session, record: Record, proposal: Proposal, known: Known
) -> Iterator[Round]:
    proposal, measured = session.measure(proposal, known)
    clock = Stopwatch(proposal.stage_seconds)
    with record.turn(), clock.of("record"):
        index, kept = record.settle(session.history.round, proposal.batch, measured)
    if not len(kept):
        return
    counted = Result(_rows(proposal.batch, kept))
    proposal = replace(proposal, result=counted, stage_seconds=clock.seconds)
    if index == session.history.round:
        yield session.finish(proposal, measured.rows(kept))
    else:
        session.settled(index, proposal, measured.rows(kept))


def take_rounds(finished: Iterable[FinishedRound], first: int, trials: int) -> list[FinishedRound]:
    """The rounds from index `first` on, until they hold so many trials."""
    found, held = [], 0
    for done in finished:
        if held >= trials:
            break
        if done.index >= first:
            found.append(done)
            held += len(done.configs)
    return found


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


def _rows(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    scores = {name: values[rows] for name, values in batch.scores.items()}
    return replace(batch, rows=batch.rows.rows(rows), scores=scores)
