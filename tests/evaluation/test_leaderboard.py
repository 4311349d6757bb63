"""Compares the statistics of a leaderboard with hand-calculated ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.evaluation.compare.benchmark_suite import recorded_test_bed
from tilewright.evaluation.compare.leaderboard import (
    Leaderboard,
    band,
    interval,
    relative_trials,
    results_of,
    workload_leaderboard,
)
from tilewright.evaluation.compare.workload_comparison import space_facts
from tilewright.evaluation.compare.workload_runs import TunerRun

TABLES = Path(__file__).parents[1] / "data" / "tvm-vta"
OPTIMUM = {"one": 100, "two": 1000}
BATCH = 2


def _run(
    tuner: str, workload: str, seed: int, cycles: list[int | None], lowered: int = 0
) -> TunerRun:
    best, known = [], None
    for cycle in cycles:
        known = cycle if known is None else min(known, cycle or known)
        best.append(known)
    statuses = ["valid" if item else "run_error" for item in cycles]
    elapsed = [0.5 * (k + 1) for k in range(len(cycles))]
    compiled = [2 * (k // BATCH + 1) for k in range(len(cycles))]
    return TunerRun(
        tuner, workload, seed, statuses, best, lowered, lowered, elapsed[-1], elapsed, compiled,
        [10.0 * item for item in compiled],
    )  # fmt: skip


RUNS = [
    _run("good", "one", 0, [None, 150, 100, 120]),
    _run("good", "one", 1, [100, None, None, None]),
    _run("good", "two", 0, [None, None, 1010, None], lowered=6),
    _run("good", "two", 1, [4000, 1000]),  # the space was exhausted
    _run("poor", "one", 0, [None, 300, None, 200]),
    _run("poor", "one", 1, [None, None, None, None]),
    _run("poor", "two", 0, [2000, None, None, 1009]),
    _run("poor", "two", 1, [None, None, None, 4000]),
]


def board_of(runs: list[TunerRun]) -> Leaderboard:
    return workload_leaderboard(results_of(runs, OPTIMUM, 4), "vta")


def test_regret_counts_from_the_optimum_and_is_infinite_before_the_first_valid_trial() -> None:
    results = results_of(RUNS, OPTIMUM, 4)
    assert results.regret[0, 0, 0].tolist() == [math.inf, 0.5, 0.0, 0.0]
    assert results.regret[0, 1, 1].tolist() == [3.0, 0.0, 0.0, 0.0]
    assert np.isinf(results.regret[1, 0, 1]).all()


def test_trials_to_the_goal_count_the_budget_where_it_was_missed() -> None:
    results = results_of(RUNS, OPTIMUM, 4)
    assert results.first_within.tolist() == [[[3, 1], [3, 2]], [[4, 4], [4, 4]]]
    assert results.trials_to_goal.tolist() == [[[4, 2], [4, 2]], [[4, 4], [4, 4]]]
    assert results.reached.tolist() == [[[True, True], [True, True]], [[False, False],
                                                                       [True, False]]]  # fmt: skip


def test_a_standing_is_the_median_over_seeds() -> None:
    good, poor = board_of(RUNS).tuners
    assert (good.tuner, poor.tuner) == ("good", "poor")
    regrets = [math.sqrt(1.0 * 1.01) - 1, 0.0]
    assert good.regret == pytest.approx(np.mean(regrets))
    assert good.intervals["regret"] == pytest.approx((0.0, regrets[0]))
    assert good.within_goal == 1.0
    assert poor.within_goal == 0.25
    assert good.first_within == pytest.approx((math.sqrt(3 * 3) + math.sqrt(1 * 2)) / 2)
    assert good.trials_to_goal == pytest.approx((math.sqrt(4 * 4) + math.sqrt(2 * 2)) / 2)
    assert good.compiles_to_goal == pytest.approx((4 + 2) / 2)
    assert good.invalid_to_goal == pytest.approx(((1 + 3) / 2 + (1 + 0) / 2) / 2)
    assert good.stack_seconds_to_goal == pytest.approx(((40 + 2.0) + (20 + 1.0)) / 2)
    assert good.wall_seconds == pytest.approx((2.0 + 1.5) / 2)
    assert (good.fastest_on, good.seeds) == (2, 2)
    assert (poor.worst_workload, poor.worst_regret, poor.regret) == ("one", None, None)
    assert poor.invalid_share == pytest.approx((4 / 8 + 7 / 8) / 2)


def test_relative_trials_are_a_geometric_mean_of_ratios() -> None:
    ratio = relative_trials(results_of(RUNS, OPTIMUM, 4), "good", "poor")
    assert ratio == pytest.approx(math.sqrt((3 / 4) * (3 / 4)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=25))
def test_an_interval_holds_its_median_and_lies_within_the_figures(figures: list[float]) -> None:
    result = interval(np.array(figures))
    assert min(figures) <= result.low <= result.middle <= result.high <= max(figures)


def test_an_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    intervals = [interval(rng.exponential(size=21)) for _ in range(200)]
    covered = np.mean([item.low <= math.log(2) <= item.high for item in intervals])
    assert 0.88 <= covered <= 0.99


def test_bands_of_infinite_curves_are_infinite_not_undefined() -> None:
    curves = np.full((5, 2), np.inf)
    curves[:2, 1] = 1.0
    low, middle, high = band(curves)
    assert not np.isnan([*low, *middle, *high]).any()
    assert np.isinf(middle).all()
    assert low[1] == 1.0


def test_a_leaderboard_compares_the_best_tuner_with_the_yardstick() -> None:
    runs = [replace(run, tuner={"poor": "autotvm"}.get(run.tuner, run.tuner)) for run in RUNS]
    board = board_of(runs)
    assert board.winners == ("good",)
    assert board.relative is not None
    assert board.relative.share == relative_trials(results_of(runs, OPTIMUM, 4), "good", "autotvm")
    assert board.relative.at_most  # the reference tuner missed the goal at times


def test_a_leaderboard_without_a_yardstick_compares_nothing() -> None:
    assert board_of(RUNS).relative is None


def test_facts_of_a_space_count_what_is_valid_and_near_the_optimum() -> None:
    table = recorded_test_bed([TABLES / "C10.csv.gz"]).table("C10")
    valid = [c for c, s in zip(table.cycles, table.status, strict=True) if s == "valid"]
    facts = space_facts("C10", table)
    assert facts.title == "C10 · 1×1/2 256→512 @14"
    assert (facts.configs, facts.valid) == (len(table.status), len(valid))
    assert facts.optimum.cycles == min(valid) == 37_817
    assert facts.near == sum(c <= 1.01 * 37_817 for c in valid)
