"""Confidence intervals that resample groups, such as layers, and the runs within each group.

A bootstrap over seeds alone shows how certain a figure is for these layers. Resampling the layers
(or networks, or pairs), too, shows how certain the figure is for other layers of this kind. The
method is the hierarchical bootstrap (Davison & Hinkley, Bootstrap Methods and their Application,
1997, section 3.8): groups are drawn with replacement, and then runs within each drawn group.
`scipy.stats.bootstrap` resamples on one level only. With only a few groups, the interval is still
too narrow; tables therefore state the number of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[..., Floats]

RESAMPLES = 2000
COVERAGE = (0.025, 0.975)


class Interval(NamedTuple):
    """A figure with the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%}-{self.high:.1%})"

    def text(self, digits: int, dash: str = "–") -> str:
        """Format the figure and the ends with `digits` decimals: `0.79 (0.74–0.84)`."""
        value, low, high = (f"{number:.{digits}f}" for number in self)
        return f"{value} ({low}{dash}{high})"


def hierarchical(figure: Statistic, *runs: Floats, paired: bool = False) -> Interval:
    """Return a statistic of runs with its confidence interval.

    Args:
        figure: function from arrays of shape (..., groups, runs) to an array of shape (...).
        *runs: arrays of shape (groups, runs). All arrays have the same groups, which are resampled
            together.
        paired: whether runs are resampled together for all arrays, as for two methods with equal
            seeds. By default, they are resampled separately for each array.
    """
    rng = np.random.default_rng(0)
    groups = len(runs[0])
    drawn = rng.integers(0, groups, (RESAMPLES, groups, 1))
    resampled, places = [], None
    for run in runs:
        if places is None or not paired:
            places = rng.integers(0, run.shape[1], (RESAMPLES, groups, run.shape[1]))
        resampled.append(run[drawn, places])
    # An order statistic, since between infinite figures there is nothing to interpolate.
    low, high = np.quantile(figure(*resampled), COVERAGE, method="inverted_cdf")
    return Interval(float(figure(*runs)), float(low), float(high))


def crossed_mean(runs: Floats) -> Interval:
    """Return the mean of runs, shape (groups, runs), with its interval.

    A run is one draw for all groups, such as a model that is evaluated on every task. Groups and
    runs are therefore resampled independently.
    """
    rng = np.random.default_rng(0)
    groups, count = runs.shape
    drawn = rng.integers(0, groups, (RESAMPLES, groups, 1))
    places = rng.integers(0, count, (RESAMPLES, 1, count))
    low, high = np.quantile(runs[drawn, places].mean(axis=(-2, -1)), COVERAGE)
    return Interval(float(runs.mean()), float(low), float(high))


def ratio_of_medians(mine: Floats, other: Floats) -> Floats:
    """Return the geometric mean over groups of ratios of medians over runs.

    Both arrays have shape (..., groups, runs).
    """
    ratio = np.median(mine, axis=-1) / np.median(other, axis=-1)
    return np.asarray(np.exp(np.log(ratio).mean(axis=-1)))


def ratio_of_means(mine: Floats, other: Floats) -> Floats:
    """Return the ratio of means over groups and runs, for counts whose medians may be 0.

    Both arrays have shape (..., groups, runs).
    """
    return np.asarray(mine.mean(axis=(-2, -1)) / other.mean(axis=(-2, -1)))
