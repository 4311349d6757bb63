"""Tests the hidden features, which lowering reveals, and the regression on hardware counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.matrices import counted, numbered
from tilewright.models.counter_regression import (
    COMPUTE,
    LOAD,
    OPEN,
    STORE,
    CounterRegression,
    _residuals,
    _slopes,
)
from tilewright.models.hidden_features import hidden_features, work

NAMES = ("inp_bytes", "wgt_bytes", "gemm_iterations", "load_exposed", "instructions", "tokens")


def test_columns_are_what_one_works_out_by_hand() -> None:
    counts = np.array([[7.0, 24.0, 15.0, 1.0, 3.0, np.nan]])
    features = hidden_features(counted(counts, NAMES))
    half = 0.5  # factor of log2 columns, so that all have a similar scale
    work = np.log2(1 + 31 + 16) + 4
    expected = {
        "hidden instructions": half * 2, "hidden bytes": half * 5, "hidden exposed": half * 1,
        "hidden iterations": half * 4, "hidden instructions per iteration": half * (2 - 4),
        "hidden bytes per iteration": half * (5 - 4),
        "hidden exposed per iteration": half * (1 - 4),
        "hidden work per iteration": half * (work - 4),
    }  # fmt: skip
    assert dict(zip(features.names, features.matrix[0].tolist(), strict=True)) == pytest.approx(
        expected
    )


def test_without_iterations_nothing_is_per_iteration() -> None:
    features = hidden_features(counted(np.ones((2, 2)), ("inp_bytes", "tokens")))
    assert features.names == ("hidden bytes",)


def test_counts_that_sum_to_nothing_known_are_columns_themselves() -> None:
    names = ("values", "values of all threads")
    features = hidden_features(counted(np.array([[3.0, np.nan]]), names))
    assert features.names == ("hidden values", "hidden values of all threads")
    np.testing.assert_array_equal(features.matrix, [[1.0, 0.0]])


def test_bytes_in_the_open_count_more_than_hidden_ones() -> None:
    names = ("inp_bytes", "load_exposed", "gemm_iterations", "last_work")
    programs = np.array([[100, 0, 50, 0], [100, 10, 50, 0], [110, 0, 50, 0], [100, 0, 50, 9.0]])
    plain, exposed, longer, late = work(counted(programs, names))
    assert plain < longer < exposed
    assert plain < late


def test_the_draft_finds_the_prices_of_a_sum_and_gives_no_negative_ones() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 1000, (12, 4)).astype(float)
    cycles = counts @ np.array([3.0, 0.0, 0.5, 40.0])
    draft = CounterRegression(0, False, {})
    draft.fit(numbered(counts), np.log2(cycles))
    assert (draft.prices >= 0).all()
    np.testing.assert_allclose(draft.prices, [3.0, 0.0, 0.5, 40.0], atol=0.1)
    np.testing.assert_allclose(draft.predict(numbered(counts)), np.log2(cycles), atol=0.01)


def test_the_draft_knows_that_modules_work_side_by_side(tmp_path: Path) -> None:
    """Loads cost 4 cycles per byte and overlap with compute. Instructions cost extra cycles."""
    names = ("wgt_bytes", "gemm_iterations", "instructions")
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 1000, (60, 3)) * [1.0, 4.0, 0.1]

    def cycles(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum(4.0 * x[:, 0], x[:, 1]) + 7.0 * x[:, 2])

    seen, unseen = (counted(part, names) for part in (counts[:30], counts[30:]))
    parallel, added = CounterRegression.for_counters(seen), CounterRegression(0, False, {})
    errors = []
    for draft in (parallel, added):
        draft.fit(seen, np.log2(cycles(seen.matrix)))
        errors.append(np.abs(draft.predict(unseen) - np.log2(cycles(unseen.matrix))).mean())
    assert errors[0] < 0.03 < 0.1 < errors[1]
    np.testing.assert_allclose(parallel.prices, [4.0, 1.0, 7.0], rtol=0.15)

    parallel.save(tmp_path / "draft.npz")
    again = CounterRegression(0, False, {})
    again.load(tmp_path / "draft.npz")
    np.testing.assert_array_equal(again.predict(unseen), parallel.predict(unseen))


def test_the_slopes_of_the_draft_are_those_of_its_residuals() -> None:
    rng = np.random.default_rng(1)
    module = np.array([LOAD, LOAD, COMPUTE, COMPUTE, STORE, OPEN])
    rows, y = rng.random((9, 6)), rng.uniform(9, 12, 9)
    theta = np.append(rng.normal(8, 1, 6), 0.3)
    exact = _slopes(theta, rows, y, module, 5.0)
    step = 1e-5
    for k in range(len(theta)):
        moved = step * np.eye(len(theta))[k]
        up, down = (_residuals(theta + s * moved, rows, y, module, 5.0) for s in (1, -1))
        np.testing.assert_allclose(exact[:, k], (up - down) / (2 * step), atol=1e-6)


def test_a_draft_of_one_program_or_none_answers() -> None:
    names = ("wgt_bytes", "gemm_iterations")
    for rows in (0, 1):
        counts = counted(np.full((rows, 2), 100.0), names)
        draft = CounterRegression.for_counters(counts)
        draft.fit(counts, np.full(rows, 10.0))
        asked = counted(np.array([[100.0, 100.0], [0.0, np.nan]]), names)
        assert np.isfinite(draft.predict(asked)).all()


def test_a_draft_of_seconds_is_one_of_cycles_on_another_clock() -> None:
    rng = np.random.default_rng(0)
    counts = numbered(rng.integers(1, 1000, (12, 4)).astype(float))
    cycles = counts.matrix @ np.array([3.0, 0.1, 0.5, 40.0])
    ticks, seconds = CounterRegression(0, False, {}), CounterRegression(0, False, {})
    ticks.fit(counts, np.log2(cycles))
    seconds.fit(counts, np.log2(cycles / 1e8))
    said = seconds.predict(counts) + np.log2(1e8)
    np.testing.assert_allclose(said, ticks.predict(counts), atol=0.01)
