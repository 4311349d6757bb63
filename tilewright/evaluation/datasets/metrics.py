"""Measures how well a model orders the programs of a task, which is all that a tuner asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module
from tilewright.evaluation.datasets.plan import DatasetError
from tilewright.models.transfer.training_data import TrainingTable

stats = lazy_module("scipy.stats")

CONFIDENCE = 0.95
FEWEST_OF_EIGHT = 40
"""Rows of a task of which the best eight are a choice."""
_RESAMPLES = 2000


@dataclass(frozen=True)
class Scores:
    """Of `tasks` tasks with `rows` valid rows in all; every task counts the same.

    `pairwise_accuracy` is the mean over tasks of the share of pairs in the right order, `interval`
    its 95 % bootstrap over tasks. `top1_regret` and `top8_regret` are means over tasks of how much
    slower the best of the one or eight rows that the model likes most is than the task's best row:
    0.05 is 5 %. That of eight is of the tasks with `FEWEST_OF_EIGHT` rows at least, None without
    one: of ten rows, eight at random are no choice.
    """

    pairwise_accuracy: float
    interval: tuple[float, float]
    top1_regret: float
    top8_regret: float | None
    tasks: int
    rows: int


def score(table: TrainingTable, predicted: NDArray[np.float64], seed: int = 0) -> Scores:
    """Judge predictions (rows,), lower is faster in any unit: only their order in a task counts.

    Rows that are not valid are left out, and tasks without two rows of different latency. `seed` is
    the bootstrap's. Raises `DatasetError` if no task is left or a prediction is not a number.
    """
    if predicted.shape != table.log_latency.shape:
        raise DatasetError(
            f"{len(table)} rows cannot be judged by predictions of shape {predicted.shape}: give "
            "one number a row"
        )
    valid = table.valid
    if np.isnan(predicted[valid]).any():
        raise DatasetError(
            f"{int(np.isnan(predicted[valid]).sum())} of {int(valid.sum())} predictions are not "
            "numbers; a model has to answer for every row"
        )
    figures, eighth, rows = [], [], 0
    for latency, guess in _tasks(table.rows(valid), predicted[valid]):
        accuracy = pairwise_accuracy(latency, guess)
        if np.isfinite(accuracy):
            figures.append((accuracy, _regret(latency, guess, 1)))
            if len(latency) >= FEWEST_OF_EIGHT:
                eighth.append(_regret(latency, guess, 8))
            rows += len(latency)
    if not figures:
        raise DatasetError("no task has two valid rows of different latency; read more rows")
    accuracies, first = np.array(figures).T
    return Scores(
        pairwise_accuracy=float(accuracies.mean()),
        interval=_interval(accuracies, seed),
        top1_regret=float(first.mean()),
        top8_regret=float(np.mean(eighth)) if eighth else None,
        tasks=len(figures),
        rows=rows,
    )


def pairwise_accuracy(latency: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """The share of pairs of a task's rows (rows,) that `predicted` (rows,) puts in the right order.

    Pairs of equal latency have no order and do not count; a pair of equal prediction counts a half,
    as if a coin decided: a constant scores 0.5. NaN if no pair counts. Exact, in O(n log n).
    """
    pairs = _pairs(np.array([len(latency)]))
    ordered = pairs - _pairs(np.unique(latency, return_counts=True)[1])
    told = pairs - _pairs(np.unique(predicted, return_counts=True)[1])
    if ordered == 0:
        return float("nan")
    if told == 0:
        return 0.5
    # tau-b is (concordant - discordant) / sqrt(ordered * told): the integer is got back by rounding
    # (of two rows its p-value, which nobody asks for, would be a division by zero)
    method = "asymptotic" if len(latency) > 2 else "exact"
    tau = stats.kendalltau(latency, predicted, method=method).statistic
    surplus = round(float(tau) * float(np.sqrt(float(ordered) * float(told))))
    return (ordered + surplus) / (2 * ordered)


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _tasks(
    table: TrainingTable, predicted: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Latencies and predictions of each task, shape (its rows,)."""
    order = np.argsort(table.task, kind="stable")
    ends = np.flatnonzero(np.diff(table.task[order])) + 1
    yield from zip(
        np.split(table.log_latency[order], ends), np.split(predicted[order], ends), strict=True
    )


def _regret(log_latency: NDArray[np.float64], predicted: NDArray[np.float64], k: int) -> float:
    """Of equal predictions the earlier row is taken."""
    chosen = np.argsort(predicted, kind="stable")[:k]
    return float(np.exp2(log_latency[chosen].min() - log_latency.min()) - 1.0)


def _interval(accuracies: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """The percentile bootstrap of the mean, tasks resampled; of a single task all there may be."""
    if len(accuracies) < 2:
        return 0.0, 1.0  # one task says nothing of others
    if np.ptp(accuracies) == 0:
        return float(accuracies.min()), float(accuracies.max())
    ends = stats.bootstrap(
        (accuracies,), np.mean, n_resamples=_RESAMPLES, confidence_level=CONFIDENCE,
        method="percentile", rng=seed, batch=256,
    ).confidence_interval  # fmt: skip
    return float(ends.low), float(ends.high)
