"""Tests every kind of learner: seeds, degenerate data, and better results than a constant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.matrices import numbered
from tilewright.core.errors import UnknownName
from tilewright.models.base_model import WrongFeatures
from tilewright.models.model_registry import build, list_kinds
from tilewright.search.cost_model_protocols import CostModel
from tilewright.targets.features import Features

RNG = np.random.default_rng(0)
# Counts, as the price model needs them. Every kind can learn the sum of two of them.
X, HELD_OUT = RNG.integers(1, 60, (160, 5)).astype(float), RNG.integers(1, 60, (200, 5)) * 1.0
CLASSIFIERS = [
    kind for kind in list_kinds() if kind in ("xgboost", "lightgbm", "forest", "validity")
]
REGRESSORS = [kind for kind in list_kinds() if kind not in ("validity",)]


def _cost(x: np.ndarray) -> np.ndarray:
    return np.log2(30.0 * x[:, 0] + 10.0 * x[:, 1])


def _fitted(kind: str, classify: bool, y: np.ndarray, seed: int = 0) -> CostModel:
    model = build(kind, seed, classify, {})
    model.fit(numbered(X[: len(y)]), y)
    return model


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_regressor_leaves_at_most_half_of_the_variance(kind: str) -> None:
    predicted = _fitted(kind, False, _cost(X)).predict(numbered(HELD_OUT))
    truth = _cost(HELD_OUT)
    assert predicted.shape == truth.shape
    assert np.mean((predicted - truth) ** 2) < 0.5 * truth.var()


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_classifier_gives_chances_that_beat_the_base_rate(kind: str) -> None:
    chance = _fitted(kind, True, (X[:, 0] > X[:, 1]).astype(float)).predict(numbered(HELD_OUT))
    truth = HELD_OUT[:, 0] > HELD_OUT[:, 1]
    assert ((chance >= 0) & (chance <= 1)).all()
    assert np.mean((chance - truth) ** 2) < 0.5 * truth.var()


@pytest.mark.parametrize(
    ("kind", "classify"),
    [*((kind, False) for kind in REGRESSORS), *((kind, True) for kind in CLASSIFIERS)],
)
def test_equal_seeds_give_equal_predictions(kind: str, classify: bool) -> None:
    y = (X[:, 0] > X[:, 1]).astype(float) if classify else _cost(X)
    one, two = (_fitted(kind, classify, y, seed=7).predict(numbered(HELD_OUT)) for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", ["forest", "validity"])
def test_what_is_random_in_a_model_comes_from_its_seed(kind: str) -> None:
    y = (X[:, 0] > X[:, 1]).astype(float)
    one, two = (_fitted(kind, True, y, seed=seed).predict(numbered(HELD_OUT)) for seed in (1, 2))
    assert (one != two).any()


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_one_class_alone_is_learned_as_likely_not_as_certain(kind: str, outcome: float) -> None:
    chance = _fitted(kind, True, np.full(12, outcome)).predict(numbered(HELD_OUT))
    assert np.ptp(chance) == 0
    assert 0.005 < abs(chance[0] - outcome) < 0.1


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_single_row_is_learned_as_a_constant(kind: str) -> None:
    predicted = _fitted(kind, False, np.array([0.75])).predict(numbered(X[:1]))
    assert np.isfinite(predicted).all()


def test_an_unknown_kind_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"learner.*xgbost.*xgboost"):
        build("xgbost", 0, False, {})


@pytest.mark.parametrize("kind", list_kinds())
def test_a_model_refuses_features_it_was_not_fitted_on(kind: str) -> None:
    y = (X[:, 0] > X[:, 1]).astype(float) if kind == "validity" else _cost(X)
    model = _fitted(kind, kind == "validity", y)
    asked = numbered(HELD_OUT)
    assert model.columns == asked.names
    with pytest.raises(WrongFeatures, match="a different order"):
        model.predict(Features(asked.matrix, asked.columns[::-1]))
    with pytest.raises(WrongFeatures, match=r"lack x4 and have also y"):
        model.predict(Features.from_names(HELD_OUT, ["x0", "x1", "x2", "x3", "y"]))


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm"])
def test_trees_that_cut_what_is_unknown_from_all_numbers_are_read_as_saved(
    kind: str, tmp_path: Path
) -> None:
    """A split between NaN and all numbers has an infinite threshold in LightGBM."""
    x = np.where(RNG.random((160, 3)) < 0.5, np.nan, 1.0)
    model = build(kind, 0, False, {})
    model.fit(numbered(x), np.isnan(x[:, 0]) * 1.0)
    model.save(tmp_path / "model")
    again = build(kind, 0, False, {})
    again.load(tmp_path / "model")
    assert np.ptp(model.predict(numbered(x))) > 0.5
    np.testing.assert_array_equal(again.predict(numbered(x)), model.predict(numbered(x)))
