"""Figures of a run that the terminal, pages, MLflow and JSON show.

They are convergence, the fraction of valid trials, and the distance from the lower bound. Gains and
totals are in `tuning.gains`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.tuning.gains import LatencyFigures

Floats = NDArray[np.float64]
Unit = Literal["cycles", "seconds"]


# -- convergence ---------------------------------------------------------------------------------


def unit_of(trials: pd.DataFrame) -> Unit:
    """Return the unit of latencies in a table of trials: cycles where the target counts them."""
    return "cycles" if (trials["cycles"] > 0).any() else "seconds"


def trial_latencies(trials: pd.DataFrame, unit: Unit) -> Floats:
    """Return the latency of each trial, shape (trials,), NaN where it is not valid."""
    valid = trials["status"] == "valid"
    return np.where(valid, trials[unit].to_numpy(np.float64), np.nan)


def best_so_far(latencies: Floats) -> Floats:
    """Return the best latency up to each trial, shape (trials,), NaN before the first valid one."""
    return np.asarray(np.fmin.accumulate(latencies), np.float64) if len(latencies) else latencies


def network_best_so_far(
    trials: pd.DataFrame, counts: Mapping[str, int], unit: Unit
) -> tuple[NDArray[np.int64], Floats]:
    """Return the convergence of a network over the rounds of its workloads.

    Args:
        trials: the trials of all workloads.
        counts: calls of each workload in an inference, by its ID.
        unit: the unit of latencies.

    Returns:
        After each round, the measurements of all workloads and the best latency of an inference,
            both shape (rounds,): the best latency of each workload times its count, NaN until
            each has a valid trial.
    """
    rounds = np.unique(trials["round"])
    measured = np.asarray(trials.groupby("round").size().cumsum(), np.int64)
    valid = trials[trials["status"] == "valid"]
    best = np.zeros(len(rounds))
    for workload, count in counts.items():
        mine = valid[valid["workload"] == workload]
        so_far = mine.groupby("round")[unit].min().reindex(rounds).cummin().ffill()
        best += count * so_far.to_numpy(np.float64)
    return measured, best


# -- validity ------------------------------------------------------------------------------------


def invalid_share(invalid: int, trials: int) -> float | None:
    """Return the share of trials that are not valid, None without trials."""
    return invalid / trials if trials else None


def valid_share(invalid: int, trials: int) -> float:
    """Return the share of trials that are valid, 1 without trials."""
    return 1.0 - (invalid_share(invalid, trials) or 0.0)


# -- distance from the bound ---------------------------------------------------------------------


def above_limit(row: LatencyFigures) -> tuple[str, float | None]:
    """Return by which fraction the tuned latency exceeds the best lower bound.

    Args:
        row: a workload, or the total, in `summary.json`.

    Returns:
        `bound`, or `roofline` if the target knows no tighter bound, and the fraction; None if one
        of the two latencies is unknown.
    """
    tuned = row["tuned_cycles"], row["tuned_seconds"]
    bound = row["bound_cycles"], row["bound_seconds"]
    if any(bound):
        return "bound", share_above(tuned, bound)
    return "roofline", share_above(tuned, (row["roofline_cycles"], row["roofline_seconds"]))


def share_above(
    tuned: tuple[float | None, float | None], limit: tuple[float | None, float | None]
) -> float | None:
    """Return by which fraction one latency exceeds another.

    Args:
        tuned: cycles and seconds of the first latency; unknown ones are None.
        limit: cycles and seconds of the second latency.

    Returns:
        The fraction in cycles if both are counted, else in seconds; None if it is unknown.
    """
    for taken, least in zip(tuned, limit, strict=True):
        if taken and least:
            return taken / least - 1
    return None


def milliseconds_of(seconds: float | None) -> float | None:
    """Convert seconds to milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds
