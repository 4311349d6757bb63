"""Predicts how much of a network's latency the next round of a workload is expected to save.

The answer depends only on a workload's complete rounds and on how many trials the next one may
have: no clock, no draw, no model. So a resumed run decides as the one that was not stopped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.search.history import History

DISCOUNT = 0.5
"""What a round says of the next one, for every round that lies between them."""
PRIOR_WEIGHT = 1.0
"""How many rounds the record statistics stand for."""
LEADERS = 4
"""Of how many trials behind the best one the spacing is taken."""
WIDEST = 1.0
"""In log2: no trial is taken to be further behind the best, and those that are missing are there;
so what is unknown is a factor of two."""


def best_latency(history: History) -> float | None:
    """In the unit of `History.latency`: cycles where the target counts them, else seconds; None
    without a valid trial."""
    best = float(np.min(history.possible, initial=np.inf))
    return best if np.isfinite(best) else None


def expected_saving(
    history: History, count: int, trials: int, baseline: float | None = None
) -> float:
    """What the next round of at most `trials` trials is expected to take off a latency of `count`
    calls, in the unit of `best_latency`; 0 without a valid trial. `baseline` is what a call takes
    with the schedule that is there anyway, in that unit.

    count · min(best, baseline) · (1 − 2^−u), where u is the `expected_improvement`.
    """
    best = best_latency(history)
    if best is None or trials < 1:
        return 0.0
    least = best if baseline is None else min(best, baseline)
    improvement = expected_improvement(history, trials, baseline)
    return float(-count * least * np.expm1(-np.log(2) * improvement))


def expected_improvement(history: History, trials: int, baseline: float | None = None) -> float:
    """By how much the next round of at most `trials` trials is expected to lower the log2 of the
    best latency; 0 without a valid trial. `baseline` is what one has without trials.

    u = (w·p + Σ_r λ^(R−r)·d_r) / (w + Σ_r λ^(R−r)), a mean of

    * d_r, by how much round r of R lowered it: what this tuner does on this workload, the last
      rounds before all (λ = `DISCOUNT`). Rounds before and with the first valid trial say nothing.
    * p = b/(n+b) · s, what n trials say of b more if all are draws of one kind, with a weight
      w = `PRIOR_WEIGHT`: the chance that the best of n+b exchangeable draws is one of the last b
      is b/(n+b), and a record is s better than the one before it. Of a tail that falls
      exponentially the k-th spacing of the order statistics has mean s/k (Rényi), so the k-th
      trial behind the best lies s·(1 + 1/2 + … + 1/k) behind it: s is estimated by the
      `LEADERS` next ones.

    Where the best trial is g behind the baseline, what counts is what lies beyond that:
    u·e^(−g/σ), if an improvement is distributed exponentially with mean σ, the larger of s and the
    mean of the d_r.

    Where a round brings nothing, no term rises: the spacings among the best can only shrink (those
    that are missing count as `WIDEST`), b/(n+b) falls, every d_r counts half, and the sum of
    weights does not fall.
    """
    latencies = history.possible
    made = len(latencies)
    if trials < 1 or not np.isfinite(latencies).any():
        return 0.0
    spacing = _spacing(latencies)
    prior = trials / (made + trials) * spacing
    won = _improvements(latencies, history.rounds)
    weights = DISCOUNT ** np.arange(len(won))[::-1]
    known, weight = float(np.sum(weights * won)), float(np.sum(weights))
    found = (PRIOR_WEIGHT * prior + known) / (PRIOR_WEIGHT + weight)
    behind = 0.0 if baseline is None else float(np.log2(np.min(latencies) / baseline))
    if behind <= 0 or not found:
        return found
    return found * float(np.exp(-behind / max(spacing, known / weight if known else 0.0)))


def _spacing(latencies: NDArray[np.float64]) -> float:
    """The scale s of the tail, in log2."""
    ranked = np.log2(np.sort(latencies[np.isfinite(latencies)]))
    behind = np.full(LEADERS, WIDEST)
    found = ranked[1 : LEADERS + 1] - ranked[0]
    behind[: len(found)] = np.minimum(found, WIDEST)
    return float(np.mean(behind) / np.mean(np.cumsum(1 / np.arange(1, LEADERS + 1))))


def _improvements(latencies: NDArray[np.float64], rounds: NDArray[np.int32]) -> NDArray[np.float64]:
    """Of each round behind the one with the first valid trial, in log2."""
    ends = np.flatnonzero(np.append(np.diff(rounds) != 0, len(rounds) > 0))
    best = np.log2(np.minimum.accumulate(latencies)[ends])
    best = best[np.isfinite(best)]
    return -np.diff(best)
