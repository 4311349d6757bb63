"""Checks that the evaluator counts each measurement once and resumes from recorded measurements."""

import numpy as np
import pytest

from tests.hardware_search.small import searched, small_problem, told
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.search import TrialStore


def _layer():
    design = small_problem().design(3)
    workload = design.layers[0].workload
    return design, workload, design.target.space(workload)


def test_a_config_is_measured_once_and_answered_again():
    design, workload, space = _layer()
    evaluator = BudgetedEvaluator(10)
    configs = space.unravel(np.array([5, 6, 5, 7]))
    first = evaluator.evaluate(design, workload, configs)
    again = evaluator.evaluate(design, workload, configs[:2])
    assert (evaluator.spent, evaluator.compiled) == (3, 3)
    assert first.cycles[0] == first.cycles[2] == again.cycles[0]
    plain = design.target.measure(design.target.lower(workload, configs))
    assert (plain.cycles == first.cycles).all()


def test_measurements_end_when_they_are_spent():
    design, workload, space = _layer()
    evaluator = BudgetedEvaluator(3)
    with pytest.raises(BudgetSpent):
        evaluator.evaluate(design, workload, space.unravel(np.arange(8)))
    assert evaluator.spent == len(evaluator.log) == 3
    assert [point.flat for point in evaluator.log] == [0, 1, 2]


def test_compiled_programs_are_what_is_measured():
    design, workload, space = _layer()
    evaluator = BudgetedEvaluator(10)
    lowered = evaluator.lower(design, workload, space.unravel(np.arange(6)))
    evaluator.measure(design, lowered.rows(np.array([1, 4])))
    assert (evaluator.spent, evaluator.compiled) == (2, 6)


@pytest.mark.slow(seconds=1.5)
def test_a_search_that_was_killed_is_gone_on_with(tmp_path):
    whole = told(searched("ours", 30, screened=8, start=8))
    assert len(whole) == 30
    with TrialStore(tmp_path / "trials.sqlite") as store:
        searched("ours", 13, evaluator=BudgetedEvaluator(13, store, "run"), screened=8, start=8)
    with TrialStore(tmp_path / "trials.sqlite") as store:
        before = len(store.frame())
        resumed = searched(
            "ours", 30, evaluator=BudgetedEvaluator(30, store, "run"), screened=8, start=8
        )
        after = store.frame()
    assert told(resumed) == whole
    assert len(after) == 30
    assert before < len(after)


def test_trials_of_another_run_are_measured_anew(tmp_path):
    with TrialStore(tmp_path / "trials.sqlite") as store:
        first = searched("random", 10, evaluator=BudgetedEvaluator(10, store, "one"))
        second = searched("random", 10, evaluator=BudgetedEvaluator(10, store, "two"))
        assert len(store.frame()) == 20
    assert told(first) == told(second)
