"""The interface of a tuner: the stages of a round that a tuner implements, and the state it keeps.

Classes that implement a tuner are called explorers. A round is a fixed list of stages
(`search.round_steps`), and an explorer implements the stages that make decisions. An explorer has
no mutable state. Everything that it keeps between rounds is in the `ExplorerState` that `learn`
returns. Every result is a function of (options, problem, state, history), and every random number
comes from `Problem.rng(round, stage)`. A resumed run therefore proposes the same configs as an
uninterrupted run.
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
    """Proposed configs, best first, with their predictions.

    Attributes:
        configs: knob indices, int array of shape (n, knobs).
        scores: predictions by name of the model (see `Scores`), each of shape (n,).
        vetoed: number of configs that were vetoed and are not part of `configs`.
    """

    configs: Configs
    scores: Scores = field(default_factory=dict)
    vetoed: int = 0

    def __len__(self) -> int:
        return len(self.configs)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Candidates:
        """Select candidates by row.

        Args:
            rows: row indices of shape (m,), or a bool mask of shape (n,).

        Returns:
            The selected candidates; their `vetoed` is 0.
        """
        return Candidates(self.configs[rows], {k: v[rows] for k, v in self.scores.items()})

    def followed_by(self, others: Candidates) -> Candidates:
        """Return these candidates followed by `others`.

        Args:
            others: candidates with predictions of the same models.

        Returns:
            All candidates; their `vetoed` is 0.
        """
        scores = {k: np.concatenate([v, others.scores[k]]) for k, v in self.scores.items()}
        return Candidates(np.concatenate([self.configs, others.configs]), scores)


@dataclass(frozen=True)
class BatchChoice:
    """A tuner's choice of the configs to measure in the current round.

    Attributes:
        rows: rows of the lowered batch to measure, in this order, shape (m,).
        scores: predictions by model for these rows, followed by the predictions for `earlier`.
        earlier: configs that compiled in earlier rounds and are to be measured in this round, shape
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
"""Description of each model of a tuner, by its name in the tuner's state."""


@dataclass(frozen=True)
class ModelInput:
    """Input of one model for the configs of a batch.

    Attributes:
        rows: rows of the batch for which the model can make a prediction, shape (m,). A model that
            needs compiled programs can predict only rows that compiled.
        features: features of these rows.
        offset: known part of each prediction, such as an estimated log2 latency, shape (m,). The
            model was trained on the remainder, so the offset is added to its predictions.
    """

    rows: NDArray[np.int64]
    features: Features
    offset: NDArray[np.float64]

    @classmethod
    def without_offset(
        cls, features: Features, rows: NDArray[np.int64] | None = None
    ) -> ModelInput:
        """Build an input whose offset is zero.

        Args:
            features: features of all rows of the batch.
            rows: rows for which the model makes predictions, shape (m,); all rows by default.
        """
        if rows is None:
            return cls(np.arange(len(features)), features, np.zeros(len(features)))
        return cls(rows, features.rows(rows), np.zeros(len(rows)))


@dataclass(frozen=True)
class ExplorerState:
    """State that a tuner carries from round to round: learned models and plain arrays.

    `models.save_state` and `models.load_state` store it on disk in native formats.

    Attributes:
        models: fitted models by role, such as "P", "V" and "A".
        arrays: other data by name, such as the trials of earlier workloads.
    """

    models: dict[str, CostModel] = field(default_factory=dict)
    arrays: dict[str, NDArray[np.generic]] = field(default_factory=dict)


def veto_threshold(explorer: Explorer, state: ExplorerState) -> float:
    """Return the probability of being valid below which a tuner vetoes a config.

    A vetoed config is not compiled.

    Args:
        explorer: the tuner.
        state: its state, which contains the validity model (role "V") after the first fit.

    Returns:
        The calibrated threshold of the validity model, or otherwise the option `veto` of the tuner;
        0 if the tuner vetoes nothing.
    """
    model = state.models.get("V")
    own = model.threshold if isinstance(model, VetoModel) else 0.0
    return own or float(explorer.options.model_dump().get("veto", 0.0))


class Explorer(Protocol):
    """A tuner.

    Each module of `search.tuners` implements one or more tuners, for example `ml2tuner`. Subclass
    `BaseExplorer` to inherit the default behaviour of every stage.

    An explorer must guarantee the following properties, which `evaluation.tuner_conformance`
    checks:

    - Equal arguments give equal results.
    - No config of `history.tried_indices` is proposed again.
    - All proposed configs lie in the space.
    - An exhausted space gives an empty result.
    - A history without a valid trial is not an error.
    """

    @property
    def name(self) -> str:
        """Name under which the tuner is registered."""

    @property
    def options(self) -> BaseModel:
        """Values of the tuner's options."""

    def begin(self, problem: Problem, state: ExplorerState) -> ExplorerState:
        """Return the state before the first round.

        Computations that depend only on the problem belong in this method.

        Args:
            problem: the problem to tune.
            state: initial state: empty, or learned in an earlier run or on other workloads.
        """

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose candidates for a batch, best first.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            n: batch size.

        Returns:
            The candidates. There may be more than `n`, from which the later stages choose. Empty if
            the space is exhausted.
        """

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Remove candidates that are unlikely to be valid, and return the rest, best first.

        The returned candidates are lowered. A tuner that ranks compiled programs with Model A
        returns about (α+1)·n candidates, where α is its option `alpha`.

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
        """Choose the configs to measure in this round.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            lowered: the lowered configs with their compile results and hidden features.
            n: maximum number of configs to measure.

        Returns:
            The choice, with at least one config if `lowered` is not empty.
        """

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Retrain the models on a finished round and return the new state.

        Args:
            problem: the problem to tune.
            state: state before the round.
            history: all trials. The trials of the finished round, `history.round - 1`, come last.
        """

    @property
    def shares(self) -> bool:
        """True if the tuner passes what it learned on one workload to later workloads of the run.

        If True, the method `share` is called after each workload.
        """

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Add a finished workload to the state with which later workloads of the run start.

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
        """Return the input of each model for lowered programs, for an analysis of its predictions.

        Args:
            problem: the problem to tune.
            state: state of the explorer.
            history: trials so far.
            lowered: the lowered programs.

        Returns:
            Inputs by the model's role, such as "P". A model is left out if its input exists only
            within the explorer's own search.
        """


class BaseExplorer(Generic[OptionsT]):
    """Base class of tuners with default behaviour for every stage except `generate`.

    By default, no candidate is vetoed and candidates are measured in the order of the proposals.
    The protocol `Explorer` describes the arguments and results of all stages. `OptionsT` is the
    class of the tuner's options.

    Args:
        name: name under which the tuner is registered.
        options: values of the tuner's options.
        learners: source of features and untrained models.
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
        """Return the first `n` candidates. No validity model is used."""
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
        """True if the tuner shares what it learned; always False here."""
        return False

    def share(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Return the state unchanged."""
        return state

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return no inputs, because the tuner has no models."""
        return {}
