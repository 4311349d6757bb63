"""Tests the interval of a median, and the correction of timings by a reference kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import quantile_test

from tilewright.targets.cpu.timing import Repeats, Run, Timing, median_interval, time_kernel


@pytest.mark.parametrize("count", [6, 7, 12, 50, 201])
def test_the_interval_is_that_of_order_statistics(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=count)
    expected = quantile_test(values, p=0.5).confidence_interval(0.95)
    assert median_interval(values) == pytest.approx((expected.low, expected.high))


def test_few_values_have_no_interval() -> None:
    assert median_interval(np.arange(5.0)) == (-np.inf, np.inf)


@pytest.mark.parametrize("draw", ["exponential", "standard_cauchy", "lognormal"])
def test_the_interval_holds_the_median_as_often_as_it_says(draw: str) -> None:
    rng = np.random.default_rng(0)
    median = {"exponential": np.log(2.0), "standard_cauchy": 0.0, "lognormal": 1.0}[draw]
    held = 0
    for _ in range(1000):
        low, high = median_interval(getattr(rng, draw)(size=25))
        held += low <= median <= high
    assert held >= 930


def _machine(slow: float, preempted: float) -> Callable[[float], Run]:
    """Return a simulated machine on which every kernel takes `slow` times as long.

    In the fraction `preempted` of the repeats, another process takes the core.
    """
    rng = np.random.default_rng(0)

    def kernel(seconds: float) -> Run:
        def run(repeats: int, calls: int) -> Repeats:
            lost = rng.random(repeats) < preempted
            noise = rng.normal(1.0, 0.005, repeats)
            return Repeats(seconds * slow * noise * np.where(lost, 9.0, 1.0), ~lost)

        return run

    return kernel


@pytest.mark.parametrize("slow", [0.9, 1.0, 1.8])
def test_another_clock_divides_out(slow: float) -> None:
    kernel = _machine(slow, 0.0)
    result = time_kernel(kernel(3e-4), kernel(2e-5), slow * 3e-4, 2e-5, Timing())
    assert np.median(result) == pytest.approx(3e-4, rel=0.01)


@pytest.mark.parametrize("preempted", [0.3, 0.7])
def test_a_core_taken_away_is_set_aside(preempted: float) -> None:
    kernel = _machine(1.0, preempted)
    result = time_kernel(kernel(3e-4), kernel(2e-5), 3e-4, 2e-5, Timing())
    assert np.median(result) == pytest.approx(3e-4, rel=0.02)
    assert result.max() < 4e-4


def test_a_machine_that_is_never_quiet_is_judged_by_its_fastest_repeats() -> None:
    kernel = _machine(1.0, 0.7)

    def never_quiet(run: Run) -> Run:
        def found(repeats: int, calls: int) -> Repeats:
            return Repeats(run(repeats, calls).seconds, np.zeros(repeats, np.bool_))

        return found

    timing = Timing(patience=0.05)
    result = time_kernel(never_quiet(kernel(3e-4)), never_quiet(kernel(2e-5)), 3e-4, 2e-5, timing)
    assert np.median(result) == pytest.approx(3e-4, rel=0.02)
