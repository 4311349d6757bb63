"""Tests how the tuner `ml2tuner` chooses the configs that it compiles and measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.evaluation.tuner_conformance import WORKLOAD as TOY_WORKLOAD
from tilewright.evaluation.tuner_conformance import ToyTarget
from tilewright.flows.tuning import learn, propose_batch, tune, tune_round
from tilewright.models import make_explorer
from tilewright.search import GivenTask, LocalRunner, Session, TrialStore, make_task
from tilewright.search.acquisition import spread_out
from tilewright.targets import make_target
from tilewright.targets.workload import parse_workload

WORKLOAD = parse_workload("conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1")


RUN = LocalRunner()


def task_of(**options: object) -> GivenTask:
    target = make_target("vta-pynq", "extended")
    return make_task(target, WORKLOAD, make_explorer("ml2tuner", options), 0)


def after_rounds(task: GivenTask, rounds: int = 1, session: Session | None = None) -> Session:
    """Run some more rounds. Return the session with models that were trained on all of them."""
    session = session or Session.start(task)
    for _ in range(rounds):
        done = tune_round(RUN, task, session, 8)
        assert done is not None
        session = done.session
    return learn(RUN, task, session)


def test_the_first_round_compiles_many_configs_and_measures_four_distinct_programs() -> None:
    task = task_of(first=40)
    start = learn(RUN, task, Session.start(task))
    batch = propose_batch(RUN, task, start, 8)
    assert batch is not None
    assert len(batch.rows) == 4
    assert batch.unmeasured_count + len(batch.rows) == 40
    session = after_rounds(task)
    hidden = session.history.hidden.matrix
    assert len(np.unique(hidden, axis=0)) == 4
    assert not np.isnan(hidden).any()


def test_later_rounds_measure_the_batch_of_the_option_and_compile_alpha_per_trial_more() -> None:
    task = task_of(first=16, alpha=2, batch=3)
    batch = propose_batch(RUN, task, after_rounds(task), 8)
    assert batch is not None
    assert len(batch.rows) == 3
    assert batch.candidates == 9


def test_programs_that_were_not_measured_stay_candidates() -> None:
    task = task_of(first=64, alpha=1)
    space, session = task.problem.space, after_rounds(task)
    reused = 0
    for _ in range(6):
        before = space.ravel(session.history.unmeasured_configs(space)[0])
        session = after_rounds(task, session=session)
        new = space.ravel(session.history.configs[-2:])
        reused += int(np.isin(new, before).sum())
        left = space.ravel(session.history.unmeasured_configs(space)[0])
        assert not np.isin(left, space.ravel(session.history.configs)).any()
    assert reused > 0


def test_model_v_learns_from_compiles_beyond_the_trials() -> None:
    session = after_rounds(make_task(ToyTarget(), TOY_WORKLOAD, make_explorer("ml2tuner"), 0))
    assert (session.history.status != "compile_error").all()
    assert len(session.history.failed)
    assert "compiles" in session.models.models


def test_a_resumed_run_has_the_same_candidates(tmp_path: Path) -> None:
    options = {"batch": 4}
    whole = list(tune(ToyTarget(), TOY_WORKLOAD, make_explorer("ml2tuner", options), trials=16))
    for trials in (8, 16):
        with TrialStore(tmp_path / "trials.sqlite") as store:
            explorer = make_explorer("ml2tuner", options)
            rounds = list(tune(ToyTarget(), TOY_WORKLOAD, explorer, trials=trials, store=store))
    assert any(done.reused for done in rounds)
    for one, other in zip(rounds, whole, strict=True):
        np.testing.assert_array_equal(one.configs, other.configs)
        assert (one.lowered, one.failed_compiles) == (other.lowered, other.failed_compiles)


def test_the_first_configs_are_farther_from_each_other_than_random_ones() -> None:
    def first_points(spread: bool) -> np.ndarray:
        task = task_of(first=32, spread=spread)
        problem, start = task.problem, learn(RUN, task, Session.start(task))
        named = task.explorer.generate(problem, start.models, start.history, 4)
        assert len(np.unique(problem.space.ravel(named.configs))) == 32
        return np.log2(problem.space.values(named.configs) + 1.0)

    def nearest(points: np.ndarray) -> float:
        gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
        return float((gaps + 1e9 * np.eye(len(points))).min(axis=1).mean())

    chosen = first_points(spread=True)
    assert nearest(chosen) > 1.2 * nearest(first_points(spread=False))
    assert len(spread_out(chosen, 32, np.random.default_rng(0))) == 32


@pytest.mark.parametrize(("option", "absent"), [("use_a", "A"), ("use_v", "V")])
def test_a_model_can_be_left_out(option: str, absent: str) -> None:
    models = after_rounds(task_of(**{option: False}), 3).models.models
    assert absent not in models
    assert "P" in models
