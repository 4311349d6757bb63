"""Lists every kind of model explorers can ask for, by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import UnknownName
from tilewright.models.counter_regression import CounterRegression
from tilewright.models.features import gp_features, tree_features
from tilewright.models.gaussian import GaussianProcess
from tilewright.models.hidden_features import hidden_features, work
from tilewright.models.loop_features import loop_features
from tilewright.search.cost_model_protocols import CostModel, Surrogate, VetoModel
from tilewright.search.problem import Problem
from tilewright.targets.base import Configs
from tilewright.targets.features import Features

_KINDS = {
    "xgboost": "tilewright.models.trees:XGBoost",
    "autotvm-ranker": "tilewright.models.autotvm_ranker:AutoTVMRanker",
    "lightgbm": "tilewright.models.trees:LightGBM",
    "forest": "tilewright.models.forest:Forest",
    "gaussian": "tilewright.models.gaussian:GaussianProcess",
    "draft": "tilewright.models.counter_regression:CounterRegression",
    "validity": "tilewright.models.validity:Validity",
}
"""Where each is: their libraries take a second to load, so that waits until a model is built."""


class _ModelMaker(Protocol):
    def __call__(self, seed: int, classify: bool, parameters: dict[str, float], /) -> CostModel: ...


def kinds() -> list[str]:
    """The names of all model kinds."""
    return sorted(_KINDS)


def build(kind: str, seed: int, classify: bool, parameters: dict[str, float]) -> CostModel:
    """An untrained model. Raises `UnknownName`."""
    if kind not in _KINDS:
        raise UnknownName("learner", kind, kinds())
    module, _, name = _KINDS[kind].partition(":")
    return cast(_ModelMaker, getattr(importlib.import_module(module), name))(
        seed, classify, parameters
    )


def load_model(kind: str, classify: bool, columns: Sequence[str], path: Path) -> CostModel:
    """A model from its file, which may come from a stranger: what a library does not check of its
    own format is checked here before it reads it. Raises `UnknownName`, `OSError`, and `ValueError`
    for a file that holds no such model."""
    model = build(kind, 0, classify, {})
    model.load(path)
    model.columns = tuple(columns)
    width = getattr(model, "width", None)
    if width is not None and len(model.columns) not in (0, width):
        raise ValueError(f"it is asked with {width} features, and {len(model.columns)} are named")
    return model


class Toolbox:
    """`search.cost_model_protocols.Learners` as this package implements it."""

    def tree_features(self, problem: Problem, configs: Configs) -> Features:
        return tree_features(problem.workload, problem.space, configs)

    def loop_features(self, problem: Problem, configs: Configs) -> Features:
        return loop_features(problem.workload, problem.space, configs)

    def gp_features(self, problem: Problem, configs: Configs) -> Features:
        return gp_features(problem.workload, problem.space, configs)

    def hidden_features(self, hidden: Features) -> Features:
        return hidden_features(hidden)

    def work(self, hidden: Features) -> NDArray[np.float64]:
        return work(hidden)

    def draft(self, hidden: Features) -> CostModel:
        return CounterRegression.of(hidden)

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return build(kind, seed, False, parameters)

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return build(kind, seed, True, parameters)

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        return GaussianProcess(seed, False, parameters)

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        from tilewright.models.validity import Validity

        return Validity(seed, True, parameters)


LEARNERS = Toolbox()
