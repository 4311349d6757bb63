"""Compares average recall with its definition, and tests early stopping of AutoTVM's model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.models.matrices import numbered
from tilewright.models.trees import AutoTVMRanker, average_recall


def _plain(truth: list[float], predicted: list[float], n: int) -> float:
    """Compute average recall from its definition.

    For k = 0 … n-1, this is the fraction of the k + 1 truly best rows that are among the k
    predicted best.
    """
    by_truth = sorted(range(len(truth)), key=lambda row: -truth[row])
    by_prediction = sorted(range(len(truth)), key=lambda row: -predicted[row])
    total = 0.0
    for k in range(min(n, len(truth))):
        best, guessed = set(by_truth[: k + 1]), set(by_prediction[:k])
        total += len(best & guessed) / (k + 1)
    return total / n


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_it_equals_the_plain_definition(rows: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, predicted = rng.permutation(rows) * 1.0, rng.permutation(rows) * 1.0
    rank = np.empty(rows, dtype=np.int64)
    rank[np.argsort(-truth)] = np.arange(rows)
    result = average_recall(rank[np.argsort(-predicted)], n)
    assert abs(result - _plain(truth.tolist(), predicted.tolist(), n)) < 1e-12


def test_a_perfect_order_beats_every_other() -> None:
    perfect = average_recall(np.arange(64), 64)
    rng = np.random.default_rng(0)
    assert all(average_recall(rng.permutation(64), 64) < perfect for _ in range(50))
    assert average_recall(np.arange(64)[::-1], 64) < 0.4 * perfect


def test_boosting_stops_once_recall_grows_no_more() -> None:
    """One split orders the easy rows, so they need few trees. Rows in random order need many."""
    x = np.random.default_rng(0).normal(size=(120, 3))
    easy, hard = AutoTVMRanker(0, False, {}), AutoTVMRanker(0, False, {})
    easy.fit(numbered(x), (x[:, 0] > 0) * 0.5 + 0.25)
    hard.fit(numbered(x), np.random.default_rng(1).random(120))
    assert 20 < easy.booster.num_boosted_rounds() < hard.booster.num_boosted_rounds() < 8000
