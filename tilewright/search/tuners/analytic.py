"""Tuners that follow closed-form estimates and learn nothing, as a control for learning.

`estimate` ranks configs by estimated latency. `tps` is VTA++'s analytic tiling choice, by estimated
DRAM traffic. Measurements change neither order.
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
    """The tuner needs closed-form estimates, and the target offers none."""


class _ByEstimates(BaseExplorer[OptionsT]):
    """Proposes untried configs in a fixed order by closed-form estimates."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Return the untried configs that come next in the fixed order.

        Raises:
            NoEstimates: the target offers no closed-form estimates.
        """
        if problem.estimate is None:
            raise NoEstimates(
                f"the tuner '{self.name}' needs closed-form estimates, which this target "
                "does not provide; choose another tuner, for example 'default'"
            )
        space, tried = problem.space, history.tried_indices(problem.space)
        rng = problem.rng(0, "pool")
        nowhere = np.empty((0, len(space.knobs)), np.int32)
        configs = candidates.pool(space, tried, nowhere, _POOL, rng)
        if not len(configs):
            return Candidates(configs)
        estimated = problem.estimate(configs)
        fullest = estimated.of_meaning("share").max(axis=1, initial=0.0)
        latency = estimated.of_meaning("latency")[:, 0]
        order = np.lexsort((latency, self.cost(estimated), fullest > 1.0))
        rows = order[: self.candidate_count(problem, n)]
        return Candidates(configs[rows], {"P": np.log2(latency[rows])})

    @abstractmethod
    def cost(self, estimated: Features) -> NDArray[np.float64]:
        """Return the estimated cost by which configs are ordered, lowest first.

        Configs of equal cost are ordered by estimated latency.

        Args:
            estimated: closed-form estimates with one row per config.

        Returns:
            Array of shape (n,).
        """

    def candidate_count(self, problem: Problem, n: int) -> int:
        """Return how many candidates to propose for a batch of `n` trials."""
        return n


class AnalyticTiling(_ByEstimates[Options]):
    """Proposes configs that fit the scratchpads, by estimated DRAM bytes; learns nothing."""

    def cost(self, estimated: Features) -> NDArray[np.float64]:
        """Return the estimated DRAM bytes of each config."""
        return np.asarray(estimated.of_meaning("bytes").sum(axis=1))


class EstimateOptions(Options):
    """Options of `estimate`. It compiles as many configs as `default`."""

    alpha: float = Field(
        3.0, ge=0, description="configs lowered in addition to the batch, per trial"
    )
    looking: float = Field(
        1.0,
        ge=0,
        description="time limit for lowering additional configs, as a multiple of the time "
        "that the batch takes",
    )


class EstimatedLatency(_ByEstimates[EstimateOptions]):
    """Proposes configs that fit and compile, in order of estimated latency; learns nothing."""

    def cost(self, estimated: Features) -> NDArray[np.float64]:
        """Return the estimated latency of each config."""
        return estimated.of_meaning("latency")[:, 0]

    def candidate_count(self, problem: Problem, n: int) -> int:
        """Return how many configs to lower for `n` trials."""
        return problem.compiles(n, self.options.alpha, self.options.looking)

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Return the candidates unchanged; those that fail to compile are dropped later."""
        return candidates

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose the first `n` configs that compile, in the order of their estimates."""
        return BatchChoice(np.argsort(~lowered.ok, kind="stable")[:n])


register(
    "tps", AnalyticTiling,
    summary="analytic choice of VTA++: lowest estimated DRAM traffic first; learns nothing",
)  # fmt: skip
register(
    "estimate", EstimatedLatency, EstimateOptions,
    summary="lowest estimated latency first; learns nothing",
)  # fmt: skip
