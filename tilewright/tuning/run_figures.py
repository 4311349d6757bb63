"""Figures of a run that the terminal, pages, MLflow and JSON show.

They are convergence, the fraction of valid trials, and the distance from the lower bound. Gains and
totals are in `tuning.gains`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.targets.capabilities import Latency
from tilewright.tuning.gains import FourFigures, LatencyFigures

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


@dataclass(frozen=True)
class CurveLayer:
    """A workload of a network, with the values that the network's convergence curve depends on.

    Attributes:
        id: ID of the workload.
        count: number of calls per inference.
        figures: latencies of one call; None while the run is not finished.
    """

    id: str
    count: int
    figures: FourFigures | None = None


def network_curve(trials: pd.DataFrame, layers: Sequence[CurveLayer], unit: Unit) -> Floats:
    """Return the convergence curve of a network: the latency of an inference after each trial.

    Each workload counts with its best schedule so far. Until it has a valid trial that is faster,
    it counts with the rule, the schedule used without tuning. The trials of the workloads take
    turns round by round. The last point of a finished run is its tuned latency, so that the curve
    ends at the latency that the tables show. That latency may differ from the best trial, because
    the schedule was measured again or comes from an earlier run.

    Args:
        trials: the trials of all workloads.
        layers: the workloads.
        unit: the unit of latencies.

    Returns:
        Latencies of shape (trials,). NaN until each workload has a schedule.
    """
    order = trials.reset_index(drop=True).sort_values("round", kind="stable").index.to_numpy()
    latencies = trial_latencies(trials, unit)[order]
    workloads = trials["workload"].to_numpy()[order]
    curve, end = np.zeros(len(trials)), 0.0
    for layer in layers:
        known = layer.figures
        rule = _in_unit(known.rule, unit) if known else math.nan
        tuned = _in_unit(known.tuned, unit) if known else math.nan
        best = best_so_far(np.where(workloads == layer.id, latencies, np.nan))
        # A rule that is faster than what was chosen runs the workload in a form of the stock
        # compiler's that Tilewright cannot choose: it only stands in until there is a trial.
        only_compared = rule < tuned
        so_far = np.where(np.isnan(best), rule, best if only_compared else np.fmin(best, rule))
        curve += layer.count * so_far
        end += layer.count * tuned
    if len(curve) and math.isfinite(end):
        curve[-1] = end
    return curve


def _in_unit(latency: Latency | None, unit: Unit) -> float:
    """Return a latency in cycles or seconds, NaN where it is not known."""
    if latency is None:
        return math.nan
    if unit == "seconds":
        return latency.seconds
    return float(latency.cycles) if latency.cycles > 0 else math.nan


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
