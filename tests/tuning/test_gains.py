"""Checks what a gain is over: the stock compiler, as far as anything is known of it."""

from __future__ import annotations

import pytest

from tests.reports.outcomes import outcome, summary
from tilewright.tuning.gains import BOTH, FALLBACK, PUBLISHED, RULE, before, before_all
from tilewright.tuning.intervals import ValidationStats
from tilewright.tuning.results import WorkloadRow


@pytest.fixture
def rows() -> tuple[WorkloadRow, WorkloadRow]:
    """Baseline 2,000 and fallback 9,000 of 1,000 tuned cycles; half as slow again, called twice."""
    one, two = summary([outcome(source="tophub"), outcome(o=32)])["workloads"]
    return one, two


def test_a_gain_is_over_what_the_stock_compiler_publishes_else_over_its_fallback(
    rows: tuple[WorkloadRow, WorkloadRow],
) -> None:
    published, other = rows
    assert (before(published).over, before(published).gain(published)) == (PUBLISHED, 2.0)
    assert (before(other).over, before(other).gain(other)) == (FALLBACK, 9.0)
    other["fallback_cycles"] = other["fallback_seconds"] = None
    assert (before(other).over, before(other).gain(other)) == (RULE, 2.0)


def test_of_a_network_each_layer_counts_with_what_is_known_of_it(
    rows: tuple[WorkloadRow, WorkloadRow],
) -> None:
    published, other = rows
    found = before_all(rows)
    assert (found.over, found.cycles) == (BOTH, 2000 + 2 * 13_500)
    assert found.seconds == pytest.approx(29_000e-8)
    total = summary([outcome(source="tophub"), outcome(o=32)])["total"]
    assert found.gain(total) == 29_000 / 4000
    assert before_all([published]).over == PUBLISHED
    assert before_all([other]).over == FALLBACK
    other["fallback_cycles"] = other["fallback_seconds"] = None
    assert (before_all(rows).over, before_all(rows).cycles) == (RULE, 2000 + 2 * 3000)
    other["baseline_cycles"] = other["baseline_seconds"] = other["baseline_source"] = None
    assert before_all(rows).gain(total) is None


def test_where_measuring_differs_a_gain_is_over_what_was_measured_in_turns(
    rows: tuple[WorkloadRow, WorkloadRow],
) -> None:
    """Its interval is of the baseline: the fallback was timed once, at the beginning."""
    _, other = rows
    other["validation"] = ValidationStats(6, 1.0, (1e-5,), (2e-5,)).row()
    assert (before(other).over, before(other).gain(other)) == (RULE, 2.0)
