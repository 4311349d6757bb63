"""Tuners that rank configs by closed-form estimates and do not learn from measurements.

`estimate` ranks configs by estimated latency. `tps` is the analytic tiling of VTA++, which ranks
configs by estimated DRAM traffic. In experiments, these tuners show how much the learning of other
tuners contributes.
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
    """Base class of tuners that propose untried configs in the order of an estimated cost."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose the untried configs with the lowest estimated cost.

        Configs that do not fit the scratchpads come last. The arguments are those of
        `Explorer.generate`.

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
        """Return the estimated cost of each config; the cheapest configs are proposed first.

        Configs of equal cost are ordered by estimated latency.

        Args:
            estimated: closed-form estimates with one row per config.

        Returns:
            Array of shape (n,).
        """

    def candidate_count(self, problem: Problem, n: int) -> int:
        """Return the number of candidates to propose for a batch.

        Args:
            problem: the problem to tune.
            n: number of trials of the batch.
        """
        return n


class AnalyticTiling(_ByEstimates[Options]):
    """Tuner `tps`: proposes configs that fit the scratchpads by estimated DRAM traffic."""

    def cost(self, estimated: Features) -> NDArray[np.float64]:
        """Return the estimated DRAM bytes of each config."""
        return np.asarray(estimated.of_meaning("bytes").sum(axis=1))


class EstimateOptions(Options):
    """Options of the tuner `estimate`. It compiles as many configs as the tuner `default`."""

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
    """Tuner `estimate`: proposes configs in the order of estimated latency."""

    def cost(self, estimated: Features) -> NDArray[np.float64]:
        """Return the estimated latency of each config."""
        return estimated.of_meaning("latency")[:, 0]

    def candidate_count(self, problem: Problem, n: int) -> int:
        """Return the number of candidates to propose, which is also the number of configs to lower.

        Args:
            problem: the problem to tune, which includes the costs of compiling and measuring.
            n: number of trials of the batch.
        """
        return problem.compiles(n, self.options.alpha, self.options.looking)

    def veto(
        self,
        problem: Problem,
        state: ExplorerState,
        history: History,
        candidates: Candidates,
        n: int,
    ) -> Candidates:
        """Return the candidates unchanged; configs that do not compile are dropped by `choose`."""
        return candidates

    def choose(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered, n: int
    ) -> BatchChoice:
        """Choose the first `n` configs that compile, in the order of their estimates.

        If fewer than `n` configs compile, configs that do not compile fill the batch. The arguments
        are those of `Explorer.choose`.
        """
        return BatchChoice(np.argsort(~lowered.ok, kind="stable")[:n])


register(
    "tps", AnalyticTiling,
    summary="analytic choice of VTA++: lowest estimated DRAM traffic first; learns nothing",
)  # fmt: skip
register(
    "estimate", EstimatedLatency, EstimateOptions,
    summary="lowest estimated latency first; learns nothing",
)  # fmt: skip
