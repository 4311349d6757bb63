"""Sampling of untried configs: small spaces are enumerated, large spaces are sampled at random.

A flat index is the position of a config in the enumeration of the whole space (`Space.ravel`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Configs, Space

ENUMERABLE = 200_000
"""Largest number of configs of a space that is enumerated. In larger spaces, only a sample of the
configs is scored."""


def list_untried(space: Space, tried: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the flat indices of all configs that have not been tried yet, ascending.

    All configs are enumerated, so the space must be small or be given as an explicit list of
    configs (`Space.listed`).

    Args:
        space: a space with at most `ENUMERABLE` configs, or one given as a list.
        tried: flat indices of the configs that were tried, ascending.

    Returns:
        Flat indices of shape (n,).
    """
    members = np.arange(space.size) if space.listed is None else np.asarray(space.listed)
    return exclude_tried(members, tried)


def exclude_tried(flat: NDArray[np.int64], tried: NDArray[np.int64]) -> NDArray[np.int64]:
    """Remove the flat indices of tried configs from an array of flat indices.

    Args:
        flat: flat indices of configs, shape (n,).
        tried: flat indices to remove, ascending, shape (m,).

    Returns:
        The remaining flat indices, in the order of `flat`.
    """
    return flat[~_occurs_in(flat, tried)]


def sample(
    space: Space, n: int, tried: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw distinct untried configs uniformly at random.

    Args:
        space: the search space.
        n: number of configs to draw.
        tried: flat indices of the configs that were tried, ascending.
        rng: random generator.

    Returns:
        Flat indices of shape (at most n,). There are fewer than `n` if the space has too few
        untried configs, or if eight rounds of draws from a large space did not find enough.
    """
    if space.size <= ENUMERABLE or space.listed is not None:
        left = list_untried(space, tried)
        return rng.permutation(left)[:n]
    untried_configs = np.empty(0, dtype=np.int64)
    for _ in range(8):
        drawn = rng.integers(0, space.size, size=2 * n)
        fresh = np.concatenate([untried_configs, drawn[~_occurs_in(drawn, tried)]])
        _, first = np.unique(fresh, return_index=True)
        untried_configs = fresh[np.sort(first)]
        if len(untried_configs) >= n:
            break
    return untried_configs[:n]


def draw_configs(space: Space, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw about `n` distinct random configs of a space, which may include tried configs.

    Args:
        space: the search space.
        n: number of draws; duplicates are dropped. If the space has at most `n` configs, all of
            them are returned.
        rng: random generator.

    Returns:
        Distinct flat indices of shape (at most n,), ascending.
    """
    members = None if space.listed is None else np.asarray(space.listed)
    count = space.size if members is None else len(members)
    if count <= n:
        return np.arange(count) if members is None else np.sort(members)
    chosen = np.unique(rng.integers(0, count, n))
    return chosen if members is None else np.sort(members[chosen])


def neighbours(space: Space, configs: Configs) -> NDArray[np.int64]:
    """Return all configs that differ in exactly one knob from one of the given configs.

    Args:
        space: the search space.
        configs: the given configs as knob indices, int array of shape (n, knobs).

    Returns:
        Flat indices of the neighbours, shape (m,), ascending. The given configs are left out.
    """
    strides = np.concatenate([[1], np.cumprod(space.cardinalities)[:-1]])
    around = [np.empty(0, dtype=np.int64)]
    flat = space.ravel(configs) if len(configs) else around[0]
    for knob, count in enumerate(space.cardinalities):
        moved = flat[:, None] + (np.arange(count)[None, :] - configs[:, knob, None]) * strides[knob]
        around.append(moved.ravel())
    flat_indices = np.unique(np.concatenate(around))
    flat_indices = flat_indices[~_occurs_in(flat_indices, np.unique(flat))]
    return (
        flat_indices
        if space.listed is None
        else flat_indices[_occurs_in(flat_indices, np.asarray(space.listed))]
    )


def pool(
    space: Space,
    tried: NDArray[np.int64],
    best: Configs,
    size: int,
    rng: np.random.Generator,
    whole: int = ENUMERABLE,
) -> Configs:
    """Return the untried configs that a model should score.

    If the space has at most `whole` configs, all untried configs are returned. Otherwise, the
    result consists of a random sample and the neighbours of the best configs, without duplicates.
    Neighbours of a config differ from it in one knob.

    Args:
        space: the search space.
        tried: flat indices of the configs that were tried, ascending.
        best: the fastest configs so far, whose neighbours are added, shape (b, knobs).
        size: size of the random sample.
        rng: random generator.
        whole: largest size of a space of which all configs are returned.

    Returns:
        Configs as knob indices, shape (n, knobs), ordered by flat index.
    """
    if space.size <= whole:
        return space.unravel(list_untried(space, tried))
    near = neighbours(space, best)
    near = near[~_occurs_in(near, tried)]
    return space.unravel(np.unique(np.concatenate([near, sample(space, size, tried, rng)])))


def _occurs_in(values: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a bool array that is True where an element of `values` occurs in `known`.

    Args:
        values: integers of shape (n,), in any order.
        known: integers of shape (m,), ascending.
    """
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[place] == values, dtype=np.bool_)
