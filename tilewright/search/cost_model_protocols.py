"""Protocols of the learned models and features that tuners use.

The package `models` implements the protocols and passes a `Learners` object to each tuner, so that
`search` does not import `models`. The *hidden features* of a program are counters that become known
when it is compiled, such as the number of its instructions.
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
    """A regressor or a classifier whose inputs are rows of features.

    It is saved in the native format of its library, never as a pickle.

    Attributes:
        kind: name under which the kind of model is registered, such as "xgboost".
        suffix: file name suffix of the saved model, with the dot.
        columns: names of the features that the model was fitted on; empty before the first fit.
    """

    kind: str
    suffix: str
    columns: tuple[str, ...]

    def fit(self, x: Features, y: Floats) -> None:
        """Fit the model to rows of features and their targets, replacing an earlier fit.

        Training data with a single class or a single row, and NaN features, are allowed.

        Args:
            x: features with n rows.
            y: targets of shape (n,); 0 or 1 for a classifier.
        """

    def predict(self, x: Features) -> Floats:
        """Predict the target of each row. A classifier predicts the probability of class 1.

        Args:
            x: features with the columns that the model was fitted on, in the same order, n rows.

        Returns:
            Predictions of shape (n,).
        """

    def spread(self, x: Features) -> Floats:
        """Return the standard deviation of each prediction.

        Args:
            x: features as in `predict`, n rows.

        Returns:
            Array of shape (n,); zeros if the model does not estimate its uncertainty.
        """

    def save(self, path: Path) -> None:
        """Write the fitted model to a file in its native format.

        Args:
            path: the file. Its suffix should be `suffix`.
        """

    def load(self, path: Path) -> None:
        """Load a saved model into this object.

        Args:
            path: the file that `save` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file does not contain a model of this kind.
            KeyError: the file is an NPZ file in which an array is missing.
        """


class Draft(CostModel, Protocol):
    """The draft model: a simple analytic latency model over the counters of a compiled program.

    Model A, which predicts the latency of compiled programs, uses the draft model's prediction as a
    feature.
    """

    def shares(self, x: Features) -> Features:
        """Predict how long each hardware unit is busy, relative to the busiest unit.

        Args:
            x: counters with one row per program.

        Returns:
            Features with one row per program and one column per unit.
        """


class Surrogate(CostModel, Protocol):
    """A regressor with uncertainty that can choose batches of candidates to measure together.

    The predictions and their uncertainty refer to the true latency, without the noise of a further
    measurement.
    """

    def fit(self, x: Features, y: Floats, variance: Floats | None = None) -> None:
        """Fit the model like `CostModel.fit`, but with known noise of the targets.

        Args:
            x: features with n rows.
            y: targets of shape (n,).
            variance: known part of the noise variance of each target, shape (n,), or None. The
                model estimates additional noise itself.
        """

    def propose(
        self, x: Features, offset: Floats, best: float, log_chance: Floats, n: int
    ) -> NDArray[np.int64]:
        """Choose a batch by expected improvement times the probability of being valid.

        Args:
            x: features of m candidates.
            offset: known part of each candidate's target, shape (m,). The model was fitted to
                targets minus this part, so the offset is added to its predictions.
            best: lowest target measured so far; lower is better.
            log_chance: log probability that each candidate is valid, shape (m,).
            n: number of candidates to choose.

        Returns:
            Row indices of the chosen candidates, shape (n,).
        """


@runtime_checkable
class Boosted(Protocol):
    """A cost model of boosted trees that exposes the XGBoost or LightGBM object it is built on.

    Attributes:
        booster: the booster object of the library.
    """

    booster: Any


@runtime_checkable
class VetoModel(CostModel, Protocol):
    """A classifier of validity with a probability threshold below which configs are vetoed."""

    @property
    def threshold(self) -> float:
        """Probability of being valid below which a config may be vetoed, that is, not compiled."""

    def accept(self, chance: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return for each config whether it must be kept, that is, must not be vetoed.

        Args:
            chance: predicted probability that each config is valid, shape (n,).

        Returns:
            Bool array of shape (n,); False for configs that may be vetoed.
        """


class Learners(Protocol):
    """Source of features and untrained models for tuners.

    `models.model_registry.ModelLibrary` implements this protocol, and `models.make_explorer` passes
    it to each tuner. Methods that compute features return one row per config or program.
    """

    def tree_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute features for tree models that are known before compilation.

        Args:
            problem: the tuning problem.
            configs: knob indices, int array of shape (n, knobs).
        """

    def absolute_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute features for tree models that learn from several workloads.

        All spaces with the same knobs have the same columns. A column is therefore kept even if it
        has the same value for all configs of the space of `problem`.

        Args:
            problem: the tuning problem.
            configs: knob indices, int array of shape (n, knobs).
        """

    def loop_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute AutoTVM's features of the loop nest.

        Args:
            problem: the tuning problem.
            configs: knob indices, int array of shape (n, knobs).
        """

    def gp_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute features on a common scale, for models that use distances.

        Gaussian processes are models of this type.

        Args:
            problem: the tuning problem.
            configs: knob indices, int array of shape (n, knobs).
        """

    def hidden_features(self, hidden: Features) -> Features:
        """Compute model inputs from the counters of compiled programs.

        Args:
            hidden: counters that lowering reported, one row per program.
        """

    def relative_features(self, hidden: Features) -> Features:
        """Compute model inputs from counters that do not grow with the size of the workload.

        With these inputs, one model can learn from workloads of different sizes.

        Args:
            hidden: counters that lowering reported, one row per program.
        """

    def work(self, hidden: Features) -> Floats:
        """Estimate how much programs compute and transfer, from their counters.

        The estimates rank programs before any measurement: programs with less work first.

        Args:
            hidden: counters that lowering reported, one row per program.

        Returns:
            Estimates in log2, shape (n,).
        """

    def draft(self, hidden: Features) -> Draft:
        """Build an untrained draft model, which predicts latency from program counters.

        Args:
            hidden: counters of compiled programs. Only their columns are used, not their values.
        """

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """Build an untrained regressor.

        Args:
            kind: name of the kind of model, such as "xgboost".
            seed: seed of the random generator.
            **parameters: hyperparameters by name.

        Raises:
            UnknownName: no kind of model has this name.
        """

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """Build an untrained classifier.

        Args:
            kind: name of the kind of model, such as "xgboost".
            seed: seed of the random generator.
            **parameters: hyperparameters by name.

        Raises:
            UnknownName: no kind of model has this name.
        """

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        """Build an untrained Model V, which predicts the probability that a config is valid.

        Args:
            seed: seed of the random generator.
            **parameters: hyperparameters by name.
        """

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        """Build an untrained regressor that also predicts its uncertainty.

        Args:
            seed: seed of the random generator.
            **parameters: hyperparameters by name.
        """
