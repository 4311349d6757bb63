"""Tests the Gaussian process: interpolation, coverage of its intervals, length scales, batches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct, Matern

from tests.models.matrices import numbered
from tilewright.models.gaussian import (
    _LINEAR,
    _NOISE,
    _NOISE_SPREAD,
    GaussianProcess,
    _evidence,
)
from tilewright.search.acquisition import log_expected_improvement

Matrix = np.ndarray


def _truth(x: Matrix) -> np.ndarray:
    """Target function. It does not depend on the fourth column."""
    return np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 - 0.3 * x[:, 2]


def _fitted(x: Matrix, y: np.ndarray) -> GaussianProcess:
    model = GaussianProcess(0, False, {})
    model.fit(numbered(x), y)
    return model


def test_without_noise_it_interpolates_and_knows_where_it_has_been() -> None:
    rng = np.random.default_rng(0)
    x, elsewhere = rng.normal(size=(80, 4)), rng.normal(size=(500, 4))
    model = _fitted(x, _truth(x))
    assert np.abs(model.predict(numbered(x)) - _truth(x)).max() < 0.01
    here, there, far = (model.spread(numbered(rows)) for rows in (x, elsewhere, elsewhere + 10.0))
    assert here.max() < 0.05
    assert 1.5 * np.median(here) < np.median(there) < 0.1 * np.median(far)
    error = np.sqrt(np.mean((model.predict(numbered(elsewhere)) - _truth(elsewhere)) ** 2))
    assert error < 0.35 * _truth(elsewhere).std()


def test_its_predictions_and_spreads_are_those_of_scikit_learn() -> None:
    """scikit-learn uses the hyper-parameters that our model found."""
    rng = np.random.default_rng(4)
    x, elsewhere = rng.normal(size=(60, 4)), rng.normal(size=(200, 4))
    y = _truth(x) + 0.1 * rng.normal(size=60)
    model = _fitted(x, y)
    kernel = Matern(1.0, "fixed", nu=2.5) + model.linear * DotProduct(0.0, "fixed")
    known = GaussianProcessRegressor(kernel, alpha=model.noise, optimizer=None)
    known.fit(x / model.lengths, (y - model.mean) / model.scale)
    mean, spread = known.predict(elsewhere / model.lengths, return_std=True)
    result = model.predict(numbered(elsewhere))
    np.testing.assert_allclose(result, mean * model.scale + model.mean, atol=1e-6)
    np.testing.assert_allclose(model.spread(numbered(elsewhere)), spread * model.scale, atol=1e-4)


def test_its_evidence_is_that_of_scikit_learn() -> None:
    """Only differences of the log evidence are compared.

    Ours omits a constant term and includes priors.
    """
    rng = np.random.default_rng(5)
    x, width = rng.normal(size=(40, 3)), 3
    z = _truth(np.column_stack([x, x[:, 0]]))
    z = (z - z.mean()) / z.std()
    differences = []
    for _ in range(2):
        theta = 0.5 * rng.normal(size=5)
        noise, linear = np.exp(theta[-2:])
        scaled = x / np.exp(theta[:width])
        kernel = Matern(1.0, "fixed", nu=2.5) + linear * DotProduct(0.0, "fixed")
        known = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(scaled, z)
        median = np.array([*[0.5 * np.log(width)] * width, _NOISE, _LINEAR])
        precision = np.array([1.0, 1.0, 1.0, _NOISE_SPREAD**-2, 1.0])
        prior = 0.5 * (precision * (theta - median) ** 2).sum()
        differences.append(_evidence(theta, x, z)[0] - prior + known.log_marginal_likelihood())
    assert differences[0] == pytest.approx(differences[1], abs=1e-6)


def test_a_proposal_among_many_is_that_among_the_most_promising() -> None:
    rng = np.random.default_rng(6)
    x, many = rng.normal(size=(60, 4)), rng.normal(size=(4096, 4))
    model = _fitted(x, _truth(x))
    best, nothing = float(_truth(x).min()), np.zeros(len(many))
    rows = model.propose(numbered(many), nothing, best, nothing, 4)
    mean, spread = model.predict(numbered(many)), model.spread(numbered(many))
    assert rows[0] == np.argmax(log_expected_improvement(mean, spread, best))
    assert len(set(rows.tolist())) == 4


@pytest.mark.parametrize("nominal", [0.5, 0.8, 0.95])
@pytest.mark.slow(seconds=2)
def test_intervals_cover_held_out_points_about_as_often_as_they_say(nominal: float) -> None:
    """The coverage is the mean over 8 data sets. The intervals are for noisy observations."""
    covered = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, held_out = rng.normal(size=(80, 4)), rng.normal(size=(1000, 4))
        model = _fitted(x, _truth(x) + 0.1 * rng.normal(size=80))
        seen = _truth(held_out) + 0.1 * rng.normal(size=1000)
        spread = np.hypot(model.spread(numbered(held_out)), np.sqrt(model.noise) * model.scale)
        within = norm.ppf(0.5 + nominal / 2) * spread
        covered.append(np.mean(np.abs(model.predict(numbered(held_out)) - seen) <= within))
    assert np.mean(covered) == pytest.approx(nominal, abs=0.07)


def test_the_noise_it_finds_is_that_of_the_data() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(240, 4))
    model = _fitted(x, _truth(x) + 0.2 * rng.normal(size=240))
    assert np.sqrt(model.noise) * model.scale == pytest.approx(0.2, rel=0.3)


def test_a_feature_that_does_nothing_gets_the_longest_length() -> None:
    x = np.random.default_rng(1).normal(size=(100, 4))
    lengths = _fitted(x, np.sin(2 * x[:, 0]) + np.cos(2 * x[:, 1]) + np.sin(x[:, 2])).lengths
    assert lengths.argmax() == 3
    assert lengths[3] > 4 * lengths[:3].max()


def test_the_gradient_of_the_evidence_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(20, 3))
    z = rng.normal(size=20)
    for _ in range(5):
        theta = rng.normal(size=5) * 0.5
        error = check_grad(
            lambda t: _evidence(t, x, z)[0], lambda t: _evidence(t, x, z)[1], theta
        )  # fmt: skip
        assert error < 1e-4 * max(1.0, np.abs(_evidence(theta, x, z)[1]).max())


def test_a_batch_is_spread_out_and_skips_what_is_hardly_valid() -> None:
    x = np.array([[-4.0], [-2.0], [-1.0], [1.0], [3.0], [4.0]])
    model = _fitted(x, np.sin(2 * x[:, 0]))
    places = np.repeat(np.linspace(-5, 5, 81), 3)[:, None]
    likely = np.where(places[:, 0] < 0.3, np.log(0.9), np.log(1e-9))
    rows = model.propose(numbered(places), np.zeros(len(places)), -1.0, likely, 6)
    assert len(set(rows.tolist())) == 6
    assert (places[rows, 0] < 0.3).all()
    assert len(set(places[rows, 0].tolist())) > 2  # each config occurs three times


def test_two_rows_of_one_value_or_none_at_all_are_no_error() -> None:
    x = np.array([[0.0, np.nan], [1.0, 2.0]])
    model = _fitted(x, np.array([5.0, 5.0]))
    np.testing.assert_allclose(model.predict(numbered(x)), 5.0, atol=1e-6)
    nothing = _fitted(np.empty((0, 2)), np.empty(0))
    assert np.isfinite(nothing.predict(numbered(x))).all()
    assert (nothing.spread(numbered(x)) > 0).all()


def _restless(seed: int) -> tuple[Matrix, np.ndarray, np.ndarray]:
    """Return points of which every third has the noise 0.02, and the others 0.6."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(90, 4))
    spread = np.where(np.arange(90) % 3 == 0, 0.02, 0.6)
    return x, _truth(x) + spread * rng.normal(size=90), spread**2


