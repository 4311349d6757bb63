"""Predictions before any measurement: closed-form estimates or a transferred model.

A transferred model was trained on other workloads or hardware and may be wrong for this problem.
Its predictions are therefore multiplied by a weight that reflects how well it predicted the trials
so far. The weight is the slope of a Bayesian linear regression of measured on predicted log
latencies. The slope has prior mean 1, and the noise is the typical error that the model reports.
The weight is limited to the range from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilewright.search.problem import Belief, Problem
from tilewright.targets.base import Configs
from tilewright.targets.features import Feature, Features

_SHARE_COST = 2.0  # log probability lost per doubling of the usage beyond a scratchpad's size
ESTIMATE_ERROR = 0.1
"""Expected error of a closed-form estimate of the latency, in log2."""
_WEIGHT_DOUBT = 0.5  # standard deviation of a transferred model's weight before any trial
_LEAST_SPREAD = 0.05  # smallest error assumed for a transferred model, in log2 latency
_LEAST_CHANCE = 1e-6  # keeps the logarithm of a probability finite
_SCALE = 0.5  # puts log2 latencies on about the scale of the other columns
_TRANSFERRED = Feature(
    "transferred", text="log2 latency predicted by a model trained on other hardware"
)


@dataclass(frozen=True)
class Prior:
    """Predictions for configs that are available before any measurement of the workload.

    They come from the target's closed-form estimates or from a transferred model, which was trained
    on other workloads or hardware.

    Attributes:
        log_latency: predicted log2 latency, shape (configs,).
        log_share: log2 of the used fraction of the fullest scratchpad, shape (configs,). A config
            with a value above 0 does not fit. For a transferred model, the value is chosen such
            that the property `chance` equals the model's predicted probability of being valid.
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

        The more a config exceeds the capacity of a scratchpad, the lower the probability.
        """
        return np.asarray(np.exp(-_SHARE_COST * np.maximum(self.log_share, 0.0)))


def prior_of(
    problem: Problem,
    configs: Configs,
    believed: Belief | None = None,
    estimates: bool = True,
    weight: float = 1.0,
) -> Prior | None:
    """Return the predictions for configs that are available before any measurement.

    The target's closed-form estimates are preferred, if the target offers them and `estimates` is
    True. Otherwise, the predictions of the transferred model are used, with its log2 latencies
    multiplied by `weight`. A transferred model is a model that was trained on other workloads or
    hardware.

    Args:
        problem: the problem to tune.
        configs: knob indices, int array of shape (n, knobs).
        believed: predictions of a transferred model for `configs`, if there is one. If closed-form
            estimates are used, these predictions become a feature.
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
    """Estimate how far a transferred model can be trusted, from its predictions of the trials.

    The estimate is the slope of a Bayesian regression of the measured on the predicted latencies,
    as described at the top of this module.

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
    """Return the log2 latency that the prior predicts for selected configs.

    Args:
        prior: predictions for n configs from before any measurement, or None.
        rows: indices of the selected configs, shape (rows,).

    Returns:
        Array of shape (rows,); zeros if there is no prior.
    """
    return np.zeros(len(rows)) if prior is None else prior.log_latency[rows]
