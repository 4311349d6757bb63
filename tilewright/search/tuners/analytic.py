"""Implements tuners that follow closed-form estimates and learn nothing: a control for learning.

`estimate` takes the estimated latency at its word; `tps` is VTA++'s analytic tiling choice, by
estimated DRAM traffic. Nothing that is measured changes either order.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.core.errors import TilewrightError
from tilewright.search import candidates
from tilewright.search.explorer import (
    BaseExplorer,
    BatchChoice,
    Candidates,
    ExplorerState,
    OptionsT,
)
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Lowered
from tilewright.targets.features import Features

_POOL = 65_536


class NoEstimates(TilewrightError):
    """A tuner that lives by closed-form estimates on a target that offers none."""


class _ByEstimates(BaseExplorer[OptionsT]):
    """The first of a fixed order that are not tried yet."""

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
        fullest = estimated.of_meaning("share").max(axis=1, initial=0.0)
        latency = estimated.of_meaning("latency")[:, 0]
        order = np.lexsort((latency, self.cost(estimated), fullest > 1.0))
        rows = order[: self.wanted(problem, n)]
        return Candidates(configs[rows], {"P": np.log2(latency[rows])})

    @abstractmethod
    def cost(self, estimated: Features) -> NDArray[np.float64]:
        """What is least of the first, shape (n,); ties go to the lower latency."""

    def wanted(self, problem: Problem, n: int) -> int:
        """How many to name for a batch of `n`."""
        return n


class AnalyticTiling(_ByEstimates[Options]):
    """Least estimated DRAM bytes first, among what fits the scratchpads; learns nothing."""

    def cost(self, estimated: Features) -> NDArray[np.float64]:
        return np.asarray(estimated.of_meaning("bytes").sum(axis=1))


class EstimateOptions(Options):
    """The same compiles that `default` is given."""

    alpha: float = Field(3.0, ge=0, description="configs lowered beyond the batch, per trial")
    looking: float = Field(
        1.0,
        ge=0,
        description="time for lowering beyond a batch at most, as a multiple of the batch's",
    )


class EstimatedLatency(_ByEstimates[EstimateOptions]):
    """Least estimated latency first, among what fits and compiles; learns nothing."""

    def cost(self, estimated: Features) -> NDArray[np.float64]:
        return estimated.of_meaning("latency")[:, 0]

    def wanted(self, problem: Problem, n: int) -> int:
        return problem.compiles(n, self.options.alpha, self.options.looking)

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        return candidates

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        return BatchChoice(np.argsort(~lowered.ok, kind="stable")[:n])


register(
    "tps", AnalyticTiling,
    summary="VTA++'s analytic choice: least estimated DRAM bytes first; learns nothing",
)  # fmt: skip
register(
    "estimate", EstimatedLatency, EstimateOptions,
    summary="least estimated latency first; learns nothing",
)  # fmt: skip
