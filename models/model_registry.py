"""Registry of the kinds of models that tuners can use, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import UnknownName
from tilewright.models.counter_regression import CounterRegression
from tilewright.models.features import (
    every_tree_column,
    gp_features,
    loop_features,
    tree_features,
)
from tilewright.models.gaussian import GaussianProcess
from tilewright.models.hidden_features import hidden_features, relative_features, work
from tilewright.search.cost_model_protocols import CostModel, Learners, Surrogate, VetoModel
from tilewright.search.problem import Problem
from tilewright.targets.base import Configs
from tilewright.targets.features import Features

_KINDS = {
    "xgboost": "tilewright.models.trees:XGBoost",
    "autotvm-ranker": "tilewright.models.trees:AutoTVMRanker",
    "lightgbm": "tilewright.models.trees:LightGBM",
    "forest": "tilewright.models.trees:Forest",
    "gaussian": "tilewright.models.gaussian:GaussianProcess",
    "draft": "tilewright.models.counter_regression:CounterRegression",
    "validity": "tilewright.models.validity:Validity",
}
"""Import path of the class of each kind of model. A class is imported only when a model is built,
because its library takes a second to load."""


def list_kinds() -> list[str]:
    """Return the names of the registered kinds of models, sorted."""
    return sorted(_KINDS)


def build(kind: str, seed: int, classify: bool, parameters: dict[str, float]) -> CostModel:
    """Build an untrained model.

    Args:
        kind: name of the kind of model, as in `list_kinds`.
        seed: seed of the random generator.
        classify: whether the model predicts a probability instead of a number.
        parameters: hyperparameters by name.

    Raises:
        UnknownName: no kind of model has this name.
    """
    if kind not in _KINDS:
        raise UnknownName("learner", kind, list_kinds())
    module, _, name = _KINDS[kind].partition(":")
    model_class: Callable[[int, bool, dict[str, float]], CostModel]
    model_class = getattr(importlib.import_module(module), name)
    return model_class(seed, classify, parameters)


def load_model(kind: str, classify: bool, columns: Sequence[str], path: Path) -> CostModel:
    """Load a model from a file of the user's own workspace or model registry.

    XGBoost and LightGBM trust their files, and a crafted file can execute code. Never pass a file
    to this function that somebody else made.

    Args:
        kind: name of the kind of model, as in `list_kinds`.
        classify: whether the model predicts a probability instead of a number.
        columns: names of the features that the model was fitted to; empty if they are unknown.
        path: file that `CostModel.save` wrote.

    Returns:
        The fitted model.

    Raises:
        UnknownName: no kind of model has this name.
        OSError: the file cannot be read.
        ValueError: the file is damaged.
        KeyError: an array is missing in the file.
    """
    model = build(kind, 0, classify, {})
    model.load(path)
    model.columns = tuple(columns)
    return model


class ModelLibrary(Learners):
    """Source of the features and untrained models of this package, for tuners.

    Tuners know only the protocol `search.cost_model_protocols.Learners`, which documents the
    methods, because `search` must not import `models`.
    """

    def tree_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute features for tree models that are known before compilation, per config."""
        return tree_features(problem.workload, problem.space, configs)

    def absolute_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute features for tree models that learn from several workloads, per config."""
        return every_tree_column(problem.workload, problem.space, configs)

    def loop_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute AutoTVM's features of the loop nest, one row per config."""
        return loop_features(problem.workload, problem.space, configs)

    def gp_features(self, problem: Problem, configs: Configs) -> Features:
        """Compute features for models that use distances, such as Gaussian processes."""
        return gp_features(problem.workload, problem.space, configs)

    def hidden_features(self, hidden: Features) -> Features:
        """Compute model inputs from the counters of compiled programs, one row per program."""
        return hidden_features(hidden)

    def relative_features(self, hidden: Features) -> Features:
        """Compute model inputs from counters that do not grow with the size of the workload."""
        return relative_features(hidden)

    def work(self, hidden: Features) -> NDArray[np.float64]:
        """Estimate in log2 how much each program computes and transfers, shape (n,)."""
        return work(hidden)

    def draft(self, hidden: Features) -> CounterRegression:
        """Build an untrained `CounterRegression`, which has one price per counter in `hidden`."""
        return CounterRegression.for_counters(hidden)

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """Build an untrained regressor of a kind such as `xgboost`."""
        return build(kind, seed, False, parameters)

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        """Build an untrained classifier of a kind such as `xgboost`."""
        return build(kind, seed, True, parameters)

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        """Build an untrained Gaussian process."""
        return GaussianProcess(seed, False, parameters)

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        """Build an untrained Model V, which predicts whether configs are valid."""
        from tilewright.models.validity import Validity

        return Validity(seed, True, parameters)
