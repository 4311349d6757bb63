"""What closed-form estimates say of configs before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search.problem import Problem
from targets.base import Configs
from targets.features import Features

_SHARE_COST = 2.0  # log-chance lost per doubling of a scratchpad's over-use, before V knows


@dataclass(frozen=True)
class Prior:
    """Closed-form estimates of some configs: log2 latency, log2 of the fullest scratchpad's share,
    and everything estimated, relative to the latency."""

    log_latency: NDArray[np.float64]
    log_share: NDArray[np.float64]
    features: Features

    @property
    def chance(self) -> NDArray[np.float64]:
        """That a config is valid, by how much it over-uses a scratchpad; shape (configs,)."""
        return np.asarray(np.exp(-_SHARE_COST * np.maximum(self.log_share, 0.0)))


def prior_of(problem: Problem, configs: Configs) -> Prior | None:
    """What the target estimates of configs (n, knobs); None if it estimates nothing."""
    if problem.estimate is None:
        return None
    found = problem.estimate(configs)
    logs = np.log2(np.maximum(found.matrix, 1e-6))
    shares = logs[:, found.places("share")]
    fullest = shares.max(axis=1) if shares.shape[1] else np.zeros(len(configs))
    latency = logs[:, found.places("latency")[0]]
    about = tuple(
        replace(column, text=f"estimate: {column.text or column.name}, by the whole latency")
        for column in found.columns
    )
    relative = Features((logs - latency[:, None]) / 2.0, about)
    return Prior(latency, fullest, relative.named("estimated"))


def estimated(prior: Prior | None, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Estimated log2 latency of some rows, shape (rows,); zeros without estimates."""
    return np.zeros(len(rows)) if prior is None else prior.log_latency[rows]
