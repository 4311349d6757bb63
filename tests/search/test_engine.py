"""Tests the tuning loop on a noisy target and with several threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import sqlalchemy as sa
from threadpoolctl import threadpool_info

from tilewright.core.thread_pools import one_thread
from tilewright.evaluation.tuner_conformance import WORKLOAD, ToyTarget
from tilewright.flows.tuning import (
    learn,
    propose_batch,
    rounds_without_store,
    tune,
    tune_session,
)
from tilewright.models import make_explorer
from tilewright.search import (
    LocalRunner,
    Session,
    Trial,
    TrialStore,
    make_task,
)
from tilewright.search.round_steps import measure_batch, retrain_models
from tilewright.search.session import Batch
from tilewright.search.trial_store import TRIALS
from tilewright.targets.base import Lowered, Measurements, Ragged

T = TypeVar("T")


class NoisyTarget(ToyTarget):
    """A target without cycle counts. Each measurement has three repeats, which differ."""

    deterministic = False

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng()
        self.measured = 0

    def measure(self, lowered: Lowered) -> Measurements:
        result = super().measure(lowered)
        self.measured += len(lowered)
        noise = self.rng.uniform(1.0, 1.1, (len(lowered), 3)) * result.seconds[:, None]
        repeats = [
            row if valid else row[:0] for row, valid in zip(noise, result.valid, strict=True)
        ]
        return Measurements(
            result.status, result.reason, np.full(len(lowered), -1), noise.min(axis=1), {},
            Ragged.from_rows(repeats),
        )  # fmt: skip


def _tune(target: ToyTarget, store: TrialStore, seed: int, trials: int = 16) -> list[float | None]:
    explorer = make_explorer("random")
    result = tune(target, WORKLOAD, explorer, trials=trials, batch=8, seed=seed, store=store)
    return [done.best_latency for done in result]


def test_a_noisy_target_is_measured_again_in_another_run_and_not_in_the_same(
    tmp_path: Path,
) -> None:
    size = ToyTarget().space(WORKLOAD).size
    with TrialStore(tmp_path / "noisy.sqlite") as store:
        target = NoisyTarget()
        first = _tune(target, store, seed=0, trials=size)
        once = target.measured
        assert _tune(target, store, seed=0, trials=size) == first
        assert target.measured == once
        _tune(target, store, seed=1, trials=size)
        assert target.measured == 2 * once
        with store.read_snapshot() as connection:
            rows = connection.execute(sa.select(TRIALS)).mappings().all()
    assert all(row["cycles"] == -1 for row in rows)
    for row in rows:
        repeats = json.loads(row["repeats"])
        assert len(repeats) == (3 if row["status"] == "valid" else 0)
        assert min(repeats, default=None) == row["seconds"]


def test_a_deterministic_target_is_never_measured_twice(tmp_path: Path) -> None:
    with TrialStore(tmp_path / "sure.sqlite") as store:
        _tune(ToyTarget(), store, seed=0, trials=200)
        measured = []

        class Counting(ToyTarget):
            def measure(self, lowered: Lowered) -> Measurements:
                measured.append(len(lowered))
                return super().measure(lowered)

        _tune(Counting(), store, seed=1)
        assert sum(measured) == 0
        with store.read_snapshot() as connection:
            assert {*connection.scalars(sa.select(TRIALS.c.repeats))} == {"[]"}


def test_known_rows_take_their_place_among_measured_ones() -> None:
    target = NoisyTarget()
    setting = make_task(target, WORKLOAD, make_explorer("random"), 0)
    rows = target.lower(WORKLOAD, setting.problem.space.unravel(np.array([40, 41, 42, 43])))
    known = {41: Trial("valid", "", -1, 0.5, (0.5, 0.6)), 43: Trial("timeout", "late", -1, np.nan)}
    batch = Batch(rows, {}, rows.configs[:0], 0)
    measured = measure_batch(setting, batch, known)
    assert target.measured == 2
    assert measured.seconds[1] == 0.5
    assert measured.status[3] == "timeout"
    assert measured.repeats is not None
    assert [len(measured.repeats[row]) for row in range(4)] == [3, 2, 3, 0]


def test_a_session_learns_when_it_is_asked_and_not_before() -> None:
    target = ToyTarget()
    explorer = make_explorer("ml2tuner", {"first": 8})
    run, task = LocalRunner(), make_task(target, WORKLOAD, explorer, 0)
    done = tune_session(task, 40, 8)
    again = Session.start(task)
    while len(again.history) < 40:
        again = learn(run, task, again)
        batch = propose_batch(run, task, again, 8)
        assert batch is not None
        measured = run(measure_batch, task, batch, {})
        again = again.extend(replace(batch, measured=measured))
    assert np.array_equal(done.history.configs, again.history.configs)
    assert learn(run, task, again).models.models.keys() == (
        learn(run, task, done).models.models.keys()
    )


def test_nothing_is_learned_from_a_last_round() -> None:
    setting = make_task(ToyTarget(), WORKLOAD, make_explorer("default"), 0)
    learned: list[int] = []

    class Counting(LocalRunner):
        def __call__(self, step: Callable[..., T], *given: Any) -> T:
            if step is retrain_models:
                learned.append(given[1].unlearned[0].round)
            return super().__call__(step, *given)

    run, session = Counting(), Session.start(setting)
    done = list(rounds_without_store(run, setting, session, trials=6, batch=2))
    assert learned == [1, 2]
    assert [round_.stage_seconds.get("retrain", 0) > 0 for round_ in done] == [False, True, True]
    assert learn(run, setting, done[-1].session).models.models
    assert learned == [1, 2, 3]


def test_a_store_takes_trials_of_several_threads(tmp_path: Path) -> None:
    with TrialStore(tmp_path / "trials.sqlite") as store, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: _tune(ToyTarget(), store, seed), range(8)))
        assert len(store.frame()) == 8 * 16
        assert store.problems == []


def test_libraries_have_their_threads_back_when_the_last_user_is_done() -> None:
    @one_thread
    def limited(depth: int) -> int:
        return max(limited(depth - 1) if depth else 1, _most_threads())

    before = _most_threads()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(limited, [3, 2, 1, 0] * 4)) == {1}
    assert _most_threads() == before


def _most_threads() -> int:
    """Return the largest thread count of the BLAS libraries.

    OpenMP is left out, because its limit applies per thread and not to libraries loaded later.
    """
    blas = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    return max((int(pool["num_threads"]) for pool in blas), default=1)


@pytest.mark.parametrize("seed", [0, 7])
def test_other_numbers_each_time_are_no_reason_to_propose_otherwise(seed: int) -> None:
    """A tuner that learns nothing must propose the same trials in each run."""
    runs = [
        [
            done.configs.tolist()
            for done in tune(
                NoisyTarget(), WORKLOAD, make_explorer("random"), trials=16, batch=8, seed=seed
            )
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
