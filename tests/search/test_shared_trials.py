"""Tests tuners that learn from workloads tuned earlier in the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.trial_tables import tables
from tests.tune_bare import tune_bare
from tilewright.evaluation.tuner_conformance import WORKLOAD as TOY_WORKLOAD
from tilewright.evaluation.tuner_conformance import ToyTarget
from tilewright.flows.tuning import learn, tune_session
from tilewright.models import load_state, make_explorer, save_state
from tilewright.search import ExplorerState, GivenTask, LocalRunner, Session, make_task
from tilewright.search.round_steps import generate_candidates
from tilewright.search.shared_trials import trials_in
from tilewright.search.tuners.beliefs import Beliefs
from tilewright.search.tuners.ml2tuner import ML2Tuner
from tilewright.targets import make_target
from tilewright.targets.workload import Workload, parse_workload

RUN = LocalRunner()
PYNQ = make_target("vta-pynq", "extended")
TEACHER = parse_workload("conv2d:n=1,c=64,h=56,w=56,o=128,k=1,s=2,p=0")
PUPIL = parse_workload("conv2d:n=1,c=256,h=14,w=14,o=512,k=1,s=2,p=0")


def task_of(workload: Workload, estimates: bool = False, seed: int = 0) -> GivenTask:
    return make_task(PYNQ, workload, make_explorer("ml2tuner", {"estimates": estimates}), seed)


def shared_by(task: GivenTask, trials: int = 12) -> ExplorerState:
    history = tune_session(task, trials, 8).history
    return task.explorer.share(task.problem, ExplorerState(), history)


@pytest.mark.parametrize("estimates", [False, True])
def test_shared_trials_come_back_from_a_saved_state(estimates: bool, tmp_path: Path) -> None:
    task = task_of(TEACHER, estimates)
    history = tune_session(task, 8, 8).history
    state = task.explorer.share(task.problem, ExplorerState(), history)
    save_state(state, tmp_path)
    (known,), (trials,) = trials_in(state), trials_in(load_state(tmp_path))
    np.testing.assert_array_equal(trials.log_latency, history.log_latency)
    np.testing.assert_array_equal(trials.hidden.matrix, history.hidden.matrix)
    assert trials.hidden.columns == history.hidden.columns
    assert trials.visible.columns == known.visible.columns
    assert len(trials.visible) == len(trials.compiled) > len(history)
    assert np.isfinite(trials.estimate).all() == estimates


def test_models_v_and_a_exist_before_the_first_trial_of_a_later_workload() -> None:
    state = shared_by(task_of(TEACHER))
    task = task_of(PUPIL)
    session = learn(RUN, task, Session.start(task).with_shared(state))
    assert {"shared_A", "shared_draft", "V"} <= set(session.models.models)
    assert "P" not in session.models.models


@pytest.mark.parametrize("seed", range(2))
def test_a_shared_model_ranks_programs_of_a_workload_without_trials(seed: int) -> None:
    task = task_of(PUPIL, seed=seed)
    session = Session.start(task).with_shared(shared_by(task_of(TEACHER, seed=seed)))
    session = learn(RUN, task, session)
    lowered = PYNQ.lower(PUPIL, generate_candidates(task, session, 8).configs)
    measured = PYNQ.measure(lowered)
    rows = np.flatnonzero(measured.valid)
    explorer = task.explorer
    assert isinstance(explorer, ML2Tuner)
    beliefs = Beliefs(explorer.options, explorer.learners, task.problem, session.models)
    predicted = beliefs.shared_mean(lowered.hidden.rows(rows), None)
    assert len(rows) > 50
    assert spearmanr(predicted, measured.cycles[rows]).statistic > 0.7


def test_a_tuner_with_the_option_off_shares_nothing() -> None:
    explorer = make_explorer("ml2tuner", {"share": False})
    assert not explorer.shares
    assert make_explorer("ml2tuner").shares
    assert not make_explorer("ml2tuner-published").shares


def test_what_others_measure_counts_as_chosen() -> None:
    task = make_task(ToyTarget(), TOY_WORKLOAD, make_explorer("ml2tuner"), 0)
    session = learn(RUN, task, tune_session(task, 8, 8))
    alone = task.explorer.generate(task.problem, session.models, session.history, 2)
    busy = replace(session.history, pending=alone.configs[:1])
    beside = task.explorer.generate(task.problem, session.models, busy, 2)
    flat = task.problem.space.ravel
    assert flat(alone.configs[:1])[0] not in flat(beside.configs)
    np.testing.assert_array_equal(beside.configs[:2], alone.configs[1:3])


NETWORK = {"model": "digits_cnn", "tuner": "ml2tuner", "trials": 6, "batch": 8, "seed": 3}


@pytest.mark.slow(seconds=5)
def test_workloads_at_a_time_and_resumed_runs_give_equal_trials(tmp_path: Path) -> None:
    tune_bare(**NETWORK, out=str(tmp_path / "one"))
    tune_bare(**NETWORK, out=str(tmp_path / "three"), jobs=3)
    part = {**NETWORK, "layers": ["conv1", "conv2"]}
    tune_bare(**part, out=str(tmp_path / "resumed"))
    tune_bare(**NETWORK, out=str(tmp_path / "resumed"))
    whole = tables(tmp_path / "one")
    assert tables(tmp_path / "three") == whole
    resumed = tables(tmp_path / "resumed")
    assert resumed["trials"] == whole["trials"]
