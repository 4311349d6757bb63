"""Tests the expected gain of a workload's next round, predicted from its past rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.search import History
from tilewright.search.expected_gain import (
    WIDEST,
    best_latency,
    expected_improvement,
    expected_saving,
)
from tilewright.targets.features import Features

Rounds = list[list[int | None]]
"""Cycles of each trial by round, with None for an invalid trial."""

rounds = st.lists(
    st.lists(st.none() | st.integers(1, 1 << 40), min_size=1, max_size=9), min_size=1, max_size=9
)

baseline = st.none() | st.floats(1, 1 << 40)


def history(found: Rounds) -> History:
    cycles = [trial for trials in found for trial in trials]
    of_round = [index for index, trials in enumerate(found) for _ in trials]
    return History(
        np.zeros((len(cycles), 1), np.int32),
        np.array(["valid" if cycle else "run_error" for cycle in cycles], dtype=object),
        np.array([cycle or -1 for cycle in cycles], dtype=np.int64),
        np.array([cycle / 1e8 if cycle else np.nan for cycle in cycles]),
        np.array(of_round, dtype=np.int32),
        Features.empty(len(cycles)),
        np.empty((0, 1), np.int32),
        round=len(found),
    )


@given(rounds, st.integers(0, 50), st.integers(1, 100), baseline)
def test_no_more_is_expected_than_there_is(
    found: Rounds, count: int, trials: int, without: float | None
) -> None:
    known = history(found)
    best = best_latency(known)
    saving = expected_saving(known, count, trials, without)
    assert 0 <= saving <= count * min(best or 0, without or np.inf)
    valid = [item for trial in found for item in trial if item]
    assert best == (min(valid) if valid else None)


@given(rounds, st.lists(st.none() | st.integers(0, 1 << 40), min_size=1, max_size=9), baseline)
def test_a_round_that_brings_nothing_lowers_what_is_expected(
    found: Rounds, behind: list[int | None], without: float | None
) -> None:
    known = history(found)
    best = int(best_latency(known) or 0)
    nothing = [None if item is None or not best else best + item for item in behind]
    before, after, late = (
        expected_improvement(history([*found, *[nothing] * more]), 8, without)
        for more in (0, 1, 20)
    )
    assert late <= after * (1 + 1e-9) <= before * (1 + 1e-8)
    assert late < before or before == 0


@given(rounds, st.integers(1, 8))
def test_rounds_without_end_that_bring_nothing_leave_nothing_to_expect(
    found: Rounds, size: int
) -> None:
    best = best_latency(history(found))
    nothing: list[int | None] = [None if best is None else int(best)] * size
    late = history([*found, *[nothing] * 200])
    assert expected_improvement(late, size) <= WIDEST / 200


@given(rounds, st.integers(1, 20))
def test_the_unit_of_latency_does_not_matter(found: Rounds, shift: int) -> None:
    larger: Rounds = [[trial and trial << shift for trial in trials] for trials in found]
    assert expected_improvement(history(larger), 8) == pytest.approx(
        expected_improvement(history(found), 8), abs=1e-9
    )


def test_one_that_still_improves_is_expected_to_save_more() -> None:
    stands: Rounds = [[100, 130, 160, 190]] * 3
    improves: Rounds = [[400, 430, 460, 490], [200, 230, 260, 290], [100, 130, 160, 190]]
    assert expected_saving(history(improves), 1, 4) > 2 * expected_saving(history(stands), 1, 4)


def test_trials_far_behind_the_baseline_schedule_are_expected_to_save_nothing() -> None:
    known = history([[800, 900, 1000, 1100], [400, 430, 460, 490]])
    savings = [expected_saving(known, 1, 4, without) for without in (None, 400, 300, 200, 100, 1)]
    assert savings[0] == savings[1]
    assert savings[1:] == sorted(savings[1:], reverse=True)
    assert savings[4] < savings[1] / 20


def test_a_round_of_more_trials_is_expected_to_save_more() -> None:
    known = history([[100, 130, None, 190]])
    savings = [expected_saving(known, 1, trials) for trials in (0, 1, 4, 16, 1000)]
    assert savings == sorted(savings)
    assert savings[0] == 0 < savings[1] < savings[-1]


@pytest.mark.parametrize("found", [[], [[None, None]], [[None], [None]]])
def test_without_a_valid_trial_nothing_is_known(found: Rounds) -> None:
    assert best_latency(history(found)) is None
    assert expected_saving(history(found), 7, 8) == 0


def test_equal_latencies_leave_nothing_to_expect() -> None:
    assert expected_improvement(history([[70] * 8, [70] * 8]), 8) == 0


def test_latencies_that_cannot_be_true_count_as_invalid_trials() -> None:
    known = replace(history([[100, 120, None, None]]), cycles=np.full(4, -1))
    strange = replace(
        known,
        status=np.array(["valid"] * 4, dtype=object),
        seconds=np.array([*known.seconds[:2], np.inf, np.nan]),
    )
    for item in (0.0, -1.0):
        worse = replace(strange, seconds=np.array([*known.seconds[:2], item, np.nan]))
        assert expected_saving(worse, 3, 8) == expected_saving(strange, 3, 8)
    assert expected_saving(strange, 3, 8) == expected_saving(known, 3, 8) > 0
