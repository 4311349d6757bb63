"""Tuners that learn nothing: random order and grid order."""

from __future__ import annotations

import numpy as np

from tilewright.search import candidates
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register


class Random(BaseExplorer[Options]):
    """Tuner `random`: proposes configs in uniformly random order, without repetition."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose `n` random untried configs. The arguments are those of `Explorer.generate`."""
        rng = problem.rng(history.round, "generate")
        flat = candidates.sample(problem.space, n, history.tried_indices(problem.space), rng)
        return Candidates(problem.space.unravel(flat))


class Grid(BaseExplorer[Options]):
    """Tuner `grid`: proposes configs in the order of their flat index.

    The first knob changes fastest.
    """

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose the `n` untried configs with the lowest flat indices.

        The arguments are those of `Explorer.generate`.
        """
        space, tried = problem.space, history.tried_indices(problem.space)
        if space.listed is not None:
            flat = candidates.list_untried(space, tried)[:n]
        else:  # at most len(tried) of the first n + len(tried) configs were tried
            first = np.arange(min(space.size, n + len(tried)))
            flat = np.setdiff1d(first, tried)[:n]
        return Candidates(space.unravel(flat))


register("random", Random, summary="random order without repetition; learns nothing")
register("grid", Grid, summary="the space in order, the first knob changes fastest; learns nothing")
