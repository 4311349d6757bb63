"""Tests the Pareto front of designs and its hypervolume."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hardware_search.small import searched, small_problem, told
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.pareto import (
    added_hypervolume,
    front_of,
    hypervolume,
    judge_designs,
    pareto_rows,
    reference_of,
)
from tilewright.hardware_search.problem import least_seconds
from tilewright.hardware_search.progress import ProgressCount
from tilewright.targets.capabilities import picojoules_of

POINTS = st.lists(
    st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.sampled_from([1.0, 2.0, 3.0, 5.0])),
    min_size=1, max_size=12,
)  # fmt: skip


@given(POINTS)
def test_undominated_are_those_that_no_other_beats(points):
    table = np.array(points)
    rows = pareto_rows(table)
    kept = {points[row] for row in rows}
    for point in points:
        beaten = any(o != point and o[0] <= point[0] and o[1] <= point[1] for o in points)
        assert (point in kept) != beaten
    assert len(kept) == len(rows)


@given(POINTS)
def test_hypervolume_is_the_area_that_is_dominated(points):
    grid = np.array([(x, y) for x in np.arange(0.05, 1, 0.1) for y in np.arange(0.05, 2, 0.1)])
    table = np.array(points)
    dominated = [((table[:, 0] <= x + 1e-9) & (np.log(table[:, 1]) <= y)).any() for x, y in grid]
    assert hypervolume(table, (1.0, np.exp(2.0))) == pytest.approx(sum(dominated) * 0.01, abs=0.1)


@given(st.lists(st.tuples(st.floats(0.1, 1.5), st.floats(0.1, 9)), max_size=8), POINTS)
def test_a_point_adds_what_the_hypervolume_with_it_has_more(points, new):
    front, reference = np.array(points).reshape(-1, 2), (0.8, 4.0)
    added = added_hypervolume(front, np.array(new), reference)
    volume = hypervolume(front, reference)
    for gain, point in zip(added, new, strict=True):
        whole = hypervolume(np.concatenate([front, [point]]), reference)
        assert gain == pytest.approx(whole - volume, abs=1e-12)


def spent(judged_design):
    """Return the energy in joules of one inference of each network, measured layer by layer."""
    total = 0.0
    design = judged_design.design
    for layer, flat in zip(design.layers, judged_design.flats, strict=True):
        config = design.target.space(layer.workload).unravel(np.array([flat]))
        measured = design.target.measure(design.target.lower(layer.workload, config))
        total += 1e-12 * layer.calls * picojoules_of(design.target, measured)[0]
    return total


def test_a_front_by_energy_or_its_product_is_of_what_was_measured():
    evaluator = searched("random", 400, trials=8)
    fast = {design.design.row: design for design in judge_designs(evaluator)}
    thrifty = {design.design.row: design for design in judge_designs(evaluator, "energy")}
    assert fast.keys() == thrifty.keys()
    assert all(item.joules == pytest.approx(spent(item)) for item in thrifty.values())
    assert all(thrifty[row].joules <= spent(fast[row]) * (1 + 1e-9) for row in fast)
    assert any(thrifty[row].joules < 0.999 * spent(fast[row]) for row in fast)
    product = front_of(evaluator, "edp")
    costs = [item.joules * item.latency for item in product]
    assert costs == sorted(costs, reverse=True)
    assert min(item.joules for item in thrifty.values()) == pytest.approx(
        front_of(evaluator, "energy")[-1].joules
    )


@pytest.mark.slow(seconds=3)
def test_the_objective_drives_the_search_and_not_its_end_alone():
    """A search for low energy measures other schedules than a search for low latency.

    With the same number of measurements it finds schedules that consume less energy.
    """
    chosen = searched("ours", 48)
    driven = searched("ours", 48, evaluator=BudgetedEvaluator(48, objective="energy"))
    assert told(driven) != told(chosen)
    least = [
        min(spent(design) for design in judge_designs(result, "energy"))
        for result in (driven, chosen)
    ]
    assert least[0] < 0.999 * least[1]
    reference = reference_of(small_problem(), "energy")
    points = [
        np.array([(point.design.area, spent(point)) for point in front_of(result, "energy")])
        for result in (driven, chosen)
    ]
    assert hypervolume(points[0], reference) > hypervolume(points[1], reference)


def test_progress_is_of_the_objective():
    problem = small_problem()
    count = ProgressCount(problem, "energy")
    evaluator = BudgetedEvaluator(400, objective="energy", listen=count.add)
    searched("random", 400, evaluator=evaluator, trials=8)
    front = front_of(evaluator, "energy")
    points = np.array([(point.design.area, spent(point)) for point in front])
    assert count._now.front == len(front)
    assert count._now.hypervolume == pytest.approx(hypervolume(points, count.reference))
    assert count._now.latency == min(design.latency for design in judge_designs(evaluator))


def test_a_point_outside_of_the_reference_counts_nothing():
    assert hypervolume(np.array([(2.0, 0.5), (0.5, 9.0)]), (1.0, 8.0)) == 0


def test_a_front_is_of_machines_that_run_every_layer():
    evaluator = searched("random", 200, trials=8)
    front = front_of(evaluator)
    assert front
    assert len(judge_designs(evaluator)) < len(evaluator.designs())
    for point in front:
        assert point.latency >= least_seconds(point.design)
        counts = np.array([layer.counts for layer in point.design.layers])
        assert point.seconds == pytest.approx(point.layers @ counts + point.design.cpu_seconds)
    areas = [item.design.area for item in front]
    assert areas == sorted(areas)
    assert small_problem().hardware.areas.max() >= areas[-1]
