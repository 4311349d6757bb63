"""Tests how tuners use repeated measurements that differ from each other."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from tests.noisy import REPEATS, NoisyTarget
from tilewright.flows.tuning import learn, tune_session
from tilewright.models import make_explorer
from tilewright.search import (
    ExplorerState,
    GivenTask,
    History,
    LocalRunner,
    Session,
    make_task,
)
from tilewright.search.cost_model_protocols import Surrogate
from tilewright.search.history import figure_variance, noise_of
from tilewright.targets.base import Ragged
from tilewright.targets.workload import parse_workload
from tilewright.tasks.codecs import decode_history, encode_history

WORK = parse_workload("dense:n=1,c=64,o=64")


def tuned(tuner: str, target: NoisyTarget, trials: int = 32) -> Session:
    session = tune_session(task_of(tuner, target), trials, 8)
    assert len(session.history) == trials
    return session


def task_of(tuner: str, target: NoisyTarget) -> GivenTask:
    return make_task(target, WORK, make_explorer(tuner), 0)


def test_the_variance_of_a_median_is_estimated_from_its_repeats() -> None:
    """The estimates from 5 repeats are compared with the variance of many drawn medians."""
    rng = np.random.default_rng(0)
    for spread in (0.02, 0.3):
        repeats = np.exp(rng.normal(0.0, spread, (2000, 5)))
        variance = figure_variance(Ragged.from_rows(list(repeats)))
        assert variance is not None
        truth = np.log2(np.median(repeats, axis=1)).var()
        assert np.mean(variance) == pytest.approx(truth, rel=0.15)


def test_a_restless_trial_is_told_from_a_quiet_one_and_few_repeats_borrow() -> None:
    rng = np.random.default_rng(1)
    rows = [np.exp(rng.normal(0.0, 0.01, 7)) for _ in range(20)]
    rows += [np.exp(rng.normal(0.0, 1.0, 7)), np.ones(1), np.empty(0), np.array([np.nan, 1.0])]
    variance = figure_variance(Ragged.from_rows(rows))
    assert variance is not None
    assert variance[20] > 100 * np.median(variance[:20])
    assert (variance[21:] > 0).all()
    assert np.isfinite(variance).all()
    assert variance[22] == variance[21]  # without two repeats, the variance of the others is used


def test_without_repeats_nothing_is_known() -> None:
    assert figure_variance(Ragged.from_rows([np.ones(1), np.empty(0)])) is None
    session, problem = tuned("random", NoisyTarget(), 8), task_of("random", NoisyTarget()).problem
    assert noise_of(replace(problem, deterministic=True), session.history) is None


def test_a_history_has_every_repeat_and_is_kept_with_them() -> None:
    history = tuned("random", NoisyTarget(), 24).history
    assert history.repeats is not None
    counts = np.diff(history.repeats.offsets)
    assert np.array_equal(counts, np.where(history.valid, REPEATS, 0))
    again = decode_history(encode_history(history)).repeats
    assert again is not None
    assert np.array_equal(again.values, history.repeats.values)
    assert np.array_equal(again.offsets, history.repeats.offsets)
    assert decode_history(encode_history(replace(history, repeats=None))).repeats is None


def test_a_history_of_a_target_that_repeats_nothing_is_as_it_was() -> None:
    class Once(NoisyTarget):
        def measure(self, lowered):  # type: ignore[no-untyped-def]
            return replace(super().measure(lowered), repeats=None)

    history = tuned("random", Once(), 8).history
    assert history.repeats is None
    assert b"repeats" not in encode_history(history)


@pytest.mark.parametrize("tuner", ["default", "default-blind", "baco"])
def test_the_surrogate_is_told_and_the_goal_is_what_it_believes(
    tuner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The incumbent is a prediction of the surrogate, higher than the luckiest measured trial."""
    from tilewright.models.gaussian import GaussianProcess

    goals: list[float] = []
    told: list[bool] = []
    propose, fit = GaussianProcess.propose, GaussianProcess.fit

    def proposing(self, x, offset, best, log_chance, n):  # type: ignore[no-untyped-def]
        goals.append(best)
        return propose(self, x, offset, best, log_chance, n)

    def fitting(self, x, y, variance=None):  # type: ignore[no-untyped-def]
        told.append(variance is not None and len(variance) == len(y))
        return fit(self, x, y, variance)

    monkeypatch.setattr(GaussianProcess, "propose", proposing)
    monkeypatch.setattr(GaussianProcess, "fit", fitting)
    session = tuned(tuner, NoisyTarget(noise=0.2, shared=0.2), 40)
    assert told
    assert all(told)
    assert goals
    assert not set(goals) & set(session.history.log_latency[session.history.valid])
    last = session.history.log_latency[:-8]
    assert goals[-1] > np.nanmin(last)


def test_a_resumed_tuner_proposes_the_same_from_recorded_repeats() -> None:
    task = task_of("default", NoisyTarget())
    session = learn(LocalRunner(), task, tune_session(task, 24, 8))
    history, rows = session.history, session.models
    explorer, problem = task.explorer, task.problem
    state = ExplorerState()
    kept = decode_history(encode_history(history))
    learned = explorer.learn(problem, state, kept)
    features = explorer.model_inputs(problem, learned, kept, task.target.lower(WORK, kept.configs))[
        "P"
    ].features
    one, other = (cast(Surrogate, item.models["P"]) for item in (learned, rows))
    assert np.array_equal(one.predict(features), other.predict(features))


def test_known_noise_is_of_the_valid_trials_alone() -> None:
    session = tuned("random", NoisyTarget(), 40)
    history: History = session.history
    assert not history.valid.all()
    noise = noise_of(task_of("random", NoisyTarget()).problem, history)
    assert noise is not None
    assert noise.shape == (int(history.valid.sum()),)
