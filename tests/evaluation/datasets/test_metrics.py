"""Compares pairwise accuracy, regret and their confidence intervals with their definitions."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.datasets.tables import table_of
from tilewright.evaluation.datasets.metrics import pairwise_accuracy, score
from tilewright.evaluation.datasets.plan import DatasetError

few = st.integers(-3, 3).map(float)


def by_definition(latency: list[float], predicted: list[float]) -> float:
    points = []
    for a, b in combinations(range(len(latency)), 2):
        true, guess = np.sign(latency[a] - latency[b]), np.sign(predicted[a] - predicted[b])
        if true:
            points.append(0.5 if guess == 0 else float(true == guess))
    return float(np.mean(points)) if points else math.nan


@given(st.lists(st.tuples(few, few), min_size=1, max_size=40))
def test_accuracy_is_the_share_of_pairs_in_order(rows: list[tuple[float, float]]) -> None:
    latency, predicted = ([row[k] for row in rows] for k in (0, 1))
    accuracy = pairwise_accuracy(np.array(latency), np.array(predicted))
    assert accuracy == pytest.approx(by_definition(latency, predicted), abs=1e-12, nan_ok=True)


def test_accuracy_of_many_rows_is_exact() -> None:
    rng = np.random.default_rng(0)
    latency = rng.permutation(30_000).astype(float)
    swapped = latency.copy()
    first, second = np.flatnonzero(latency == 7)[0], np.flatnonzero(latency == 8)[0]
    swapped[[first, second]] = swapped[[second, first]]
    pairs = 30_000 * 29_999 // 2
    assert pairwise_accuracy(latency, latency) == 1.0
    assert pairwise_accuracy(latency, -latency) == 0.0
    assert pairwise_accuracy(latency, swapped) == (pairs - 1) / pairs
    assert pairwise_accuracy(latency, np.zeros(30_000)) == 0.5


def test_regret_is_of_the_best_among_the_chosen() -> None:
    # The latencies are 4, 2, 1, 16. The model ranks the row of 4 first, then that of 16.
    table = table_of([0] * 4 + [1] * 2, [2, 1, 0, 4, 0, 1])
    result = score(table, np.array([0.0, 2.0, 3.0, 1.0, 0.0, 1.0]))
    assert result.top1_regret == pytest.approx((4 / 1 - 1 + 0) / 2)
    assert result.top8_regret is None  # there are only four rows
    assert (result.tasks, result.rows) == (2, 6)
    assert result.pairwise_accuracy == pytest.approx((1 / 6 + 1) / 2)


def test_eight_chosen_may_miss_the_best() -> None:
    latency = np.array([3.0] + [2.0] * 38 + [0.0])
    table = table_of([0] * 40 + [1] * 2, [*latency.tolist(), 0.0, 1.0])
    assert score(table, np.arange(42.0)).top8_regret == pytest.approx(3.0)
    fewer = table_of([0] * 39, latency[1:].tolist())
    assert score(fewer, np.arange(39.0)).top8_regret is None


def test_only_the_order_within_a_task_counts() -> None:
    table = table_of([0, 0, 1, 1], [0, 1, 10, 11])
    assert score(table, np.array([5.0, 6.0, 1.0, 2.0])).pairwise_accuracy == 1.0


def test_what_is_not_valid_is_left_out_whatever_is_predicted() -> None:
    table = table_of([0, 0, 0, 1, 1], [0, 1, np.nan, np.nan, 3])
    result = score(table, np.array([0.0, 1.0, np.nan, -1.0, 0.0]))
    assert (result.tasks, result.rows, result.pairwise_accuracy) == (1, 2, 1.0)


def test_the_interval_holds_the_mean_and_narrows_with_tasks() -> None:
    rng = np.random.default_rng(1)

    def width(tasks: int) -> float:
        task = np.repeat(np.arange(tasks), 6)
        latency = rng.random(len(task))
        result = score(table_of(task.tolist(), latency.tolist()), latency + rng.random(len(task)))
        low, high = result.interval
        assert low < result.pairwise_accuracy < high
        return high - low

    assert width(400) < 0.5 * width(20)


def test_equal_seeds_give_equal_intervals() -> None:
    rng = np.random.default_rng(2)
    table = table_of(np.repeat(np.arange(9), 5).tolist(), rng.random(45).tolist())
    guess = rng.random(45)
    assert score(table, guess, seed=3) == score(table, guess, seed=3)


@pytest.mark.parametrize(
    ("predicted", "says"),
    [
        (np.zeros(2), "shape"),
        (np.array([0.0, np.nan, 1.0]), "are NaN"),
    ],
)
def test_what_is_no_prediction_is_refused(predicted: np.ndarray, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        score(table_of([0, 0, 0], [0, 1, 2]), predicted)


def test_rows_without_pairs_are_refused() -> None:
    with pytest.raises(DatasetError, match="different latency"):
        score(table_of([0, 1, 2, 2], [0, 1, 2, 2]), np.zeros(4))
