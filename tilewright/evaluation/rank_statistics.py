"""Computes statistics of ranks. Importing SciPy's and scikit-learn's takes longer than a page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def average_ranks(values: Floats) -> Floats:
    """Ranks from 1, shape (n,), equal values their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(np.cumsum(counts) - (counts - 1) / 2)[places]


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's, of two rows (n,); 0 if one is constant or n < 3."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    middle = (len(a) + 1) / 2  # the mean rank
    x, y = average_ranks(a) - middle, average_ranks(b) - middle
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def area_under_roc(positive: NDArray[np.bool_], scores: Floats) -> float:
    """The chance that a positive row scores above a negative one, both (n,), by the Mann-Whitney
    statistic; NaN if only one class occurs."""
    count = int(positive.sum())
    if count in (0, len(positive)):
        return float("nan")
    above = average_ranks(scores)[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(positive) - count)))


def calibration(positive: Floats, chance: Floats, bins: int) -> tuple[Floats, Floats]:
    """Of rows (n,) in `bins` of equal size by their `chance`: the mean chance and the share that is
    positive, both (m,); bins that equal chances leave empty are left out."""
    edges = np.quantile(chance, np.linspace(0, 1, bins + 1)[1:-1])
    place = np.searchsorted(edges, chance)
    total = np.bincount(place, minlength=bins)
    filled = total > 0
    sums = (np.bincount(place, each, minlength=bins)[filled] for each in (chance, positive))
    mean, share = (each / total[filled] for each in sums)
    return mean, share
