"""The interval rule, and what the reference kernel takes out of a measurement."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import quantile_test

from targets.cpu.timing import Repeats, Timing, median_interval, time_kernel


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


class Machine:
    """Slows everything down by a factor that changes, and sometimes takes a core away."""

    def __init__(self, preempted: float = 0.0) -> None:
        self.rng, self.preempted, self.slow, self.calls = np.random.default_rng(0), preempted, 1.0, 0

    def kernel(self, seconds: float):  # type: ignore[no-untyped-def]
        def run(repeats: int, calls: int) -> Repeats:
            self.calls += 1
            if self.calls % 3 == 0:
                self.slow = self.rng.uniform(1.0, 3.0) if self.calls > 6 else 2.0
            lost = self.rng.random(repeats) < self.preempted
            noise = self.rng.normal(1.0, 0.005, repeats)
            return Repeats(seconds * self.slow * noise * np.where(lost, 9.0, 1.0), ~lost)

        return run


def test_a_lower_clock_divides_out() -> None:
    machine = Machine()
    machine.slow = 2.5

    def steady(seconds: float):  # type: ignore[no-untyped-def]
        def run(repeats: int, calls: int) -> Repeats:
            noise = machine.rng.normal(1.0, 0.005, repeats)
            return Repeats(seconds * machine.slow * noise, np.ones(repeats, np.bool_))

        return run

    found = time_kernel(steady(3e-4), steady(2e-5), 7e-4, 2e-5, Timing())
    assert np.median(found) == pytest.approx(3e-4, rel=0.01)


@pytest.mark.parametrize("preempted", [0.3, 0.7])
def test_a_core_taken_away_is_set_aside(preempted: float) -> None:
    machine = Machine(preempted)

    def steady(seconds: float):  # type: ignore[no-untyped-def]
        def run(repeats: int, calls: int) -> Repeats:
            lost = machine.rng.random(repeats) < preempted
            noise = machine.rng.normal(1.0, 0.005, repeats)
            return Repeats(seconds * noise * np.where(lost, 9.0, 1.0), ~lost)

        return run

    found = time_kernel(steady(3e-4), steady(2e-5), 3e-4, 2e-5, Timing())
    assert np.median(found) == pytest.approx(3e-4, rel=0.02)
    assert found.max() < 4e-4
