"""Statistics of a run that the terminal, HTML pages, MLflow and JSON files show.

These are the convergence curve, the fraction of valid trials, and the distance from the lower
bound. Speed-ups and totals are in `tuning.gains`.
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
    """Return the unit of latencies in a table of trials.

    Args:
        trials: table of trials.

    Returns:
        "cycles" if the target counts them, otherwise "seconds".
    """
    return "cycles" if (trials["cycles"] > 0).any() else "seconds"


def trial_latencies(trials: pd.DataFrame, unit: Unit) -> Floats:
    """Return the latency of each trial.

    Args:
        trials: table of trials.
        unit: unit of the result.

    Returns:
        Array of shape (trials,); NaN where a trial is not valid.
    """
    valid = trials["status"] == "valid"
    return np.where(valid, trials[unit].to_numpy(np.float64), np.nan)


def best_so_far(latencies: Floats) -> Floats:
    """Return the lowest latency up to each trial.

    Args:
        latencies: latency of each trial, shape (trials,); NaN where a trial is not valid.

    Returns:
        Array of shape (trials,); NaN before the first valid trial.
    """
    return np.asarray(np.fmin.accumulate(latencies), np.float64) if len(latencies) else latencies


@dataclass(frozen=True)
class CurveLayer:
    """A workload of a network, with the values from which the convergence curve is computed.

    Attributes:
        id: ID of the workload.
        count: number of calls per inference.
        figures: latencies of one call; None while the run is not finished.
    """

    id: str
    count: int
    figures: FourFigures | None = None


def network_curve(trials: pd.DataFrame, layers: Sequence[CurveLayer], unit: Unit) -> Floats:
    """Return the convergence curve of a network: the latency of one inference after each trial.

    The latency of an inference is the sum over the workloads of the latency of their best schedule
    so far. Until a workload has a valid trial that is faster, its rule schedule is used (the
    schedule without tuning). The trials of different workloads are interleaved round by round.

    The last point of a finished run is its tuned latency, so that the curve ends at the latency
    that the tables show. This latency can differ from the sum of the best trials, because a
    schedule may have been measured again or may come from an earlier run.

    Args:
        trials: the trials of all workloads.
        layers: the workloads.
        unit: unit of the latencies.

    Returns:
        Latencies of shape (trials,); NaN until each workload has a schedule.
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
        # A rule schedule that is faster than the chosen schedule computes the workload in a
        # different form and could not be chosen. It is used only until there is a valid trial.
        only_compared = rule < tuned
        so_far = np.where(np.isnan(best), rule, best if only_compared else np.fmin(best, rule))
        curve += layer.count * so_far
        end += layer.count * tuned
    if len(curve) and math.isfinite(end):
        curve[-1] = end
    return curve


def _in_unit(latency: Latency | None, unit: Unit) -> float:
    """Return a latency as a number; NaN if it is not known in this unit.

    Args:
        latency: the latency, or None if it is unknown.
        unit: "cycles" or "seconds".
    """
    if latency is None:
        return math.nan
    if unit == "seconds":
        return latency.seconds
    return float(latency.cycles) if latency.cycles > 0 else math.nan


# -- validity ------------------------------------------------------------------------------------


def invalid_share(invalid: int, trials: int) -> float | None:
    """Return the fraction of trials that are not valid.

    Args:
        invalid: number of trials that are not valid.
        trials: number of all trials.

    Returns:
        The fraction, or None if there are no trials.
    """
    return invalid / trials if trials else None


def valid_share(invalid: int, trials: int) -> float:
    """Return the fraction of trials that are valid.

    Args:
        invalid: number of trials that are not valid.
        trials: number of all trials.

    Returns:
        The fraction; 1 if there are no trials.
    """
    return 1.0 - (invalid_share(invalid, trials) or 0.0)


# -- distance from the bound ---------------------------------------------------------------------


def above_limit(row: LatencyFigures) -> tuple[str, float | None]:
    """Return the relative distance of the tuned latency from the tightest known lower bound.

    Args:
        row: entry of a workload, or the total, in `summary.json`.

    Returns:
        Name of the lower bound (`bound`, or `roofline` if the target knows no tighter bound), and
        the relative distance as a fraction; None if one of the two latencies is unknown.
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
        tuned: cycles and seconds of the first latency; an unknown value is None.
        limit: cycles and seconds of the second latency; an unknown value is None.

    Returns:
        The fraction, computed in cycles if both latencies have them, else in seconds; None if
        neither is possible.
    """
    for taken, least in zip(tuned, limit, strict=True):
        if taken and least:
            return taken / least - 1
    return None


def milliseconds_of(seconds: float | None) -> float | None:
    """Convert seconds to milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds
