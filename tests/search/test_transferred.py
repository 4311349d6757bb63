"""Tests transferred models: their weight follows from how well they predicted this run's trials."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilewright.flows.tuning import learn, propose_batch, tune_round
from tilewright.models import make_explorer
from tilewright.search import GivenTask, LocalRunner, Session
from tilewright.search.prior import prior_of, weight_of
from tilewright.search.problem import Belief
from tilewright.search.task import make_task
from tilewright.search.tuners.beliefs import Beliefs
from tilewright.search.tuners.ml2tuner import ML2Tuner
from tilewright.targets.base import Configs
from tilewright.targets.features import Features
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload, parse_workload

PYNQ = VtaTarget(VtaSpec.load("vta-pynq"))
LAYER = parse_workload("conv2d:n=1,c=64,h=14,w=14,o=64,k=3,s=1,p=1")


def believed(log_latency: NDArray[np.float64], spread: float = 0.3) -> Belief:
    rows = len(log_latency)
    return Belief(log_latency, np.full(rows, spread), np.ones(rows))


@given(st.integers(2, 40), st.integers(0, 1000), st.floats(-20, 20))
def test_a_model_that_is_right_up_to_a_constant_is_believed(n: int, seed: int, c: float) -> None:
    said = np.random.default_rng(seed).normal(size=n)
    assert weight_of(believed(said), said + c) == pytest.approx(1.0)


@given(st.integers(16, 40), st.integers(0, 1000))
def test_one_that_says_the_opposite_is_not(n: int, seed: int) -> None:
    said = np.random.default_rng(seed).normal(size=n)
    assert weight_of(believed(said), -said) == 0.0


def test_it_is_believed_less_the_more_trials_contradict_it() -> None:
    said = np.random.default_rng(3).normal(size=256)
    told = [weight_of(believed(said[:n], 1.0), 0.2 * said[:n]) for n in (1, 4, 16, 256)]
    assert told[0] == 1.0  # one trial cannot contradict the model
    assert told[1] > told[2] > told[3]
    assert told[3] == pytest.approx(0.2, abs=0.02)


@cache
def _truth(workload: Workload) -> dict[int, float]:
    """Return log2 of the cycles of all valid configs, by flat index."""
    lowered, measured = PYNQ.enumerate(workload)
    flat = PYNQ.space(workload).ravel(lowered.configs)
    valid = measured.valid
    return dict(zip(flat[valid].tolist(), np.log2(measured.latency[valid]).tolist(), strict=True))


def _regrets(sign: float, seed: int) -> list[float]:
    """Return the regret after every batch of 8.

    The transferred model knows the true latencies, times `sign`.
    """
    truth = _truth(LAYER)
    setting = make_task(PYNQ, LAYER, make_explorer("default-blind"), seed)
    space = setting.problem.space

    def ask(configs: Configs, hidden: Features | None) -> Belief:
        known = [truth.get(int(flat), np.nan) for flat in space.ravel(configs)]
        chance = np.isfinite(known).astype(np.float64)
        return replace(believed(sign * np.nan_to_num(known, nan=16.0)), chance=chance)

    problem = replace(setting.problem, transferred=ask)
    task, best = replace(setting, problem=problem), []
    session = Session.start(task)
    for _ in range(6):
        session = unwrap(tune_round(LocalRunner(), task, session, 8)).session
        assert session.history.best is not None
        best.append(float(session.history.log_latency[session.history.best]))
    optimum = min(truth.values())
    return [2 ** (b - optimum) - 1 for b in best]


@pytest.mark.nightly(seconds=5)
def test_a_right_one_is_used_at_once_and_a_wrong_one_is_got_over() -> None:
    right, wrong = _regrets(1.0, 0), _regrets(-1.0, 0)
    assert right[0] < 0.01
    assert wrong[0] > right[0]
    assert wrong[-1] < 0.05


def test_estimates_are_taken_before_it_and_it_is_a_column_beside_them() -> None:
    problem = make_task(PYNQ, LAYER, make_explorer("default"), 0).problem
    configs = problem.space.unravel(np.arange(5))
    said = believed(np.arange(5, dtype=np.float64))
    prior, alone = prior_of(problem, configs, said), prior_of(problem, configs)
    assert prior is not None
    assert alone is not None
    np.testing.assert_array_equal(prior.log_latency, alone.log_latency)
    assert prior.features.names == (*alone.features.names, "transferred")
    blind = prior_of(problem, configs, said, estimates=False, weight=0.5)
    assert blind is not None
    np.testing.assert_array_equal(blind.log_latency, 0.5 * np.arange(5))


LARGE = parse_workload("conv2d:n=1,c=240,h=14,w=14,o=80,k=1")


def _asked_about(sign: float) -> tuple[GivenTask, list[int]]:
    """Return a task with a large space and a transferred model, and a list of the model's queries.

    The model prefers even or odd knobs, depending on `sign`. The list has the number of configs of
    each query before compilation.
    """
    setting = make_task(PYNQ, LARGE, make_explorer("default-blind"), 0)
    asked: list[int] = []

    def ask(configs: Configs, hidden: Features | None) -> Belief:
        if hidden is None:
            asked.append(len(configs))
        return believed(sign * configs.sum(axis=1).astype(np.float64))

    problem = replace(setting.problem, transferred=ask)
    return replace(setting, problem=problem), asked


def test_of_a_large_space_it_is_asked_about_a_part_once() -> None:
    task, asked = _asked_about(1.0)
    session = learn(LocalRunner(), task, Session.start(task))
    space = PYNQ.space(LARGE)
    assert space.size > 50_000
    propose_batch(LocalRunner(), task, session, 4)
    assert 3500 < asked[0] <= 4096  # no config twice
    screened = space.unravel(_beliefs(task, session).screened_indices)
    assert len(screened) == 2048
    assert (
        screened.sum(axis=1).mean() < 0.9 * space.unravel(np.arange(space.size)).sum(axis=1).mean()
    )
    before = len(asked)
    propose_batch(LocalRunner(), task, session, 4)
    assert sum(asked[before:]) < 512


def test_a_round_asks_it_three_times_at_most_about_what_is_not_compiled() -> None:
    task, asked = _asked_about(1.0)
    session = unwrap(tune_round(LocalRunner(), task, Session.start(task), 4)).session
    before = len(asked)
    tune_round(LocalRunner(), task, session, 4)
    questions = asked[before:]  # trials and failures, new draws, compiled programs
    assert 1 <= len(questions) <= 3
    near = 8 * sum(PYNQ.space(LARGE).cardinalities)
    assert sum(questions) < 8 + 4096 + near + 96, "more than of a model that is not believed"


def test_of_a_wrong_one_is_not_kept_what_it_chose() -> None:
    task, _ = _asked_about(1.0)
    session = learn(LocalRunner(), task, Session.start(task))
    state = session.models
    for weight, kept in ((0.9, 2048), (0.1, 0)):
        arrays = {**state.arrays, "weights": np.array([weight, weight])}
        assert (
            len(
                _beliefs(
                    task, replace(session, models=replace(state, arrays=arrays))
                ).screened_indices
            )
            == kept
        )


def test_what_is_remembered_is_what_it_says() -> None:
    task, _ = _asked_about(-1.0)
    about = _beliefs(task, learn(LocalRunner(), task, Session.start(task)))
    for flat in (about.screened_indices[:50], np.arange(50)):
        configs = PYNQ.space(LARGE).unravel(flat)
        prior = about.prior(configs)
        assert prior is not None
        np.testing.assert_array_equal(prior.log_latency, -configs.sum(axis=1))


def _beliefs(task: GivenTask, session: Session) -> Beliefs:
    explorer = task.explorer
    assert isinstance(explorer, ML2Tuner)
    return Beliefs(explorer.options, explorer.learners, task.problem, session.models)


def unwrap(session: Session | None) -> Session:
    assert session is not None
    return session
