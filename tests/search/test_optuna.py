"""Tests Optuna's TPE sampler as a tuner: the trials that its study gets, and its proposals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.evaluation.tuner_conformance import WORKLOAD, ToyTarget
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import ExplorerState, History, Problem
from tilewright.targets.base import Knob, Space

SPACE = Space("line", tuple(Knob(f"k{i}", tuple(range(16))) for i in range(3)))
PROBLEM = Problem(WORKLOAD, SPACE)


def _history(rng: np.random.Generator, trials: int) -> History:
    """Return trials in which a small first knob is fast and an odd last knob is invalid."""
    configs = SPACE.unravel(rng.choice(SPACE.size, trials, replace=False))
    valid = configs[:, 2] % 2 == 0
    status = np.where(valid, "valid", "run_error").astype(object)
    cycles = np.where(valid, 1000 + 100 * configs[:, 0], -1).astype(np.int64)
    return replace(
        History.empty(SPACE),
        configs=configs, status=status, cycles=cycles,
        rounds=np.zeros(trials, np.int32), hidden=np.empty((trials, 0)), round=1,
    )  # fmt: skip


@pytest.mark.parametrize("knobs", ["int", "categorical", "mixed"])
def test_it_draws_near_what_was_fast(knobs: str) -> None:
    history = _history(np.random.default_rng(0), 200)
    drawn = make_explorer("optuna", {"knobs": knobs}).generate(
        PROBLEM, ExplorerState(), history, 32
    )
    assert len(drawn) == 32
    assert drawn.configs[:, 0].mean() < 4.0  # 7.5 by chance


def test_a_violated_constraint_is_avoided_however_fast_it_looks() -> None:
    history = _history(np.random.default_rng(0), 200)
    options = {"knobs": "categorical"}
    drawn = make_explorer("optuna", options).generate(PROBLEM, ExplorerState(), history, 32)
    assert (drawn.configs[:, 2] % 2 == 0).mean() > 0.8  # half by chance


def test_what_others_measure_is_pending_and_never_drawn() -> None:
    explorer, history = make_explorer("optuna"), _history(np.random.default_rng(0), 100)
    alone = explorer.generate(PROBLEM, ExplorerState(), history, 8).configs
    others = replace(history, pending=alone)
    among = explorer.generate(PROBLEM, ExplorerState(), others, 8).configs
    assert not np.isin(SPACE.ravel(among), SPACE.ravel(alone)).any()


def test_no_redraws_fill_the_batch_with_untried_configs_at_random() -> None:
    small = Space("small", (Knob("a", (1, 2, 3, 4)), Knob("b", (1, 2, 3, 4))))
    tried = small.unravel(np.arange(12))
    history = replace(
        History.empty(small),
        configs=tried, status=np.full(12, "valid", object), cycles=np.arange(1, 13),
        rounds=np.zeros(12, np.int32), hidden=np.empty((12, 0)), round=1,
    )  # fmt: skip
    explorer = make_explorer("optuna", {"redraws": 0})
    drawn = explorer.generate(Problem(WORKLOAD, small), ExplorerState(), history, 8).configs
    assert sorted(small.ravel(drawn).tolist()) == [12, 13, 14, 15]


def test_it_keeps_nothing_between_rounds_and_changes_no_global_state() -> None:
    explorer, history = make_explorer("optuna"), _history(np.random.default_rng(0), 60)
    state = np.random.get_state()[1].copy()
    first = explorer.generate(PROBLEM, ExplorerState(), history, 8).configs
    again = make_explorer("optuna").generate(PROBLEM, ExplorerState(), history, 8).configs
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert explorer.learn(PROBLEM, ExplorerState(), history) == ExplorerState()


@pytest.mark.slow(seconds=1.5)
def test_it_beats_random_where_half_is_invalid() -> None:
    """The score is the mean log of the best latency after 40 trials, over 12 seeds."""
    best = {
        name: np.mean([
            np.log(list(tune(ToyTarget(), WORKLOAD, make_explorer(name), trials=40, seed=seed))
                   [-1].best_cycles)
            for seed in range(12)
        ])
        for name in ("optuna", "random")
    }  # fmt: skip
    assert best["optuna"] < best["random"]
