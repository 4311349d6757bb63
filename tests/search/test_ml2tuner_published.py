"""Tests the published variant of ML²Tuner, such as the random share of its batches."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.flows.tuning import learn, tune, tune_round, tune_session
from tilewright.models import ModelLibrary, make_explorer
from tilewright.search import GivenTask, LocalRunner, make_task, problem_of
from tilewright.search.candidates import list_untried
from tilewright.search.registry import registered_tuners
from tilewright.search.rounds import Round
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")
BEST = 0.1


def share_outside_the_best(tuner: str, explore: float, rounds: int = 8, n: int = 8) -> float:
    """Return the fraction of measured configs outside Model P's best tenth of untried configs."""
    target = make_target("vta-pynq", "unchecked")
    problem = problem_of(target, WORKLOAD, 0)
    run = LocalRunner()
    task = GivenTask(target, make_explorer(tuner, {"explore": explore}), problem)
    session = tune_session(task, 32, n)
    outside, measured = 0, 0
    for _ in range(rounds):
        session = learn(run, task, session)
        model = session.models.models["P"]
        left = list_untried(problem.space, session.history.tried_indices(problem.space))
        predictions = model.predict(
            ModelLibrary().tree_features(problem, problem.space.unravel(left))
        )
        before = len(session.history)
        done = tune_round(run, task, session, n)
        assert done is not None
        session = done.session
        chosen = problem.space.ravel(session.history.configs[before:])
        limit = np.quantile(predictions, BEST)
        outside += int((predictions[np.searchsorted(left, chosen)] > limit).sum())
        measured += len(chosen)
    return outside / measured


@pytest.mark.parametrize("tuner", ["ml2tuner-published", "p+v", "p+a", "p"])
def test_half_of_the_batch_is_random_where_half_is_asked_for(tuner: str) -> None:
    # Nine of ten random configs are outside the best tenth. Half of 64 slots are random.
    assert 0.3 < share_outside_the_best(tuner, explore=0.5) < 0.6


def test_nothing_is_random_by_default_as_published() -> None:
    assert registered_tuners()["ml2tuner-published"].options().model_dump()["explore"] == 0
    assert share_outside_the_best("p", explore=0) == 0


def rounds(options: dict[str, object], count: int) -> list[Round]:
    target = make_target("vta-pynq", "unchecked")
    explorer = make_explorer("ml2tuner-published", options)
    return list(tune(target, WORKLOAD, explorer, trials=8 * count, batch=8))


def test_v_vetoes_the_second_batch_where_it_learns_from_the_first() -> None:
    assert not rounds({}, 2)[1].vetoed
    early = rounds({"first_v": 8}, 3)
    assert early[1].vetoed
    assert not early[1].lowered  # there is no Model A yet
    assert early[2].lowered


def test_gaussian_processes_are_models_p_and_a_and_trees_are_v() -> None:
    target = make_target("vta-pynq", "unchecked")
    explorer = make_explorer("ml2tuner-published", {"learner": "gaussian"})
    task = make_task(target, WORKLOAD, explorer, 0)
    session = learn(LocalRunner(), task, tune_session(task, 32, 8))
    models = session.models.models
    assert {role: model.kind for role, model in models.items()} == {
        "P": "gaussian", "A": "gaussian", "V": "xgboost",
    }  # fmt: skip
    assert set(models["P"].columns) < set(models["A"].columns)
    named = explorer.generate(task.problem, session.models, session.history, 8)
    assert (np.diff(named.scores["P"]) >= 0).all()
