"""Tests the tuning of single layers on one machine within a measurement budget."""

import pytest

from tests.hardware_search.small import small_problem
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.layer_tuning import LayerTuning
from tilewright.targets.base import Configs, Lowered
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload


@pytest.mark.parametrize("tuner", ["default", "default-blind", "random"])
def test_a_layer_gets_as_many_trials_as_are_asked_for(tuner: str) -> None:
    evaluator = BudgetedEvaluator(100)
    tuning = LayerTuning(small_problem().design(3), evaluator, 0, tuner)
    best = tuning.advance(0, 7)
    assert evaluator.spent == 7
    assert (tuning.advance(0, 5) <= best).all()
    assert evaluator.spent == 12


def test_every_compile_of_a_tuner_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    lower = VtaTarget.lower

    def counting(target: VtaTarget, workload: Workload, configs: Configs) -> Lowered:
        counts.append(len(configs))
        return lower(target, workload, configs)

    monkeypatch.setattr(VtaTarget, "lower", counting)
    evaluator = BudgetedEvaluator(100)
    LayerTuning(small_problem().design(3), evaluator, 0).advance(0, 24)
    assert evaluator.compiled == sum(counts) > evaluator.spent == 24
