"""Gives beliefs about configs before anything is measured: closed-form estimates, or a model that
learned elsewhere.

A transferred model may be wrong here, so its weight follows from how right it has been. The weight
is the slope of the measured log latencies over the predicted ones, by Bayesian linear regression.
Its prior mean is 1, and its noise is the model's own typical error. It never falls below 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.search.problem import Belief, Problem
from tilewright.targets.base import Configs
from tilewright.targets.features import Feature, Features

_SHARE_COST = 2.0  # log-chance lost per doubling of a scratchpad's over-use, before V knows
ESTIMATE_ERROR = 0.1
"""log2 latency that an estimate is expected to be off."""
_WEIGHT_DOUBT = 0.5  # standard deviation of a transferred model's weight before any trial
_LEAST_SPREAD = 0.05  # log2 latency: no transferred model is believed to be nearer
_LEAST_CHANCE = 1e-6
_SCALE = 0.5  # puts log2 latencies on about the scale of the other columns
_TRANSFERRED = Feature("transferred", text="log2 latency by a model learned elsewhere")


@dataclass(frozen=True)
class Prior:
    """What is believed of some configs: log2 latency, log2 of the fullest scratchpad's share (of a
    transferred model, what gives its chance), everything else that is said of them, as features,
    and how far off the latency is expected to be, in log2."""

    log_latency: NDArray[np.float64]
    log_share: NDArray[np.float64]
    features: Features
    error: float = ESTIMATE_ERROR

    @property
    def chance(self) -> NDArray[np.float64]:
        """That a config is valid, by how much it over-uses a scratchpad; shape (configs,)."""
        return np.asarray(np.exp(-_SHARE_COST * np.maximum(self.log_share, 0.0)))


def prior_of(
    problem: Problem,
    configs: Configs,
    believed: Belief | None = None,
    estimates: bool = True,
    weight: float = 1.0,
) -> Prior | None:
    """What is believed of configs (n, knobs): what the target estimates, if it does and `estimates`
    allows it, else `weight` times what a transferred model `believed` of them; None if nobody says
    anything."""
    if estimates and problem.estimate is not None:
        prior = _estimated(problem.estimate(configs))
        if believed is None:
            return prior
        return replace(prior, features=prior.features.beside(_column(believed)))
    if believed is None:
        return None
    chance = np.clip(believed.chance, _LEAST_CHANCE, 1.0)
    error = max(float(np.median(believed.spread)), _LEAST_SPREAD) if len(configs) else 1.0
    return Prior(
        weight * believed.log_latency, -np.log(chance) / _SHARE_COST, _column(believed), error
    )


def _column(believed: Belief) -> Features:
    return Features(_SCALE * believed.log_latency[:, None], (_TRANSFERRED,))


def _estimated(found: Features) -> Prior:
    logs = np.log2(np.maximum(found.matrix, 1e-6))
    shares = logs[:, found.places("share")]
    fullest = shares.max(axis=1) if shares.shape[1] else np.zeros(len(logs))
    latency = logs[:, found.places("latency")[0]]
    relative = Features((logs - latency[:, None]) / 2.0, _relative(found.columns))
    return Prior(latency, fullest, relative.named("estimated"))


@lru_cache(maxsize=64)
def _relative(columns: tuple[Feature, ...]) -> tuple[Feature, ...]:
    return tuple(
        replace(column, text=f"estimate: {column.text or column.name}, by the whole latency")
        for column in columns
    )


def weight_of(believed: Belief, measured: NDArray[np.float64]) -> float:
    """How far a transferred model is to be believed, 0 to 1, by what it says of trials and their
    measured log2 latencies, shape (n,)."""
    if len(measured) < 2:
        return 1.0
    said = believed.log_latency - believed.log_latency.mean()
    found = measured - measured.mean()
    noise = max(float(np.median(believed.spread)), _LEAST_SPREAD) ** 2
    doubt = _WEIGHT_DOUBT**2
    slope = (said @ found / noise + 1.0 / doubt) / (said @ said / noise + 1.0 / doubt)
    return float(np.clip(slope, 0.0, 1.0))


def estimated(prior: Prior | None, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Estimated log2 latency of some rows, shape (rows,); zeros without estimates."""
    return np.zeros(len(rows)) if prior is None else prior.log_latency[rows]
