"""Checks that several processes on one workload, through one store, make every trial once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.reliability.sharing_worker import WORK
from tests.trial_tables import frame, rows, tables
from tilewright.flows.tuning import tune_shared
from tilewright.models import make_explorer
from tilewright.search import StoredRun, TrialStore, setting_of
from tilewright.search.round_steps import Batch
from tilewright.search.trial_store import FILE
from tilewright.targets.fault_injection import FaultyTarget

pytestmark = pytest.mark.slow(seconds=4)

PROCESSES, TRIALS = 4, 96


def _start(store: Path, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.reliability.sharing_worker", str(store), str(TRIALS),
         *flags],
        stdout=subprocess.PIPE,
    )  # fmt: skip


def test_n_processes_make_every_trial_once_though_one_of_them_dies(tmp_path: Path) -> None:
    """What it had claimed, the others make."""
    store = tmp_path / FILE
    dying = _start(store, "--die")
    living = [_start(store) for _ in range(1, PROCESSES)]
    assert dying.wait(120) == -9
    store.with_name("dead").touch()
    assert [process.wait(120) for process in living] == [0, 0, 0]
    trials = frame(tmp_path)
    assert len(trials) == trials["config"].map(str).nunique() == TRIALS
    rounds = [row["round"] for row in rows(tmp_path, "select round from trial_rounds order by id")]
    assert rounds == list(range(len(rounds)))
    assert rows(tmp_path, "select * from trial_claims") == []


def test_an_exhausted_space_ends_every_worker(tmp_path: Path) -> None:
    store, target = tmp_path / FILE, FaultyTarget({})
    size = target.space(WORK).size
    explorer = make_explorer("random", {})
    for _ in range(2):
        held = sum(
            len(done.configs)
            for done in tune_shared(target, WORK, explorer, store, trials=size + 10, batch=64)
        )
        assert held == size
    assert len(frame(tmp_path)) == size


def test_a_claim_that_outlived_its_time_is_lost_to_who_claims_next(tmp_path: Path) -> None:
    store, target = tmp_path / FILE, FaultyTarget({})
    space, made = target.space(WORK), []

    class Overtaken(FaultyTarget):
        """While it measures, another process makes all trials there are."""

        def measure(self, lowered):  # type: ignore[no-untyped-def]
            made.append(len(lowered))
            for _ in tune_shared(target, WORK, explorer, store, trials=space.size, batch=8):
                pass
            return super().measure(lowered)

    explorer = make_explorer("random", {})
    slow = tune_shared(
        Overtaken({}), WORK, explorer, store, trials=space.size, batch=8, claim_seconds=0.0
    )
    assert sum(len(done.measured) for done in slow) == space.size
    assert made == [8]
    trials = frame(tmp_path)
    assert len(trials) == trials["config"].map(str).nunique() == space.size


def test_a_stopped_process_that_wakes_up_loses_what_others_have_made(tmp_path: Path) -> None:
    """Its claim was removed while it was stopped; what nobody else has made still counts."""
    target, explorer = FaultyTarget({}), make_explorer("random", {})
    setting, key = setting_of(target, WORK, explorer, 0), (WORK.id, target.fingerprint, "shared")
    space = setting.problem.space
    lowered = target.lower(WORK, space.unravel(np.arange(6)))
    first, second = (Batch(lowered.rows(np.arange(*ends)), {}, lowered.configs[:0], 0)
                     for ends in ((0, 4), (2, 6)))  # fmt: skip
    with (
        TrialStore(tmp_path / FILE, own=False) as asleep_store,
        TrialStore(tmp_path / FILE, own=False) as store,
    ):
        asleep = StoredRun(asleep_store, key, space, shared=True, claim_seconds=0.0)
        awake = StoredRun(store, key, space, shared=True)
        with asleep.turn():
            asleep.claim(first)
        with awake.turn():
            pending = awake.pending()
            assert pending is not None
            assert len(pending) == 0
            awake.claim(second)
        with awake.turn():
            assert awake.settle(0, second, target.measure(second.rows))[1].tolist() == [0, 1, 2, 3]
        with asleep.turn():
            index, kept = asleep.settle(0, first, target.measure(first.rows))
        assert (index, kept.tolist()) == (1, [0, 1])
        assert len(awake.finished()) == 2
    assert len(tables(tmp_path)["trials"]) == 6
