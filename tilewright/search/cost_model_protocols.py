"""Defines what explorers ask of learned models, so that `search` need not know how anything is
learned.

`models` implements these protocols and hands a `Learners` to the explorers that want one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilewright.search.problem import Problem
from tilewright.targets.base import Configs
from tilewright.targets.features import Features

Floats = NDArray[np.float64]


class CostModel(Protocol):
    """A regressor or a classifier over feature rows; saved in a native format, never pickled."""

    kind: str  # the name `Learners.regressor` / `.classifier` knows it by
    suffix: str  # of the file it is saved to, with the dot
    columns: tuple[str, ...]  # names of the features it was fitted on; empty before

    def fit(self, x: Features, y: Floats) -> None:
        """Learn from n rows and their targets (n,). A classifier's targets are 0 and 1; one class
        alone, one row alone or NaN features are no errors."""

    def predict(self, x: Features) -> Floats:
        """Shape (n,): the expected target, for a classifier the probability of 1. `x` has the
        columns it was fitted on, in their order."""

    def spread(self, x: Features) -> Floats:
        """Shape (n,): standard deviation of the prediction; zeros if the model knows none."""

    def save(self, path: Path) -> None:
        """Write it in its native format."""

    def load(self, path: Path) -> None:
        """Become the model that was saved there. Raises `OSError`, and `ValueError` for a file that
        holds none; whatever it holds, reading it ends well or in one of these."""


class Draft(CostModel, Protocol):
    """A first model of latency from counts of a program."""

    def shares(self, x: Features) -> Features:
        """Return how long each unit of the machine is busy, as a share of the busiest unit's time:
        a row per program."""


class Surrogate(CostModel, Protocol):
    """A regressor that knows its uncertainty, and so which rows to measure together. What it
    predicts, and how surely, is of the latency itself, not of one more noisy figure."""

    def fit(self, x: Features, y: Floats, variance: Floats | None = None) -> None:
        """As `CostModel.fit`, from targets that are off by a noise of these variances (n,), as far
        as they are known; what they lack is learned."""

    def propose(
        self, x: Features, offset: Floats, best: float, log_chance: Floats, n: int
    ) -> NDArray[np.int64]:
        """`n` row numbers of `x`, shape (n,), by expected improvement on `best` (lower is better)
        plus the log chance of being valid, shape (rows,); `offset`, shape (rows,), is added to the
        predictions."""


@runtime_checkable
class Boosted(Protocol):
    """A cost model of boosted trees: `booster` is its library's own object."""

    booster: Any


@runtime_checkable
class VetoModel(CostModel, Protocol):
    """A classifier of validity that knows below which chance a config may be passed over."""

    @property
    def threshold(self) -> float:
        """Configs below this chance may be vetoed."""

    def passed(self, chance: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which configs may not be vetoed, by their chances, both (n,)."""


class Learners(Protocol):
    """Where an explorer gets features and untrained models from. It is implemented by
    `models.model_registry.ModelLibrary`, which `models.make_explorer` passes to each tuner."""

    def tree_features(self, problem: Problem, configs: Configs) -> Features:
        """What is known of configs, shape (n, knobs), before compiling: a row each, for trees."""

    def absolute_features(self, problem: Problem, configs: Configs) -> Features:
        """The same columns for every space with the same knobs, also those that do not vary in this
        space: a row per config, for trees that learn from several workloads."""

    def loop_features(self, problem: Problem, configs: Configs) -> Features:
        """The loop nest each config stands for, as AutoTVM describes it: a row a config, configs of
        shape (n, knobs)."""

    def gp_features(self, problem: Problem, configs: Configs) -> Features:
        """The same on a common scale, for models that go by distances; configs (n, knobs)."""

    def hidden_features(self, hidden: Features) -> Features:
        """Columns a model learns well from, made of what compiling revealed."""

    def relative_features(self, hidden: Features) -> Features:
        """Columns made of hidden features that do not grow with the size of a workload."""

    def work(self, hidden: Features) -> Floats:
        """How much programs have to do by their hidden features, shape (rows,): a log2 that ranks,
        before anything was measured."""

    def draft(self, hidden: Features) -> Draft:
        """An untrained model of latency on hidden features with these columns, for few points."""

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """An untrained regressor. Raises `UnknownName`."""

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """An untrained classifier. Raises `UnknownName`."""

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        """An untrained Model V."""

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        """An untrained model that knows its uncertainty."""
