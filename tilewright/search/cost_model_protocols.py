"""Protocols of the learned models that explorers use, so that `search` does not depend on `models`.

`models` implements these protocols and passes a `Learners` object to each explorer.
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
    """A regressor or classifier over rows of features.

    It is saved in a native format, never pickled.

    Attributes:
        kind: name under which the kind of model is registered.
        suffix: file name suffix of the saved model.
        columns: names of the features that the model was fitted on.
    """

    kind: str  # the name `Learners.regressor` / `.classifier` knows it by
    suffix: str  # of the file it is saved to, with the dot
    columns: tuple[str, ...]  # names of the features it was fitted on; empty before

    def fit(self, x: Features, y: Floats) -> None:
        """Fit the model to rows of features and their targets, replacing an earlier fit.

        A single class, a single row and NaN features are allowed.

        Args:
            x: features with n rows.
            y: targets of shape (n,); 0 and 1 for a classifier.
        """

    def predict(self, x: Features) -> Floats:
        """Predict the targets of rows; a classifier predicts the probability of class 1.

        Args:
            x: features with the columns that the model was fitted on, in the same order.

        Returns:
            Array of shape (n,).
        """

    def spread(self, x: Features) -> Floats:
        """Return the predictions' standard deviation, shape (n,); zeros if the model has none."""

    def save(self, path: Path) -> None:
        """Write the model in its native format."""

    def load(self, path: Path) -> None:
        """Load a saved model into this object.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file does not hold such a model. No file contents cause other errors.
        """


class Draft(CostModel, Protocol):
    """The draft model: a simple analytic latency model over the counters of a compiled program.

    Model A, which predicts the latency of compiled programs, uses its prediction as a feature.
    """

    def shares(self, x: Features) -> Features:
        """Return how long each unit of the machine is busy, relative to the busiest unit.

        Args:
            x: counters with one row per program.

        Returns:
            Features with one row per program.
        """


class Surrogate(CostModel, Protocol):
    """A regressor with uncertainty, which can choose batches of rows to measure together.

    Predictions and uncertainty are of the latency itself, without the noise of a further
    measurement.
    """

    def fit(self, x: Features, y: Floats, variance: Floats | None = None) -> None:
        """Fit the model like `CostModel.fit`, with known noise of the targets.

        Args:
            x: features with n rows.
            y: targets of shape (n,).
            variance: noise variance of each target, shape (n,), as far as it is known. Additional
                noise is learned.
        """

    def propose(
        self, x: Features, offset: Floats, best: float, log_chance: Floats, n: int
    ) -> NDArray[np.int64]:
        """Choose a batch by expected improvement and the probability of being valid.

        Args:
            x: features of m candidates.
            offset: known part of each candidate's latency, shape (m,), in the unit of the targets.
                It is added to the prediction, because the model was fitted to targets minus this
                part.
            best: lowest target so far; lower is better.
            log_chance: log probability that each candidate is valid, shape (m,).
            n: number of candidates to choose.

        Returns:
            Row indices of the chosen candidates, shape (n,).
        """


@runtime_checkable
class Boosted(Protocol):
    """A cost model of boosted trees whose underlying XGBoost or LightGBM object is accessible.

    Attributes:
        booster: the booster object of the library.
    """

    booster: Any


@runtime_checkable
class VetoModel(CostModel, Protocol):
    """A classifier of validity with a threshold below which a config may be vetoed."""

    @property
    def threshold(self) -> float:
        """Probability below which a config may be vetoed."""

    def accept(self, chance: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which configs not to veto, given their probabilities of validity, both (n,)."""


class Learners(Protocol):
    """Source of features and untrained models for explorers.

    `models.model_registry.ModelLibrary` implements it, and `models.make_explorer` passes it to each
    tuner.
    """

    def tree_features(self, problem: Problem, configs: Configs) -> Features:
        """Return features of configs (n, knobs) for trees, known before compilation."""

    def absolute_features(self, problem: Problem, configs: Configs) -> Features:
        """Return features for trees that learn from several workloads, one row per config.

        All spaces with the same knobs have the same columns, including columns that are constant in
        this space.
        """

    def loop_features(self, problem: Problem, configs: Configs) -> Features:
        """Return AutoTVM's features of the loop nest, with one row per config of `configs`.

        Args:
            problem: the tuning problem; its space contains the configs.
            configs: knob indices, int array of shape (n, knobs).
        """

    def gp_features(self, problem: Problem, configs: Configs) -> Features:
        """Return features of configs (n, knobs) on a common scale, for models of distances."""

    def hidden_features(self, hidden: Features) -> Features:
        """Return model input columns that are computed from the counters of compiled programs.

        Args:
            hidden: counters that lowering reported, one row per program.
        """

    def relative_features(self, hidden: Features) -> Features:
        """Return columns from program counters that do not grow with the size of the workload.

        They allow one model to learn from workloads of different sizes.

        Args:
            hidden: counters that lowering reported, one row per program.
        """

    def work(self, hidden: Features) -> Floats:
        """Return an estimate of the work of programs in log2, shape (rows,), from their counters.

        It ranks programs before anything was measured.
        """

    def draft(self, hidden: Features) -> Draft:
        """Return an untrained draft model, which predicts latency from the columns of `hidden`.

        Args:
            hidden: counters of compiled programs. Only their columns matter.
        """

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """Return an untrained regressor.

        Raises:
            UnknownName: there is no such kind.
        """

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """Return an untrained classifier.

        Raises:
            UnknownName: there is no such kind.
        """

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        """Return an untrained Model V, which predicts the probability that a config is valid."""

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        """Return an untrained regressor that also predicts its uncertainty."""
