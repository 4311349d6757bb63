"""Implements a tuner of your own: it measures configs next to the best it has found.

Install it and tune with it; nothing else of Tilewright knows of it:

    pip install --no-deps --no-build-isolation ./examples/greedy
    tilewright tune digits_cnn --tuner greedy --trials 24
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tilewright.search import candidates
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register


class GreedyOptions(Options):
    """What `--option NAME=VALUE` sets."""

    first: int = Field(8, ge=1, description="random trials before the walk begins")
    around: int = Field(3, ge=1, description="best trials whose neighbours are measured")


class Greedy(BaseExplorer[GreedyOptions]):
    """Neighbours of the fastest trials, in random order; learns nothing."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose untried neighbours of the best config, or random configs in the first trials."""
        space, tried = problem.space, history.tried_indices(problem.space)
        rng = problem.rng(history.round, "generate")
        near = np.empty(0, np.int64)
        if len(history) >= self.options.first:
            best = history.configs[history.fastest(self.options.around)]
            near = candidates.exclude_tried(candidates.neighbours(space, best), tried)
        near = rng.permutation(near)[:n]
        rest = candidates.sample(space, n - len(near), np.union1d(tried, near), rng)
        return Candidates(space.unravel(np.concatenate([near, rest])))


register("greedy", Greedy, GreedyOptions)
