"""Checks that several processes on one workload, through one store, make every trial once."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Place
from tests.reliability.commands import recorded, wait_for
from tests.reliability.sharing_worker import WORK
from tests.trial_tables import frame, rows, tables
from tilewright.flows.tuning import tune, tune_rounds
from tilewright.models import make_explorer
from tilewright.search import Session, StoredRun, TrialStore, run_id, setting_of
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
    target = FaultyTarget({})
    size = target.space(WORK).size
    explorer = make_explorer("random", {})
    for _ in range(2):
        with TrialStore(tmp_path / FILE, own=False) as store:
            rounds = tune(
                target, WORK, explorer, trials=size + 10, batch=64, store=store, shared=True
            )
            assert sum(len(done.configs) for done in rounds) == size
    assert len(frame(tmp_path)) == size


def test_a_claim_that_outlived_its_time_is_lost_to_who_claims_next(tmp_path: Path) -> None:
    target, explorer = FaultyTarget({}), make_explorer("random", {})
    space, made = target.space(WORK), []
    key = (WORK.id, target.fingerprint, f"{run_id(explorer, 0, 8)}-shared")

    class Overtaken(FaultyTarget):
        """While it measures, another process makes all trials there are."""

        def measure(self, lowered):  # type: ignore[no-untyped-def]
            made.append(len(lowered))
            with TrialStore(tmp_path / FILE, own=False) as store:
                for _ in tune(
                    target, WORK, explorer, trials=space.size, batch=8, store=store, shared=True
                ):
                    pass
            return super().measure(lowered)

    with TrialStore(tmp_path / FILE, own=False) as store:
        record = StoredRun(store, key, space, other_runs=True, shared=True, claim_seconds=0.0)
        session = Session(setting_of(Overtaken({}), WORK, explorer, 0))
        slow = tune_rounds(session, record, trials=space.size, batch=8)
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


# -- commands ----------------------------------------------------------------------------------

COMMAND = ("tune", "digits_cnn", "--layers", "conv2,conv3", "--tuner", "random", "--trials", "400",
           "--batch", "4", "--seed", "7", "--out", "out", "--shared", "--bare")  # fmt: skip


def check_shared_run(folder: Path) -> None:
    """Every trial was made once, and the files are those of the trials."""
    trials = frame(folder / "out")
    per_workload = trials.groupby("workload")["config"].agg(lambda configs: configs.map(str))
    assert [len(configs) for configs in per_workload] == [400, 400]
    assert all(len(set(configs)) == 400 for configs in per_workload)
    assert rows(folder / "out", "select * from trial_owners") == []
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert [row["trials"] for row in summary["workloads"]] == [400, 400]
    for row in summary["workloads"]:
        mine = trials[(trials["workload"] == row["id"]) & (trials["status"] == "valid")]
        assert row["tuned_seconds"] == mine["seconds"].min()


@pytest.mark.parametrize("killed", [None, "owner", "helper"])
def test_commands_share_a_run_and_one_of_them_may_die(tmp_path: Path, killed: str | None) -> None:
    place = Place(tmp_path)
    with ExitStack() as started:
        owner = started.enter_context(place.start(*COMMAND))
        wait_for(lambda: recorded(place) > 0, owner)
        helpers = [started.enter_context(place.start(*COMMAND)) for _ in range(2)]
        wait_for(lambda: claims(tmp_path) > 1, owner)
        if killed:
            (owner if killed == "owner" else helpers[0]).kill()
        said = {name: each.communicate(timeout=120)[0] for name, each in
                [("owner", owner), ("helper", helpers[0]), ("other", helpers[1])]}  # fmt: skip
    codes = {"owner": owner.returncode, "helper": helpers[0].returncode}
    assert codes == {name: -9 if name == killed else 0 for name in codes}, said
    assert helpers[1].returncode == 0, said
    assert "makes trials beside it" in " ".join(said["other"].split())
    check_shared_run(tmp_path)


def claims(folder: Path) -> int:
    """How many commands measure a batch now."""
    return len(rows(folder / "out", "select id from trial_claims"))
