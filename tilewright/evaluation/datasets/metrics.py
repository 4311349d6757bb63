"""Metrics of how well a cost model ranks the configs of a task, which is what a tuner needs."""

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
"""Minimum number of rows of a task for `top8_regret`."""
_RESAMPLES = 2000


@dataclass(frozen=True)
class Scores:
    """Quality of a model's ranking of configs by latency. Every task has the same weight.

    A task is a workload on a piece of hardware. Rows are compared only with rows of the same task.

    Attributes:
        pairwise_accuracy: fraction of pairs of rows in the right order, averaged over tasks.
        interval: 95 % bootstrap interval of `pairwise_accuracy` over tasks.
        top1_regret: relative difference in latency between the row that the model ranks first and
            the fastest row, averaged over tasks; 0.05 means 5 % slower.
        top8_regret: relative difference in latency between the fastest of the eight rows that the
            model ranks first and the fastest row, averaged over tasks with at least
            `FEWEST_OF_EIGHT` rows; None if there is no such task. Smaller tasks are left out
            because even eight random rows would do well there.
        tasks: number of tasks.
        rows: number of valid rows in these tasks.
    """

    pairwise_accuracy: float
    interval: tuple[float, float]
    top1_regret: float
    top8_regret: float | None
    tasks: int
    rows: int


def score(table: TrainingTable, predicted: NDArray[np.float64], seed: int = 0) -> Scores:
    """Evaluate how well predictions order the rows of each task by latency.

    Invalid rows and tasks without two different latencies are left out.

    Args:
        table: the rows with their measured latencies.
        predicted: predictions in any unit, float array of shape (rows,). Lower means faster.
        seed: seed of the bootstrap.

    Returns:
        The metrics.

    Raises:
        DatasetError: no task is left, the shapes do not match, or a prediction of a valid row is
            NaN.
    """
    if predicted.shape != table.log_latency.shape:
        raise DatasetError(
            f"predictions of shape {predicted.shape} do not match {len(table)} rows; give "
            "one number per row"
        )
    valid = table.valid
    if np.isnan(predicted[valid]).any():
        raise DatasetError(
            f"{int(np.isnan(predicted[valid]).sum())} of {int(valid.sum())} predictions are "
            "NaN; a model must predict a number for every row"
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
        raise DatasetError(
            "no task has two valid rows of different latency, so nothing can be evaluated; read "
            "more rows"
        )
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
    """Return the fraction of pairs of rows that predictions put in the right order.

    Pairs with equal latencies are ignored. A pair with equal predictions counts as one half, so
    that a constant prediction scores 0.5. The result is exact and is computed in O(n log n) from
    Kendall's tau.

    Args:
        latency: latencies of a task's rows, float array of shape (rows,).
        predicted: predictions, float array of shape (rows,).

    Returns:
        The fraction; NaN if all latencies are equal.
    """
    pairs = _pairs(np.array([len(latency)]))
    ordered = pairs - _pairs(np.unique(latency, return_counts=True)[1])
    told = pairs - _pairs(np.unique(predicted, return_counts=True)[1])
    if ordered == 0:
        return float("nan")
    if told == 0:
        return 0.5
    # Kendall's tau-b is (concordant - discordant) / sqrt(ordered * told). The numerator is an
    # integer, so rounding recovers it exactly. With two rows, the asymptotic p-value would divide
    # by zero.
    method = "asymptotic" if len(latency) > 2 else "exact"
    tau = stats.kendalltau(latency, predicted, method=method).statistic
    surplus = round(float(tau) * float(np.sqrt(float(ordered) * float(told))))
    return (ordered + surplus) / (2 * ordered)


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _tasks(
    table: TrainingTable, predicted: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Split rows by their task, which is a workload on a piece of hardware.

    Args:
        table: the rows.
        predicted: predictions, float array of shape (rows,).

    Yields:
        For each task, log2 of the latencies and the predictions, both of shape (rows of the task,).
    """
    order = np.argsort(table.task, kind="stable")
    ends = np.flatnonzero(np.diff(table.task[order])) + 1
    yield from zip(
        np.split(table.log_latency[order], ends), np.split(predicted[order], ends), strict=True
    )


def _regret(log_latency: NDArray[np.float64], predicted: NDArray[np.float64], k: int) -> float:
    """Return how much slower a task's best schedule is after `k` trials that a model chose.

    The `k` rows with the lowest predictions are tried, and the fastest of them is compared with the
    fastest row of the task.

    Args:
        log_latency: log2 of the latencies of a task, float array of shape (rows,).
        predicted: predictions, float array of shape (rows,). Lower means faster. Of equal
            predictions, the earlier row is ranked first.
        k: number of rows that are tried.

    Returns:
        The relative difference in latency; 0.05 means 5 % slower.
    """
    chosen = np.argsort(predicted, kind="stable")[:k]
    return float(np.exp2(log_latency[chosen].min() - log_latency.min()) - 1.0)


def _interval(accuracies: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean accuracy over tasks; (0, 1) for a single task.

    Args:
        accuracies: accuracy of each task, float array of shape (tasks,).
        seed: seed of the bootstrap.
    """
    if len(accuracies) < 2:
        return 0.0, 1.0  # a single task tells nothing about other tasks
    if np.ptp(accuracies) == 0:
        return float(accuracies.min()), float(accuracies.max())
    ends = stats.bootstrap(
        (accuracies,), np.mean, n_resamples=_RESAMPLES, confidence_level=CONFIDENCE,
        method="percentile", rng=seed, batch=256,
    ).confidence_interval  # fmt: skip
    return float(ends.low), float(ends.high)
