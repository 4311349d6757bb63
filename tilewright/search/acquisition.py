"""Acquisition functions: expected improvement, farthest-point sampling and merging of rankings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module

special = lazy_module("scipy.special")

_LOG_ROOT_TWO_PI = 0.5 * np.log(2 * np.pi)


def log_expected_improvement(
    mean: NDArray[np.float64], spread: NDArray[np.float64], best: float
) -> NDArray[np.float64]:
    """Compute log E[max(best - y, 0)] for y ~ N(mean, spread²).

    The formula stays numerically stable where `mean` is far above `best` and the expected
    improvement is tiny (Ament et al., Unexpected Improvements to Expected Improvement, 2023).

    Args:
        mean: predicted means, shape (n,).
        spread: predicted standard deviations, shape (n,).
        best: lowest value measured so far.

    Returns:
        Natural logarithm of the expected improvement, shape (n,).
    """
    spread = np.maximum(spread, 1e-9)
    z = (best - mean) / spread
    log_density = -0.5 * z**2 - _LOG_ROOT_TWO_PI
    near = np.maximum(z, -5.0)
    density = np.exp(-0.5 * near**2 - _LOG_ROOT_TWO_PI)
    close = np.log(density + near * special.ndtr(near))
    far = log_density - 2.0 * np.log(np.maximum(-z, 1.0))
    return np.asarray(np.where(z > -5.0, close, far) + np.log(spread))


def spread_out(x: NDArray[np.float64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose points that are far from each other by farthest-point sampling.

    The first point is random. Each further point is the one farthest from all points chosen so far.

    Args:
        x: points, one per row, shape (m, columns).
        n: number of points to choose. If `x` has fewer rows, all of them are chosen.
        rng: random generator.

    Returns:
        Indices of the chosen rows of `x`, in the order of the choice, shape (min(n, m),).
    """
    if not len(x):
        return np.empty(0, dtype=np.int64)
    order = rng.permutation(len(x))
    chosen = [int(order[0])]
    distance = ((x - x[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(n, len(x)):
        farthest = int(order[np.argmax(distance[order])])
        chosen.append(farthest)
        distance = np.minimum(distance, ((x - x[farthest]) ** 2).sum(axis=1))
        distance[chosen] = -1.0
    return np.array(chosen, dtype=np.int64)


def in_turn(one: NDArray[np.int64], other: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Merge two rankings of the same items into one, without duplicates.

    Items are taken alternately from the two rankings, in the proportion given by `share`. An item
    that the other ranking has already contributed is skipped.

    Args:
        one: first ranking: row indices of shape (a,), best first.
        other: second ranking: row indices of shape (b,), best first.
        share: fraction of the positions in the merged ranking that go to items of `one`. It must be
            greater than 0 and less than 1.

    Returns:
        Merged ranking: distinct row indices, best first.
    """
    turn = np.concatenate([np.arange(len(one)) / share, np.arange(len(other)) / (1 - share)])
    mixed = np.concatenate([one, other])[np.argsort(turn, kind="stable")]
    _, first = np.unique(mixed, return_index=True)
    return np.asarray(mixed[np.sort(first)])
