"""Tests the contract of every co-design method, and that the default method beats random search."""

import numpy as np
import pytest

from tests.draws import nightly_after
from tests.hardware_search.small import BUDGET, one_machine, searched, small_problem, told
from tilewright.core.errors import UnknownName
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.methods import make_method, method_names
from tilewright.hardware_search.pareto import front_of, hypervolume
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.hardware_search.screening import Screening
from tilewright.search.registry import OptionError

CHEAP = {"ours": {"screened": 12, "start": 6}}


@pytest.mark.parametrize("name", method_names())
def test_equal_seeds_measure_the_same(name):
    first, second = (searched(name, 24, **CHEAP.get(name, {})) for _ in range(2))
    assert told(first) == told(second)
    assert 0 < first.spent <= 24


@pytest.mark.parametrize("name", ["random", "nsga2", "tpe"])
def test_other_seeds_measure_something_else(name):
    assert told(searched(name, 12)) != told(searched(name, 12, seed=1))


@pytest.mark.parametrize(("name", "trials"), [("random", 4), ("tpe", 2), ("nsga2", 2)])
def test_few_machines_are_measured_until_trials_are_spent(name, trials):
    problem = one_machine()
    layers = len(problem.design(0).layers)
    budget = 2 * layers * trials + 1
    evaluator = BudgetedEvaluator(budget)
    with pytest.raises(BudgetSpent):
        make_method(name).search(problem, evaluator, 0)
    assert evaluator.spent == budget == len(set(told(evaluator)))
    first = BudgetedEvaluator(layers * trials)
    with pytest.raises(BudgetSpent):
        make_method(name).search(problem, first, 0)
    assert told(first) == told(evaluator)[: first.spent]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("random", {"trials": 1000}),
        ("tpe", {"trials": 3000, "tuner": "random"}),
        ("nsga2", {"trials": 3000, "tuner": "random"}),
    ],
)
def test_a_search_ends_when_nothing_is_left_to_try(name, options):
    problem, evaluator = one_machine(), BudgetedEvaluator(1_000_000)
    design = problem.design(0)
    make_method(name, options).search(problem, evaluator, 0)
    assert evaluator.spent == sum(
        design.target.space(layer.workload).size for layer in design.layers
    )


PRICED = {
    "ours": {"screened": 12, "start": 6},
    "autotvm": {"first": 16, "steps": 20},
    "chameleon": {"first": 16, "steps": 5},
    "dcoc": {"first": 16, "steps": 5},
}


@pytest.mark.slow(seconds=5)
@pytest.mark.parametrize("name", nightly_after(2, method_names(), 5))
def test_what_does_not_compile_costs_every_method_a_compile_and_no_measurement(name):
    large = CodesignProblem(read_networks(["alexnet"]), small_problem().hardware)
    evaluator = BudgetedEvaluator(40)
    with pytest.raises(BudgetSpent):
        make_method(name, PRICED.get(name)).search(large, evaluator, 0)
    assert evaluator.spent == len(evaluator.log) == 40
    assert all(point.found.status != "compile_error" for point in evaluator.log)
    assert evaluator.compiled > 40  # some failed or were not chosen


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", ["random", "autotvm"])
def test_a_layer_gets_other_schedules_until_one_compiles(name):
    large = CodesignProblem(read_networks(["alexnet"]), small_problem().hardware)
    evaluator = BudgetedEvaluator(60)
    with pytest.raises(BudgetSpent):
        make_method(name, PRICED.get(name, {"trials": 1})).search(large, evaluator, 0)
    assert front_of(evaluator)  # one random schedule per layer mostly gives none


@pytest.mark.slow(seconds=5)
def test_ours_finds_a_better_front_than_chance():
    fronts = [
        np.array([point.point for point in front_of(evaluator)]).reshape(-1, 2)
        for evaluator in (searched("ours", 80, screened=40, start=12), searched("random", 80))
    ]
    ours, chance = (hypervolume(front, (BUDGET, 1.0)) for front in fronts)
    assert ours > chance


def test_screening_climbs_to_what_no_neighbour_dominates():
    problem = small_problem()
    result, every = Screening(problem, 512, 0), Screening(problem, 512, 0)
    result.climb([0, 5], 1000)
    every.climb(range(len(problem.hardware.points)), 1000)
    assert len(result.rows) < len(every.rows)
    best = [hypervolume(item.points(), (BUDGET, 1.0)) for item in (result, every)]
    assert best[0] >= 0.98 * best[1]


def test_an_unknown_method_and_options_it_does_not_have():
    with pytest.raises(UnknownName, match="did you mean"):
        make_method("our")
    with pytest.raises(OptionError, match=r"option nothing of ours: .* its options are screened"):
        make_method("ours", {"nothing": 1})
    with pytest.raises(OptionError, match="halving"):
        make_method("ours", {"halving": 2})