@pytest.mark.slow(seconds=3)
def test_told_the_noise_of_each_point_it_believes_the_quiet_ones() -> None:
    """Known noise levels reduce the held-out error in each draw, by a fifth on average."""
    errors = []
    for seed in range(8):
        x, y, variance = _restless(seed)
        elsewhere = np.random.default_rng(100 + seed).normal(size=(500, 4))
        told = GaussianProcess(0, False, {})
        told.fit(numbered(x), y, variance)
        results = [item.predict(numbered(elsewhere)) for item in (told, _fitted(x, y))]
        errors.append([np.sqrt(np.mean((item - _truth(elsewhere)) ** 2)) for item in results])
    informed, ignorant = np.array(errors).T
    assert (informed < ignorant).all()
    assert informed.mean() < 0.8 * ignorant.mean()


@pytest.mark.slow(seconds=1)
def test_on_top_of_known_noise_it_learns_what_is_left() -> None:
    """The stated noise is 0.05. If the real noise is 0.3, the model estimates the remainder.

    If the real noise is also 0.05, the model estimates no further noise.
    """
    rng = np.random.default_rng(3)
    x = rng.normal(size=(240, 4))
    results = []
    for real in (0.3, 0.05):
        model = GaussianProcess(0, False, {})
        model.fit(numbered(x), _truth(x) + real * rng.normal(size=240), np.full(240, 0.05**2))
        results.append(np.sqrt(model.noise) * model.scale)
    assert results[0] == pytest.approx(0.3, rel=0.3)
    assert results[1] == pytest.approx(0.05, rel=0.5)


def test_known_noise_of_nothing_is_none() -> None:
    x = np.random.default_rng(0).normal(size=(40, 4))
    silent = GaussianProcess(0, False, {})
    silent.fit(numbered(x), _truth(x), np.zeros(40))
    assert np.array_equal(silent.predict(numbered(x)), _fitted(x, _truth(x)).predict(numbered(x)))


def test_the_slope_of_the_evidence_is_right_beside_known_noise() -> None:
    rng = np.random.default_rng(1)
    x, known = rng.normal(size=(30, 4)), rng.uniform(0.01, 0.5, 30)
    z = _truth(x)
    theta = rng.normal(0.3, 0.3, 6)
    error = check_grad(
        lambda t: _evidence(t, x, z, known)[0], lambda t: _evidence(t, x, z, known)[1], theta
    )
    assert error < 1e-3
