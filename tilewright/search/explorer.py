"""Defines the contract of a tuner: what it is told, what it answers, and what it may remember.

A round is a fixed list of stages (`search.round_steps`). An explorer supplies the stages that
decide and keeps no state of its own. All it may remember between rounds lies in the `ExplorerState`
that `learn` returns. Every answer is a function of (options, problem, state, history), and every
random draw comes from `Problem.rng(round, stage)`. So a resumed run proposes what the uninterrupted
one would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from tilewright.search.cost_model_protocols import CostModel, Learners, VetoModel
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.targets.base import Configs, Lowered
from tilewright.targets.features import Features

OptionsT = TypeVar("OptionsT", bound=BaseModel)


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
    """A tuner. Each module of `search.tuners` has one, such as `search.tuners.default.Default`.
    Subclass `BaseExplorer` for the plain behaviour of every stage that a tuner does not change.

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

    @property
    def shares(self) -> bool:
        """Whether it learns from other workloads of a run, by `share`."""

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Return the state that later workloads of the run start with, after the trials of this
        workload. `state` holds what earlier workloads have shared."""

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

    @property
    def shares(self) -> bool:
        return False

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        return state

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        return {}
