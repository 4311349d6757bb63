"""Prediction of the time that the next tuning round of a workload will save.

The prediction depends only on the complete rounds of the workload and on the number of trials of
the next round. It does not use a clock, random numbers or a learned model. A resumed run therefore
makes the same decisions as an uninterrupted run.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.search.history import History

DISCOUNT = 0.5
"""Factor by which a round's weight falls with each later round."""
PRIOR_WEIGHT = 1.0
"""Weight of the prediction that treats trials as independent draws. A weight of 1 equals that of
the latest round's measured improvement."""
LEADERS = 4
"""Number of trials after the best one from which the scale of the latencies' tail is estimated."""
WIDEST = 1.0
"""Upper limit on the distance of a trial from the best one, in log2; 1 is a factor of two. Trials
that do not exist yet are assumed to be at this distance."""


def best_latency(history: History) -> float | None:
    """Return the latency of the best valid trial.

    Args:
        history: trials of the workload so far.

    Returns:
        Latency in the unit of `History.latency` (cycles if the target counts them, otherwise
        seconds), or None if no trial is valid.
    """
    best = float(np.min(history.possible_latency, initial=np.inf))
    return best if np.isfinite(best) else None


def expected_saving(
    history: History, count: int, trials: int, baseline: float | None = None
) -> float:
    """Predict how much time the next round will save, summed over all calls of a workload.

    The result is count · min(best, baseline) · (1 − 2^−u), where u is the `expected_improvement`.

    Args:
        history: trials of the workload so far.
        count: number of times that the network calls the workload.
        trials: maximum number of trials of the next round.
        baseline: latency of one call with the schedule that is available without tuning, if known.

    Returns:
        Saved time in the unit of `best_latency`; 0 if there is no valid trial.
    """
    best = best_latency(history)
    if best is None or trials < 1:
        return 0.0
    least = best if baseline is None else min(best, baseline)
    improvement = expected_improvement(history, trials, baseline)
    return float(-count * least * np.expm1(-np.log(2) * improvement))


def expected_improvement(history: History, trials: int, baseline: float | None = None) -> float:
    """Predict by how much the next round will lower the log2 of the best latency.

    The prediction u = (w·p + Σ_r λ^(R−r)·d_r) / (w + Σ_r λ^(R−r)) is a weighted mean of two kinds
    of terms:

    - d_r is the measured improvement in round r, out of R rounds. It shows how well this tuner
      works on this workload. Recent rounds count most (λ = `DISCOUNT`). Rounds up to and including
      the one with the first valid trial are left out.
    - p = b/(n+b) · s is the improvement that b further trials would bring after n trials if all
      trials were independent draws. Its weight is w = `PRIOR_WEIGHT`. The best of n+b exchangeable
      draws is one of the last b with probability b/(n+b), and a new best is s better than the
      previous best. The scale s is estimated from the `LEADERS` trials after the best one: for an
      exponential tail, the k-th spacing of the order statistics has mean s/k (Rényi), so the k-th
      trial after the best is expected s·(1 + 1/2 + … + 1/k) behind it.

    If the best trial is slower than the baseline by g in log2, only the improvement beyond the
    baseline counts: u·e^(−g/σ). This assumes that improvements are exponentially distributed. Their
    mean σ is the larger of s and the mean of the d_r.

    A round without improvement never raises the prediction. The spacings among the best trials can
    only shrink (missing trials count as `WIDEST`), b/(n+b) falls, the weight of every d_r is
    halved, and the sum of the weights does not fall.

    Args:
        history: trials of the workload so far.
        trials: maximum number of trials of the next round.
        baseline: latency of one call with the schedule that is available without tuning, if known.

    Returns:
        Improvement in log2; 0 if there is no valid trial.
    """
    latencies = history.possible_latency
    made = len(latencies)
    if trials < 1 or not np.isfinite(latencies).any():
        return 0.0
    spacing = _spacing(latencies)
    prior = trials / (made + trials) * spacing
    won = _improvements(latencies, history.rounds)
    weights = DISCOUNT ** np.arange(len(won))[::-1]
    known, weight = float(np.sum(weights * won)), float(np.sum(weights))
    improvement = (PRIOR_WEIGHT * prior + known) / (PRIOR_WEIGHT + weight)
    behind = 0.0 if baseline is None else float(np.log2(np.min(latencies) / baseline))
    if behind <= 0 or not improvement:
        return improvement
    return improvement * float(np.exp(-behind / max(spacing, known / weight if known else 0.0)))


def _spacing(latencies: NDArray[np.float64]) -> float:
    """Estimate the scale s of the tail of the latencies, in log2.

    `expected_improvement` defines s and explains the estimate.

    Args:
        latencies: latency of each trial, shape (n,); infinite where a trial is not valid.
    """
    ranked = np.log2(np.sort(latencies[np.isfinite(latencies)]))
    behind = np.full(LEADERS, WIDEST)
    distances = ranked[1 : LEADERS + 1] - ranked[0]
    behind[: len(distances)] = np.minimum(distances, WIDEST)
    return float(np.mean(behind) / np.mean(np.cumsum(1 / np.arange(1, LEADERS + 1))))


def _improvements(latencies: NDArray[np.float64], rounds: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return by how much each round has lowered the log2 of the best latency.

    Rounds up to and including the one with the first valid trial are left out.

    Args:
        latencies: latency of each trial in order, shape (n,); infinite where a trial is not valid.
        rounds: index of the round of each trial, shape (n,).

    Returns:
        Improvements of shape (rounds,); 0 for rounds without improvement.
    """
    ends = np.flatnonzero(np.append(np.diff(rounds) != 0, len(rounds) > 0))
    best = np.log2(np.minimum.accumulate(latencies)[ends])
    best = best[np.isfinite(best)]
    return -np.diff(best)
