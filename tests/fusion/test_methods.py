"""Checks that every fusion search finds the optimum of exhaustive search and keeps its budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.fusion.search_methods import METHODS, Programming, TooMany, search
from tests.fusion.nets import evaluator
from tilewright.fusion.evaluator import Evaluator
from tilewright.fusion.label_search import FusionBudgetSpent, Objective, flip_labels
from tilewright.fusion.problem import Labelling

SEARCHING = [name for name in METHODS if name not in ("random", "exhaustive")]


@pytest.fixture(scope="module")
def timed() -> Evaluator:
    return evaluator()


def costs_of(timed: Evaluator) -> Objective:
    own = timed.problem

    def costs(several: Sequence[Labelling]) -> list[float]:
        return [float(timed(item).cycles) for item in several]

    return Objective(costs, 1 << len(own), own.segments, own.groups)


@pytest.fixture(scope="module")
def truth(timed: Evaluator) -> float:
    objective = costs_of(timed)
    search("exhaustive", objective, [], np.random.default_rng(0))
    assert len(objective.asked) == 1 << len(timed.problem)
    return objective.least


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("name", SEARCHING)
def test_it_finds_the_least_of_all_labellings(name: str, timed: Evaluator, truth: float) -> None:
    objective = costs_of(timed)
    search(name, objective, [timed.problem.none], np.random.default_rng(1))
    assert objective.least == truth


def trap(several: Sequence[Labelling]) -> list[float]:
    """Cost of labellings in which three siblings pay off only as a group of three.

    Of the other two decisions, one costs and the other one saves.
    """
    return [
        100.0 - 10 * (sum(own[:3]) == 3) + 2 * (0 < sum(own[:3]) < 3) + 3 * own[3] - own[4]
        for own in several
    ]


@pytest.mark.parametrize("name", SEARCHING)
def test_a_group_that_pays_only_as_a_whole_is_found(name: str) -> None:
    objective = Objective(trap, 32, ((0, 1, 2), (3,), (4,)), ((0, 1, 2),))
    search(name, objective, [(False,) * 5], np.random.default_rng(2))
    assert objective.best == (True, True, True, False, True)


def test_programming_says_what_adding_up_promises() -> None:
    objective = Objective(trap, 32, ((0, 1, 2), (3,), (4,)), ((0, 1, 2),))
    method = Programming()
    method.search(objective, [(False,) * 5], np.random.default_rng(0))
    assert method.expected == objective.least == 89.0

    def together(several: Sequence[Labelling]) -> list[float]:
        return [10.0 - sum(own) + 1.5 * all(own) for own in several]

    both = Objective(together, 4, ((0,), (1,)))
    method.search(both, [(False, False)], np.random.default_rng(0))
    assert method.expected == 8.0
    assert method.found == (True, True)
    assert both.asked[True, True] == 9.5


@pytest.mark.parametrize("name", METHODS)
def test_no_more_is_asked_than_may_be(name: str) -> None:
    asked = list[Labelling]()

    def costs(several: Sequence[Labelling]) -> list[float]:
        asked.extend(several)
        return [float(hash(own) % 97) for own in several]

    objective = Objective(costs, 40, tuple((k,) for k in range(12)))
    search(name, objective, [(True,) * 12], np.random.default_rng(3))
    assert len(asked) == len(set(asked)) == len(objective.asked) <= 40
    again = Objective(costs, 40, tuple((k,) for k in range(12)))
    before = list(asked)
    asked.clear()
    search(name, again, [(True,) * 12], np.random.default_rng(3))
    assert asked == before  # the generator is the only source of randomness


def test_what_cannot_be_gone_through_is_refused() -> None:
    objective = Objective(trap, 10, tuple((k,) for k in range(21)))
    with pytest.raises(
        TooMany, match=r"21 decisions have 2\.1e\+06 labellings; enumerate at most 20"
    ):
        search("exhaustive", objective, [], np.random.default_rng(0))


def test_a_spent_budget_still_answers_what_may_be_asked() -> None:
    objective = Objective(trap, 1, ((0, 1, 2), (3,), (4,)))
    with pytest.raises(FusionBudgetSpent):
        objective([(False,) * 5, (True,) * 5])
    assert objective.best == (False,) * 5


def test_a_move_fuses_a_whole_group_or_none_of_it() -> None:
    assert flip_labels((True, False, False), (0, 1)) == (True, True, False)
    assert flip_labels((True, True, False), (0, 1)) == (False, False, False)
    assert flip_labels((True, True, False), (2,)) == (True, True, True)
