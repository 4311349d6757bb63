"""The interface of a tuner: its inputs, its answers, and the state that it may keep.

A round is a fixed list of stages (`search.round_steps`). An explorer implements the stages that
make decisions, and has no mutable state. Everything that it keeps between rounds is in the
`ExplorerState` that `learn` returns. Every answer is a function of (options, problem, state,
history), and every random number comes from `Problem.rng(round, stage)`. A resumed run therefore
proposes the same configs as an uninterrupted run.
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
"""Predictions per row by model: `P` and `A` are log2 latencies, `V` is the probability of being
valid."""


@dataclass(frozen=True)
class Candidates:
    """Configs to consider, best first, with their predictions.

    Attributes:
        configs: knob indices, int array of shape (n, knobs).
        scores: predictions by model, each of shape (n,).
        vetoed: number of other configs that were vetoed.
    """

    configs: Configs
    scores: Scores = field(default_factory=dict)
    vetoed: int = 0

    def __len__(self) -> int:
        return len(self.configs)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Candidates:
        """Select rows by indices (m,) or by a mask (n,). `vetoed` of the result is 0."""
        return Candidates(self.configs[rows], {k: v[rows] for k, v in self.scores.items()})

    def followed_by(self, others: Candidates) -> Candidates:
        """Return these candidates followed by `others`, which must have the same scores.

        `vetoed` of the result is 0.
        """
        scores = {k: np.concatenate([v, others.scores[k]]) for k, v in self.scores.items()}
        return Candidates(np.concatenate([self.configs, others.configs]), scores)


@dataclass(frozen=True)
class BatchChoice:
    """A tuner's answer to which of the lowered configs are measured in this round.

    Attributes:
        rows: rows of the lowered batch to measure, in order, shape (m,).
        scores: predictions by model for these rows, followed by the predictions for `earlier`.
        earlier: configs that compiled in earlier rounds and are measured only now, shape
            (e, knobs), or None.
        keep_compiled: whether to keep the compiled rows that are not measured in
            `History.compiled`, so that a later round can measure them.
    """

    rows: NDArray[np.int64]
    scores: Scores = field(default_factory=dict)
    earlier: Configs | None = None
    keep_compiled: bool = False


ROLES = {
    "P": "Model P: performance, from features known before compiling",
    "V": "Model V: validity",
    "A": "Model A: performance, with features known after compiling",
}
"""Purpose of each model of an explorer, by its name in the explorer's state."""


@dataclass(frozen=True)
class ModelInput:
    """Input of one model for the configs of a batch.

    Attributes:
        rows: rows of the batch that the model can be asked about, shape (m,).
        features: features of these rows.
        offset: known part of each prediction, such as an estimated log2 latency, shape (m,). The
            model learned only the rest, so the offset is added to its predictions.
    """

    rows: NDArray[np.int64]
    features: Features
    offset: NDArray[np.float64]

    @classmethod
    def without_offset(
        cls, features: Features, rows: NDArray[np.int64] | None = None
    ) -> ModelInput:
        """Return an input with zero offset, for the given rows or for all rows."""
        if rows is None:
            return cls(np.arange(len(features)), features, np.zeros(len(features)))
        return cls(rows, features.rows(rows), np.zeros(len(rows)))


@dataclass(frozen=True)
class ExplorerState:
    """State that an explorer carries from round to round: learned models and plain arrays.

    `models.save_state` and `models.load_state` keep it on disk in native formats.

    Attributes:
        models: fitted models by role, such as "P", "V" and "A".
        arrays: other data by name, such as the trials of earlier workloads.
    """

    models: dict[str, CostModel] = field(default_factory=dict)
    arrays: dict[str, NDArray[np.generic]] = field(default_factory=dict)


def veto_threshold(explorer: Explorer, state: ExplorerState) -> float:
    """Return the probability of being valid below which a tuner's Model V vetoes a config.

    Args:
        explorer: the tuner.
        state: its state, which holds Model V once it was fitted.

    Returns:
        A probability; 0 if the tuner vetoes nothing.
    """
    model = state.models.get("V")
    own = model.threshold if isinstance(model, VetoModel) else 0.0
    return own or float(explorer.options.model_dump().get("veto", 0.0))


class Explorer(Protocol):
    """A tuner. The tuners are in the modules of `search.tuners`, for example in `default`.

    Subclass `BaseExplorer` to inherit the default behaviour of every stage.

    An explorer must guarantee the following, which `evaluation.tuner_conformance` checks: equal
    arguments give equal answers; no config of `history.tried` is proposed again; all configs lie in
    the space; an exhausted space gives an empty answer; a history without a valid trial is not an
    error.
    """

    @property
    def name(self) -> str:
        """Name under which the tuner is registered."""

    @property
    def options(self) -> BaseModel:
        """Values of the tuner's options."""

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """Return the state before the first round.

        Computations that depend only on the problem belong here.

        Args:
            problem: the problem to tune.
            state: initial state, either empty or learned before.
        """

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Return candidates for a batch, best first.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            n: batch size. More candidates may be returned for the later stages to choose from.
        """

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Drop candidates that are unlikely to be valid, and return those to lower, best first.

        A tuner that ranks compiled programs with Model A returns about (α+1)·n of them, where α is
        its option `alpha`.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            candidates: result of `generate`.
            n: batch size.
        """

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose which of the lowered configs are measured in this round.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            lowered: the lowered configs with their compile results and hidden features.
            n: maximum number of configs to measure. At least one is chosen if there is any.
        """

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Return the state after the models were retrained on a finished round.

        Args:
            problem: the problem to tune.
            state: state before the round.
            history: trials including those of the finished round `history.round - 1`, which come
                last.
        """

    @property
    def shares(self) -> bool:
        """Whether later workloads of a run start with what the tuner learned on earlier ones.

        The method `share` adds what was learned to the state.
        """

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Add a finished workload to the state that later workloads of the run start with.

        Args:
            problem: the problem of the finished workload.
            state: state that earlier workloads have shared.
            history: trials of the finished workload.

        Returns:
            The shared state including this workload.
        """

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return each model's input for lowered programs, so that predictions can be analysed.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            lowered: the lowered programs.

        Returns:
            Inputs by the model's role, such as "P". Models whose input exists only within the
            explorer's own search are left out.
        """


class BaseExplorer(Generic[OptionsT]):
    """Default behaviour of every stage except `generate`: no veto, and rows are measured in order.

    `OptionsT` is the class of the tuner's options.
    """

    def __init__(self, name: str, options: OptionsT, learners: Learners) -> None:
        self.name = name
        self.options = options
        self.learners = learners

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """Return the state unchanged."""
        return state

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Return the first `n` candidates, without a model of validity."""
        return candidates.take(np.arange(min(n, len(candidates))))

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose the first `n` lowered configs."""
        return BatchChoice(np.arange(min(n, len(lowered)), dtype=np.int64))

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Return the state unchanged."""
        return state

    @property
    def shares(self) -> bool:
        """False: the tuner learns nothing from other workloads."""
        return False

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Return the state unchanged."""
        return state

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return no inputs, because the tuner has no models."""
        return {}
