"""Estimates how noisy a trial's figure is, and what that means for a tuner.

A target that gives other numbers each time repeats a measurement, and its figure is the median of
the repeats. How far that would be off is estimated from them, trial by trial. A model that is told
believes a quiet trial more than a restless one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Ragged

_PRIOR = 4.0  # degrees of freedom that all trials' common variance counts for
_MEDIAN = np.pi / 2.0  # variance of a median over that of a mean, of normal noise


def figure_variance(repeats: Ragged) -> NDArray[np.float64] | None:
    """Variance of log2 of each trial's median, shape (trials,), from its repeats in seconds; None
    if no trial has two.

    A variance of few repeats is itself unsure: each is drawn towards what is common to all trials,
    as in an empirical Bayes estimate (Smyth, Linear models and empirical Bayes methods, 2004).
    """
    rows = [repeats[place] for place in range(len(repeats))]
    logs = [np.log2(row[np.isfinite(row) & (row > 0)]) for row in rows]
    counts = np.array([len(row) for row in logs], dtype=np.float64)
    several = counts >= 2
    if not several.any():
        return None
    own = np.array([row.var(ddof=1) if len(row) >= 2 else 0.0 for row in logs])
    common = float(np.median(own[several]))
    freedom = np.where(several, counts - 1.0, 0.0)
    shrunk = (freedom * own + _PRIOR * common) / (freedom + _PRIOR)
    return np.asarray(_MEDIAN * shrunk / np.maximum(counts, 1.0))
