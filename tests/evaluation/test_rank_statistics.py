"""Compares rank statistics, ties included, with SciPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.evaluation.explain.figures import (
    area_under_roc,
    average_ranks,
    calibration,
    rank_correlation,
)


@pytest.mark.slow(seconds=3)  # importing both libraries
def test_they_are_those_of_the_libraries() -> None:
    from scipy import stats
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    for levels in (3, 20, 10_000):  # many ties, some, hardly any
        a, b = rng.integers(0, levels, (2, 200)).astype(np.float64) / levels
        positive = rng.random(200) < 0.3 + 0.4 * a
        assert average_ranks(a) == pytest.approx(stats.rankdata(a))
        assert rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
        assert area_under_roc(positive, a) == pytest.approx(roc_auc_score(positive, a))
        share, mean = calibration_curve(positive, a, n_bins=10, strategy="quantile")
        result = calibration(positive.astype(np.float64), a, 10)
        assert result[0] == pytest.approx(mean)
        assert result[1] == pytest.approx(share)


def test_what_has_no_order_correlates_with_nothing() -> None:
    flat, rising = np.ones(5), np.arange(5.0)
    assert rank_correlation(flat, rising) == rank_correlation(rising[:2], rising[:2]) == 0
    assert rank_correlation(rising, rising) == pytest.approx(1)
    assert np.isnan(area_under_roc(np.ones(5, dtype=np.bool_), rising))
