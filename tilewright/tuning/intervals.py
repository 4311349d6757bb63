"""Computes how sure a figure is that was measured several times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.core.lazy_module import lazy_module

stats = lazy_module("scipy.stats")

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Two numbers in JSON."""

    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval | None:
    """Of the median of what `values`, (n,), are drawn from, at `CONFIDENCE` or above whatever its
    distribution: by order statistics. NaN is left out; None for fewer than six values, of which
    there is no such interval."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if len(known) < 2:
        return None
    found = stats.quantile_test(known, p=0.5).confidence_interval(CONFIDENCE)
    ends = Interval(float(found.low), float(found.high))
    return ends if np.isfinite(ends).all() else None


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """The same of a ratio that was measured in turns: what drifts from turn to turn cancels out. Of
    turns that one of the two does not have nothing is taken."""
    turns = min(len(above), len(below))
    return interval_of(np.divide(above[:turns], below[:turns]).tolist())
