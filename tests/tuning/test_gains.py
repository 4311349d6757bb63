"""Tests the four latencies of a run and the gains over the rule schedule and the fallback."""

from __future__ import annotations

import math

import pytest

from tests.reports.outcomes import outcome, summary
from tilewright.targets.capabilities import Latency
from tilewright.tuning.gains import (
    FALLBACK,
    FIGURES,
    RULE,
    FourFigures,
    four_figures,
    network_figures,
)


def test_a_run_has_four_figures_in_one_order() -> None:
    (row,) = summary([outcome()])["workloads"]
    figures = four_figures(row)
    cycles = [getattr(figures, name).cycles for name in FIGURES]
    assert (FIGURES, cycles) == (("fallback", "rule", "tuned", "bound"), [9000, 2000, 1000, 500])
    assert (figures.gain_over(RULE), figures.gain_over(FALLBACK)) == (2.0, 9.0)


def test_a_gain_counts_seconds_where_there_are_no_cycles() -> None:
    figures = four_figures({"rule_seconds": 3.0, "tuned_seconds": 2.0, "tuned_cycles": None})
    assert (figures.gain_over(RULE), figures.gain_over(FALLBACK)) == (1.5, None)
    assert FourFigures(None, Latency(math.nan), Latency(1.0), None).gain_over(RULE) is None


def test_the_figures_of_a_network_are_those_of_its_total() -> None:
    result = summary([outcome(), outcome(o=32)])
    rows = result["workloads"]
    whole = network_figures([row["count"] for row in rows], [four_figures(row) for row in rows])
    total = four_figures(result["total"])
    for name in FIGURES:
        one, other = getattr(whole, name), getattr(total, name)
        assert (one.cycles, one.seconds) == (other.cycles, pytest.approx(other.seconds))
    assert whole.gain_over(RULE) == (2000 + 2 * 3000) / (1000 + 2 * 1500)


def test_what_is_not_known_of_a_layer_is_not_known_of_its_network() -> None:
    known = FourFigures(Latency(9.0, 9), Latency(2.0, 2), Latency(1.0, 1), None)
    part = FourFigures(None, Latency(2.0, 2), Latency(1.0, 1), None)
    assert network_figures([1, 1], [known, part]).fallback is None
    assert network_figures([1, 1], [known, part]).rule == Latency(4.0, 4)
