"""TPS: VTA++'s analytic tiling choice. Schedules whose tiles fit, in order of estimated DRAM
traffic; nothing that is measured changes the order."""

from __future__ import annotations

import numpy as np

from search import candidates
from search.explorer import BaseExplorer, Candidates, ExplorerState, History
from search.problem import Problem
from search.registry import register
from targets.errors import TilewrightError

_POOL = 65_536


class NoEstimates(TilewrightError):
    """A tuner that lives by closed-form estimates on a target that offers none."""


class AnalyticTiling(BaseExplorer):
    """Least estimated DRAM bytes first, among what fits the scratchpads; learns nothing."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Raises `NoEstimates` on a target without closed-form estimates."""
        if problem.estimate is None:
            raise NoEstimates(
                f"tuner '{self.name}' needs closed-form estimates and this target offers none; "
                "choose another tuner, for example default"
            )
        space, tried = problem.space, history.tried(problem.space)
        rng = problem.rng(0, "pool")
        nowhere = np.empty((0, len(space.knobs)), np.int32)
        configs = candidates.pool(space, tried, nowhere, _POOL, rng)
        if not len(configs):
            return Candidates(configs)
        estimated = problem.estimate(configs)
        moved = estimated.of_meaning("bytes").sum(axis=1)
        fullest = estimated.of_meaning("share").max(axis=1, initial=0.0)
        latency = estimated.of_meaning("latency")[:, 0]
        rows = np.lexsort((latency, moved, fullest > 1.0))[:n]
        return Candidates(configs[rows], {"P": np.log2(latency[rows])})


register("tps", AnalyticTiling)
