"""Prior predictions of configs before any measurement, by estimates or a transferred model.

A transferred model may be wrong for the problem at hand, so it is weighted by its success so far.
The weight is the slope of the measured over the predicted log latencies, by Bayesian linear
regression. Its prior mean is 1, the noise is the model's own typical error, and the weight is never
below 0.
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
"""Expected error of an estimate, in log2 latency."""
_WEIGHT_DOUBT = 0.5  # standard deviation of a transferred model's weight before any trial
_LEAST_SPREAD = 0.05  # log2 latency: no transferred model is believed to be nearer
_LEAST_CHANCE = 1e-6  # keeps the logarithm of a probability finite
_SCALE = 0.5  # puts log2 latencies on about the scale of the other columns
_TRANSFERRED = Feature(
    "transferred", text="log2 latency predicted by a model trained on other hardware"
)


@dataclass(frozen=True)
class Prior:
    """Predictions of configs from before any measurement of this workload.

    They come from the target's closed-form estimates or from a model that was trained elsewhere (a
    transferred model).

    Attributes:
        log_latency: predicted log2 latency, shape (configs,).
        log_share: log2 of the used share of the fullest scratchpad, shape (configs,); above 0 the
            config does not fit. For a transferred model, the value from which `chance` computes the
            model's predicted probability of being valid.
        features: the other predictions, as features for the tuner's models.
        error: expected error of the predicted log2 latency.
    """

    log_latency: NDArray[np.float64]
    log_share: NDArray[np.float64]
    features: Features
    error: float = ESTIMATE_ERROR

    @property
    def chance(self) -> NDArray[np.float64]:
        """Probability that each config is valid, shape (configs,).

        It falls the more a config exceeds the capacity of a scratchpad.
        """
        return np.asarray(np.exp(-_SHARE_COST * np.maximum(self.log_share, 0.0)))


def prior_of(
    problem: Problem,
    configs: Configs,
    believed: Belief | None = None,
    estimates: bool = True,
    weight: float = 1.0,
) -> Prior | None:
    """Return the predictions of configs that are available before any measurement.

    The target's closed-form estimates are preferred, if it offers them and `estimates` allows them.
    Otherwise, they are the predictions of a transferred model, a model trained on other workloads
    or hardware, whose log2 latencies are multiplied by `weight`.

    Args:
        problem: the problem to tune.
        configs: knob indices, int array of shape (n, knobs).
        believed: predictions of a transferred model for `configs`, if there is one.
        estimates: whether closed-form estimates may be used.
        weight: weight of the transferred model, from 0 to 1.

    Returns:
        The prior, or None if there are neither estimates nor a transferred model.
    """
    if estimates and problem.estimate is not None:
        prior = _prior_of_estimates(problem.estimate(configs))
        if believed is None:
            return prior
        return replace(prior, features=prior.features.append_columns(_column(believed)))
    if believed is None:
        return None
    chance = np.clip(believed.chance, _LEAST_CHANCE, 1.0)
    error = max(float(np.median(believed.spread)), _LEAST_SPREAD) if len(configs) else 1.0
    return Prior(
        weight * believed.log_latency, -np.log(chance) / _SHARE_COST, _column(believed), error
    )


def _column(believed: Belief) -> Features:
    return Features(_SCALE * believed.log_latency[:, None], (_TRANSFERRED,))


def _prior_of_estimates(features: Features) -> Prior:
    logs = np.log2(np.maximum(features.matrix, 1e-6))
    shares = logs[:, features.column_indices("share")]
    fullest = shares.max(axis=1) if shares.shape[1] else np.zeros(len(logs))
    latency = logs[:, features.column_indices("latency")[0]]
    relative = Features((logs - latency[:, None]) / 2.0, _relative(features.columns))
    return Prior(latency, fullest, relative.with_prefix("estimated"))


@lru_cache(maxsize=64)
def _relative(columns: tuple[Feature, ...]) -> tuple[Feature, ...]:
    return tuple(
        replace(
            column, text=f"estimate: {column.text or column.name}, divided by the whole latency"
        )
        for column in columns
    )


def weight_of(believed: Belief, measured: NDArray[np.float64]) -> float:
    """Estimate how far a transferred model can be trusted, from how well it predicted the trials.

    Args:
        believed: predictions of the model for the trials.
        measured: measured log2 latencies of the trials, shape (n,).

    Returns:
        Weight from 0 (ignore the model) to 1; 1 if there are fewer than two trials.
    """
    if len(measured) < 2:
        return 1.0
    predicted = believed.log_latency - believed.log_latency.mean()
    centred = measured - measured.mean()
    noise = max(float(np.median(believed.spread)), _LEAST_SPREAD) ** 2
    doubt = _WEIGHT_DOUBT**2
    slope = (predicted @ centred / noise + 1.0 / doubt) / (
        predicted @ predicted / noise + 1.0 / doubt
    )
    return float(np.clip(slope, 0.0, 1.0))


def prior_estimates(prior: Prior | None, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log2 latency that the prior predicts for some of its configs.

    Args:
        prior: predictions from before any measurement, or None.
        rows: indices of the configs, shape (rows,).

    Returns:
        Array of shape (rows,); zeros without a prior.
    """
    return np.zeros(len(rows)) if prior is None else prior.log_latency[rows]
