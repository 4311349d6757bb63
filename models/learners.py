"""Every kind of model explorers can ask for, by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from models.features import gp_features, tree_features
from models.hidden_features import hidden_features, work
from models.loop_features import loop_features
from search.learning import CostModel, Surrogate, VetoModel
from search.problem import Problem
from targets.base import Configs
from targets.errors import UnknownName
from targets.features import Features

_KINDS = {
    "xgboost": "models.trees:XGBoost",
    "autotvm-ranker": "models.autotvm_ranker:AutoTVMRanker",
    "lightgbm": "models.trees:LightGBM",
    "forest": "models.forest:Forest",
    "gaussian": "models.gaussian:GaussianProcess",
    "draft": "models.draft:Draft",
    "validity": "models.validity:Validity",
}
"""Where each is: their libraries take a second to load, so that waits until a model is built."""


class _Kind(Protocol):
    def __call__(self, seed: int, classify: bool, parameters: dict[str, float], /) -> CostModel: ...


def kinds() -> list[str]:
    """The names of all model kinds."""
    return sorted(_KINDS)


def build(kind: str, seed: int, classify: bool, parameters: dict[str, float]) -> CostModel:
    """An untrained model. Raises `UnknownName`."""
    if kind not in _KINDS:
        raise UnknownName("learner", kind, kinds())
    module, _, name = _KINDS[kind].partition(":")
    return cast(_Kind, getattr(importlib.import_module(module), name))(seed, classify, parameters)


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
    """`search.learning.Learners` as this package implements it."""

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
        from models.draft import Draft

        return Draft.of(hidden)

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return build(kind, seed, False, parameters)

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return build(kind, seed, True, parameters)

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        from models.gaussian import GaussianProcess

        return GaussianProcess(seed, False, parameters)

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        from models.validity import Validity

        return Validity(seed, True, parameters)


LEARNERS = Toolbox()
