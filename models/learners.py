"""Every kind of model explorers can ask for, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.autotvm_ranker import AutoTVMRanker
from models.draft import Draft
from models.features import gp_features, tree_features
from models.forest import Forest
from models.gaussian import GaussianProcess
from models.hidden_features import hidden_features, work
from models.loop_features import loop_features
from models.trees import LightGBM, XGBoost
from models.validity import Validity
from search.learning import CostModel, Surrogate, VetoModel
from search.problem import Problem
from targets.base import Configs
from targets.errors import UnknownName
from targets.features import Features

_KINDS: dict[str, Callable[[int, bool, dict[str, float]], CostModel]] = {
    "xgboost": XGBoost,
    "autotvm-ranker": AutoTVMRanker,
    "lightgbm": LightGBM,
    "forest": Forest,
    "gaussian": GaussianProcess,
    "draft": Draft,
    "validity": Validity,
}


def kinds() -> list[str]:
    """The names of all model kinds."""
    return sorted(_KINDS)


def build(kind: str, seed: int, classify: bool, parameters: dict[str, float]) -> CostModel:
    """An untrained model. Raises `UnknownName`."""
    if kind not in _KINDS:
        raise UnknownName("learner", kind, kinds())
    return _KINDS[kind](seed, classify, parameters)


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
        return Draft.of(hidden)

    def regressor(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return build(kind, seed, False, parameters)

    def classifier(self, kind: str, seed: int, **parameters: float) -> CostModel:
        return build(kind, seed, True, parameters)

    def surrogate(self, seed: int, **parameters: float) -> Surrogate:
        return GaussianProcess(seed, False, parameters)

    def validity(self, seed: int, **parameters: float) -> VetoModel:
        return Validity(seed, True, parameters)


LEARNERS = Toolbox()
