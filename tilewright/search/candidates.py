"""Draws configs that a tuner may still propose: enumeration of small spaces, pools of large
ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Configs, Space

ENUMERABLE = 200_000
"""Spaces up to this size are scored completely; larger ones by a pool of candidates."""


def untried(space: Space, tried: NDArray[np.int64]) -> NDArray[np.int64]:
    """Flat indices, (n,), of a listed space or one up to `ENUMERABLE` that are not in `tried`
    (ascending)."""
    members = np.arange(space.size) if space.listed is None else np.asarray(space.listed)
    return without(members, tried)


def without(flat: NDArray[np.int64], tried: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of `flat` (n,) that are not in `tried` (m,), which is ascending."""
    return flat[~_among(flat, tried)]


def sample(
    space: Space, n: int, tried: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Distinct flat indices, shape (up to `n`,), drawn uniformly from those not in `tried` (m,),
    which is ascending."""
    if space.size <= ENUMERABLE or space.listed is not None:
        left = untried(space, tried)
        return rng.permutation(left)[:n]
    found = np.empty(0, dtype=np.int64)
    for _ in range(8):
        drawn = rng.integers(0, space.size, size=2 * n)
        fresh = np.concatenate([found, drawn[~_among(drawn, tried)]])
        _, first = np.unique(fresh, return_index=True)
        found = fresh[np.sort(first)]
        if len(found) >= n:
            break
    return found[:n]


def drawn(space: Space, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """About `n` flat indices of a space, shape (up to `n`,), ascending; all of them if it has no
    more."""
    members = None if space.listed is None else np.asarray(space.listed)
    count = space.size if members is None else len(members)
    if count <= n:
        return np.arange(count) if members is None else np.sort(members)
    chosen = np.unique(rng.integers(0, count, n))
    return chosen if members is None else np.sort(members[chosen])


def neighbours(space: Space, configs: Configs) -> NDArray[np.int64]:
    """Flat indices, (m,), ascending, of all configs that differ from one of `configs` (n, knobs) in
    exactly one knob."""
    strides = np.concatenate([[1], np.cumprod(space.cardinalities)[:-1]])
    around = [np.empty(0, dtype=np.int64)]
    flat = space.ravel(configs) if len(configs) else around[0]
    for knob, count in enumerate(space.cardinalities):
        moved = flat[:, None] + (np.arange(count)[None, :] - configs[:, knob, None]) * strides[knob]
        around.append(moved.ravel())
    found = np.unique(np.concatenate(around))
    found = found[~_among(found, np.unique(flat))]
    return found if space.listed is None else found[_among(found, np.asarray(space.listed))]


def pool(
    space: Space,
    tried: NDArray[np.int64],
    best: Configs,
    size: int,
    rng: np.random.Generator,
    whole: int = ENUMERABLE,
) -> Configs:
    """What a model is asked to score: the whole untried space if it has at most `whole` configs,
    else `size` random ones and the neighbours of `best` (shape (b, knobs)), nothing twice."""
    if space.size <= whole:
        return space.unravel(untried(space, tried))
    near = neighbours(space, best)
    near = near[~_among(near, tried)]
    return space.unravel(np.unique(np.concatenate([near, sample(space, size, tried, rng)])))


def _among(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of `values` occur in the ascending array `known`."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[place] == values, dtype=np.bool_)
