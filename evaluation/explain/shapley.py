"""How much each feature moved a model's predictions: Shapley values.

For boosted trees both libraries compute them exactly (`pred_contribs`; Lundberg et al., Consistent
Individualized Feature Attribution for Tree Ensembles, 2018), in the model's own unit: log-odds for
a classifier. Any other model is sampled: random orders of the features, each from a random row of
the background to the row in question (Štrumbelj & Kononenko, Explaining prediction models and
individual predictions with feature contributions, 2014), with every order walked both ways.
"""

from __future__ import annotations

import numpy as np

from search.learning import CostModel, Matrix

_ORDERS = 8


def shapley_values(model: CostModel, x: Matrix, background: Matrix, seed: int = 0) -> Matrix:
    """Shape (rows, features): contributions that add up to a prediction's difference from the mean
    one. `background` are rows that stand for what the model usually sees."""
    booster = getattr(model, "booster", None)
    if booster is None:
        return _sampled(model, x, background, seed)
    if model.suffix == ".ubj":
        import xgboost as xgb

        data = xgb.DMatrix(x, nthread=1)
        return np.asarray(
            booster.predict(data, pred_contribs=True, validate_features=False), np.float64
        )[:, :-1]
    return np.asarray(booster.predict(x, pred_contrib=True, num_threads=1), np.float64)[:, :-1]


def is_exact(model: CostModel) -> bool:
    """Whether the values of this model are exact, not sampled."""
    return getattr(model, "booster", None) is not None


def _sampled(model: CostModel, x: Matrix, background: Matrix, seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    rows, features = x.shape
    total = np.zeros_like(x, dtype=np.float64)
    for _ in range(_ORDERS):
        order = rng.permutation(features)
        start = background[rng.integers(0, len(background), rows)]
        for walk in (order, order[::-1]):
            # Step k has the first k features of the walk from x, the others from the background.
            taken = np.zeros((features + 1, 1, features), dtype=np.bool_)
            for k, feature in enumerate(walk):
                taken[k + 1 :, 0, feature] = True
            steps = np.where(taken, x[None], start[None])
            predicted = model.predict(steps.reshape(-1, features)).reshape(features + 1, rows)
            total[:, walk] += np.diff(predicted, axis=0).T
    return total / (2 * _ORDERS)
