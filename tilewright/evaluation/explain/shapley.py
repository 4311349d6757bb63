"""Computes how much each feature moved a model's predictions: Shapley values.

For boosted trees both libraries compute them exactly (`pred_contribs`), in the model's own unit:
log-odds for a classifier. See Lundberg et al., Consistent Individualized Feature Attribution for
Tree Ensembles, 2018. Any other model is sampled: random orders of the features, each from a random
row of the background to the row in question, both ways. See Štrumbelj & Kononenko, Explaining
prediction models and individual predictions with feature contributions, 2014.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.search.cost_model_protocols import Boosted, CostModel
from tilewright.targets.features import Features

xgboost = lazy_module("xgboost")

_ORDERS = 8

Floats = NDArray[np.float64]


def shapley_values(model: CostModel, x: Features, background: Features, seed: int = 0) -> Floats:
    """Shape (rows, features): contributions that add up to a prediction's difference from the mean
    one. `background` are rows that stand for what the model usually sees."""
    if not isinstance(model, Boosted):
        return _sampled(model, x, background, seed)
    if model.suffix == ".ubj":
        data = xgboost.DMatrix(x.matrix, nthread=1)
        return np.asarray(
            model.booster.predict(data, pred_contribs=True, validate_features=False), np.float64
        )[:, :-1]
    found = model.booster.predict(x.matrix, pred_contrib=True, num_threads=1)
    return np.asarray(found, np.float64)[:, :-1]


def is_exact(model: CostModel) -> bool:
    """Whether the values of this model are exact, not sampled."""
    return isinstance(model, Boosted)


def _sampled(model: CostModel, x: Features, background: Features, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    here, there = np.nan_to_num(x.matrix), np.nan_to_num(background.matrix)
    rows, features = here.shape
    total = np.zeros_like(here)
    for _ in range(_ORDERS):
        order = rng.permutation(features)
        start = there[rng.integers(0, len(there), rows)]
        for walk in (order, order[::-1]):
            # Step k has the first k features of the walk from x, the others from the background.
            taken = np.zeros((features + 1, 1, features), dtype=np.bool_)
            for k, feature in enumerate(walk):
                taken[k + 1 :, 0, feature] = True
            steps = np.where(taken, here[None], start[None]).reshape(-1, features)
            predicted = model.predict(Features(steps, x.columns)).reshape(features + 1, rows)
            total[:, walk] += np.diff(predicted, axis=0).T
    return total / (2 * _ORDERS)
