"""Defines the contract of a tuner: what it is told, what it answers, and what it may remember.

A round is a fixed list of stages (`search.round_steps`). An explorer supplies the stages that
decide and keeps no state of its own. All it may remember between rounds lies in the `ExplorerState`
that `learn` returns. Every answer is a function of (options, problem, state, history), and every
random draw comes from `Problem.rng(round, stage)`. So a resumed run proposes what the uninterrupted
one would.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from tilewright.search.cost_model_protocols import CostModel, Learners, VetoModel
from tilewright.search.noise import figure_variance
from tilewright.search.problem import Problem
from tilewright.targets.base import Configs, Lowered, Measurements, Ragged, Space, latency_of
from tilewright.targets.features import Features

OptionsT = TypeVar("OptionsT", bound=BaseModel)


@dataclass(frozen=True)
class History:
    """All that complete rounds have shown, oldest first.

    Arrays have one row a trial (n): configs (n, knobs) int32, status (n,), cycles (n,) int64 and
    seconds (n,) float64 as in `Measurements`, rounds (n,) int32, hidden features with NaN where
    compiling failed.
    `failed` (m, knobs) holds configs that were lowered beyond the trials and did not compile.
    `compiled` (k, knobs) holds configs that compiled and were not measured, and `compiled_hidden`
    their hidden features. Only tuners that ask for it have them (`BatchChoice.keep_compiled`).
    """

    configs: Configs
    status: NDArray[np.object_]
    cycles: NDArray[np.int64]
    seconds: NDArray[np.float64]
    rounds: NDArray[np.int32]
    hidden: Features
    failed: Configs
    round: int = 0  # index of the round to come
    pending: Configs | None = None  # (p, knobs): what others are measuring at this moment
    repeats: Ragged | None = None  # seconds of every repetition, where the target repeats
    compiled: Configs | None = None
    compiled_hidden: Features | None = None

    @staticmethod
    def empty(space: Space) -> History:
        """Before the first round."""
        knobs = len(space.knobs)
        return History(
            np.empty((0, knobs), np.int32), np.empty(0, object), np.empty(0, np.int64),
            np.empty(0), np.empty(0, np.int32), Features.none(0), np.empty((0, knobs), np.int32),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def valid(self) -> NDArray[np.bool_]:
        """Shape (n,): which trials ran and gave the right numbers."""
        return np.asarray(self.status == "valid", dtype=np.bool_)

    @cached_property
    def latency(self) -> NDArray[np.float64]:
        """What is minimised, shape (n,): cycles where the target counts them, else seconds; NaN
        where a trial is not valid."""
        return np.where(self.valid, latency_of(self.cycles, self.seconds), np.nan)

    @cached_property
    def possible(self) -> NDArray[np.float64]:
        """Latency, shape (n,), in its unit: infinite where a trial gave none that can be true."""
        found = self.latency
        return np.where(np.isfinite(found) & (np.nan_to_num(found) > 0), found, np.inf)

    @property
    def log_latency(self) -> NDArray[np.float64]:
        """log2 of it, shape (n,): what models of performance learn."""
        return np.log2(self.latency)

    @property
    def throughput(self) -> NDArray[np.float64]:
        """1 / latency, shape (n,); 0 where a trial is not valid."""
        return np.where(self.valid, 1.0 / self.latency, 0.0)

    @property
    def best(self) -> int | None:
        """Row of the fastest valid trial, or None."""
        return int(self.fastest(1)[0]) if self.valid.any() else None

    def fastest(self, count: int) -> NDArray[np.int64]:
        """Rows of the fastest valid trials, shape (at most `count`,), fastest first."""
        valid = np.flatnonzero(self.valid)
        return valid[np.argsort(self.latency[valid], kind="stable")[:count]]

    def tried(self, space: Space) -> NDArray[np.int64]:
        """Flat indices that must not be proposed again, ascending."""
        known = np.concatenate(
            [self.configs, self.failed, *([] if self.pending is None else [self.pending])]
        )
        return np.unique(space.ravel(known)) if len(known) else np.empty(0, np.int64)

    def unmeasured(self, space: Space) -> tuple[Configs, Features]:
        """Return the configs that compiled and are still to be measured, and their programs'
        hidden features.

        Args:
            space: the space of the configs.

        Returns:
            Configs of shape (k, knobs) without those that others measure at this moment, and hidden
            features with one row per config.
        """
        if self.compiled is None or self.compiled_hidden is None:
            return self.configs[:0], Features.none(0)
        left = ~np.isin(space.ravel(self.compiled), self.tried(space))
        return self.compiled[left], self.compiled_hidden.rows(left)

    def after(
        self, lowered: Lowered, measured: Measurements, failed: Configs,
        compiled: Lowered | None = None,
    ) -> History:  # fmt: skip
        """The history one round later. `lowered` holds the measured rows, in order of trials, and
        `compiled` the programs that were compiled beyond them and stay candidates."""
        columns = lowered.hidden.columns if len(self) == 0 else self.hidden.columns
        new = lowered.hidden.matrix if lowered.hidden.columns == columns else None
        if new is None:  # the target revealed nothing of these
            new = np.full((len(lowered), len(columns)), np.nan)
        past = self.hidden.matrix if len(self) else np.empty((0, len(columns)))
        kept, kept_hidden = self._compiled_after(lowered, compiled)
        return replace(
            self,
            configs=np.concatenate([self.configs, lowered.configs]),
            status=np.concatenate([self.status, measured.status]),
            cycles=np.concatenate([self.cycles, measured.cycles]),
            seconds=np.concatenate([self.seconds, measured.seconds]),
            rounds=np.concatenate([self.rounds, np.full(len(lowered), self.round, dtype=np.int32)]),
            hidden=Features(np.concatenate([past, new]), columns),
            failed=np.concatenate([self.failed, failed]),
            round=self.round + 1,
            repeats=self._repeats(len(lowered), measured.repeats),
            compiled=kept,
            compiled_hidden=kept_hidden,
        )

    def _compiled_after(
        self, measured: Lowered, new: Lowered | None
    ) -> tuple[Configs | None, Features | None]:
        """Unmeasured programs after a round: the earlier ones without the `measured` rows, and the
        new ones."""
        configs, hidden = self.compiled, self.compiled_hidden
        if configs is not None and hidden is not None:
            left = ~_occur_in(configs, measured.configs)
            configs, hidden = configs[left], hidden.rows(left)
        if new is None or not len(new):
            return configs, hidden
        if configs is None or hidden is None or not len(configs):
            return new.configs, new.hidden
        if hidden.columns != new.hidden.columns:
            return configs, hidden
        new = new.rows(~_occur_in(new.configs, configs))  # some were lowered a second time
        matrix = np.concatenate([hidden.matrix, new.hidden.matrix])
        return np.concatenate([configs, new.configs]), Features(matrix, hidden.columns)

    def _repeats(self, rows: int, new: Ragged | None) -> Ragged | None:
        if self.repeats is None and new is None:
            return None
        return Ragged.joined([(len(self), self.repeats), (rows, new)])


def _occur_in(configs: Configs, others: Configs) -> NDArray[np.bool_]:
    """Return which rows of configs (n, knobs) are among `others`, shape (n,)."""
    known = {config.tobytes() for config in others}
    return np.array([config.tobytes() in known for config in configs], dtype=np.bool_)


def trials_of(problem: Problem, history: History) -> Lowered:
    """The valid trials as a batch without programs: what models of performance learned from."""
    rows = np.flatnonzero(history.valid)
    texts = np.full(len(rows), "", dtype=object)
    return Lowered(problem.workload, history.configs[rows], texts, texts, history.hidden.rows(rows))


def noise_of(problem: Problem, history: History) -> NDArray[np.float64] | None:
    """Variance of the `log_latency` of each valid trial by its repeats, shape (valid trials,); None
    where measuring repeats, or nothing tells."""
    if problem.deterministic or history.repeats is None:
        return None
    return figure_variance(history.repeats.rows(history.valid))


Scores = dict[str, NDArray[np.float64]]
"""What models said of each row: `P` and `A` predicted log2 latency, `V` the chance of valid."""


@dataclass(frozen=True)
class Candidates:
    """Configs to consider, best first, with what models said of them; `vetoed` others were passed
    over on the way."""

    configs: Configs
    scores: Scores = field(default_factory=dict)
    vetoed: int = 0

    def __len__(self) -> int:
        return len(self.configs)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Candidates:
        """Some of them, by row indices (m,) or a mask (n,); `vetoed` is 0 again."""
        return Candidates(self.configs[rows], {k: v[rows] for k, v in self.scores.items()})

    def before(self, others: Candidates) -> Candidates:
        """These, then others with the same scores; `vetoed` is 0 again."""
        scores = {k: np.concatenate([v, others.scores[k]]) for k, v in self.scores.items()}
        return Candidates(np.concatenate([self.configs, others.configs]), scores)


@dataclass(frozen=True)
class BatchChoice:
    """Which lowered rows are measured, in order, and what was predicted of them.

    Attributes:
        rows: rows of the lowered batch to measure, shape (m,).
        scores: predictions for these rows, and for the `earlier` ones behind them.
        earlier: configs of earlier rounds that compiled and are measured now, shape (e, knobs).
        keep_compiled: keep the rest of the compiled rows in `History.compiled`.
    """

    rows: NDArray[np.int64]
    scores: Scores = field(default_factory=dict)
    earlier: Configs | None = None
    keep_compiled: bool = False


ROLES = {
    "P": "Model P: performance, from what is known before compiling",
    "V": "Model V: validity",
    "A": "Model A: performance, with what compiling reveals",
}
"""What an explorer's models are for, by the names they have in its state."""


