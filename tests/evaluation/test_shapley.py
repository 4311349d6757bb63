"""Checks that Shapley values add up to the prediction and rank features by their influence."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.matrices import numbered
from tilewright.evaluation.explain.refitted_models import is_exact, shapley_values
from tilewright.models.model_registry import build
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.features import Features

RNG = np.random.default_rng(0)
X = numbered(RNG.normal(size=(80, 4)))
FIRST = np.arange(20)
Y = 3.0 * X.matrix[:, 0] - X.matrix[:, 1] + 0.5 * X.matrix[:, 0] * X.matrix[:, 2]


def _fitted(kind: str) -> CostModel:
    model = build(kind, 0, False, {})
    model.fit(X, Y)
    return model


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "gaussian"])
def test_contributions_differ_between_rows_as_predictions_do(kind: str) -> None:
    model = _fitted(kind)
    values = shapley_values(model, X.rows(FIRST), X)
    assert values.shape == (20, 4)
    rest = model.predict(X.rows(FIRST)) - values.sum(axis=1)
    # The remainder is the mean prediction, for sampled values that of a background sample.
    spread = 1e-4 if is_exact(model) else 3.0 * model.predict(X).std() / np.sqrt(8)
    assert np.abs(rest - rest.mean()).max() <= spread
    assert abs(rest.mean() - model.predict(X).mean()) < 1.0


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "gaussian"])
def test_features_rank_by_what_they_do(kind: str) -> None:
    sizes = np.abs(shapley_values(_fitted(kind), X, X)).mean(axis=0)
    assert sizes[0] > sizes[1] > sizes[3]
    assert sizes[3] < 0.1 * sizes[0]


def test_sampled_values_approach_the_exact_ones_of_a_linear_function() -> None:
    class Linear:
        kind, suffix = "linear", ".npz"

        def predict(self, x: Features) -> np.ndarray:
            return x.matrix @ np.array([2.0, -1.0, 0.0, 0.5])

    background = numbered(np.zeros((1, 4)))
    values = shapley_values(Linear(), X.rows(FIRST[:10]), background)  # type: ignore[arg-type]
    np.testing.assert_allclose(values, X.matrix[:10] * [2.0, -1.0, 0.0, 0.5], atol=1e-12)


def test_equal_arguments_give_equal_values() -> None:
    model = _fitted("gaussian")
    first, again = (shapley_values(model, X.rows(FIRST[:5]), X, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
