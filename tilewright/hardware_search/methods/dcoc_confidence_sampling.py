"""Confidence sampling of DCOC: selects points to measure, given points that agents visited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.methods.joint_space import Floats, Places


def sample_by_confidence(
    places: Places, scores: Floats, count: int, sharpness: float, threshold: float,
    rng: np.random.Generator,
) -> Places:  # fmt: skip
    """Select points to measure with DCOC's confidence sampling.

    Points are drawn without replacement, with probabilities from the softmax of their scores. If
    the score of a drawn point lies below a quantile of all scores, the point is replaced by a new
    one. The new point has the most frequent value of each knob among the points at or above that
    quantile. Each replacement considers only a random half of these points, so that the
    replacements differ.

    Args:
        places: the points, int array of shape (points, knobs).
        scores: predicted rewards of the points, float array of shape (points,).
        count: maximum number of points to select.
        sharpness: factor of the standardised scores in the softmax.
        threshold: quantile, from 0 to 1, below which a point is replaced.
        rng: random generator.

    Returns:
        The selected points, int array of shape (n, knobs) with n ≤ `count`. Replacements need not
        be among `places`, and may equal each other or other points.
    """
    spread = float(scores.std())
    weight = np.exp(sharpness * (scores - scores.max()) / (spread or 1.0))
    possible = int((weight > 0).sum())
    drawn = rng.choice(len(places), min(count, possible), False, weight / weight.sum())
    limit = np.quantile(scores, threshold)
    good = places[scores >= limit]
    result = places[drawn].copy()
    for row in np.flatnonzero(scores[drawn] < limit).tolist():
        half = good[rng.choice(len(good), -(-len(good) // 2), False)]
        result[row] = most_frequent_values(half)
    return result


def most_frequent_values(places: Places) -> NDArray[np.int64]:
    """Return the most frequent index of each knob among points; the lowest one in a tie.

    Args:
        places: the points, int array of shape (points, knobs).

    Returns:
        Int array of shape (knobs,).
    """
    counts = np.zeros((places.shape[1], int(places.max()) + 1), np.int64)
    np.add.at(counts, (np.arange(places.shape[1]), places), 1)
    return np.asarray(counts.argmax(axis=1))