@dataclass(frozen=True)
class ModelInput:
    """What an explorer puts to one of its models about a batch: `rows` (m,) of the batch, their
    features, and what it adds to the model's answer, (m,)."""

    rows: NDArray[np.int64]
    features: Features
    offset: NDArray[np.float64]

    @classmethod
    def plain(cls, features: Features, rows: NDArray[np.int64] | None = None) -> ModelInput:
        """Nothing is added; all rows, unless some are named."""
        if rows is None:
            return cls(np.arange(len(features)), features, np.zeros(len(features)))
        return cls(rows, features.rows(rows), np.zeros(len(rows)))


@dataclass(frozen=True)
class ExplorerState:
    """What an explorer carries from round to round: learned models and plain arrays, nothing else.

    `models.save_state` and `models.load_state` keep it on disk in native formats.
    """

    models: dict[str, CostModel] = field(default_factory=dict)
    arrays: dict[str, NDArray[np.generic]] = field(default_factory=dict)


def veto_threshold(explorer: Explorer, state: ExplorerState) -> float:
    """The chance of valid below which a tuner's Model V vetoes; 0 where it has none that does."""
    model = state.models.get("V")
    own = model.threshold if isinstance(model, VetoModel) else 0.0
    return own or float(explorer.options.model_dump().get("veto", 0.0))


class Explorer(Protocol):
    """A tuner. Subclass `BaseExplorer` for the plain behaviour of every stage one does not change.

    Guarantees an explorer owes (`evaluation.tuner_conformance` checks them): equal arguments give
    equal answers; nothing of `history.tried` is ever proposed; all configs lie in the space; an
    exhausted space gives an empty answer; a history without a valid trial is no error.
    """

    @property
    def name(self) -> str:
        """What it is registered as."""

    @property
    def options(self) -> BaseModel:
        """Its option table, filled in."""

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """The state before the first round, from what it starts with (empty, or learned before):
        the place for what follows from the problem alone."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Candidates for a batch of `n`, best first; as many as later stages may choose from."""

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Those worth lowering, best first: (α+1)·n rows for a tuner that looks at programs."""

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """At most `n` rows of `lowered` to measure; at least one if there is any."""

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """The state after the round `history.round - 1`, whose trials `history` ends with."""

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """What it would ask each of its models about these programs, by the model's role; without
        those it asks within its own search only."""


class BaseExplorer(Generic[OptionsT]):
    """The plain behaviour of every stage but `generate`: nothing vetoed, measured in order.
    `OptionsT` is the class of its option table."""

    def __init__(self, name: str, options: OptionsT, learners: Learners) -> None:
        self.name = name
        self.options = options
        self.learners = learners

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        return state

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        return candidates.take(np.arange(min(n, len(candidates))))

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        return BatchChoice(np.arange(min(n, len(lowered)), dtype=np.int64))

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        return state

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        return {}
