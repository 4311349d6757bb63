"""Checks that several processes that tune one workload through one store make every trial once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from tests.cli.conftest import Place
from tests.reliability.commands import recorded, wait_for
from tests.reliability.postgres import postgres
from tests.reliability.sharing_worker import WORK
from tests.trial_tables import frame, rows, tables
from tilewright.flows.tuning import rounds, tune
from tilewright.models import make_explorer
from tilewright.search import (
    LocalRunner,
    Round,
    Session,
    StoredRun,
    TrialStore,
    make_task,
    read_store,
    run_id,
)
from tilewright.search.session import Batch
from tilewright.search.trial_store import CLAIMS, FILE, OWNERS
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
    """The other processes make the trials that the dead process had claimed."""
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
        """A target that lets another process make all trials while it measures."""

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
        task = make_task(Overtaken({}), WORK, explorer, 0)
        slow = rounds(LocalRunner(), task, Session.start(task), record, trials=space.size, batch=8)
        assert sum(len(done.measured) for done in slow if isinstance(done, Round)) == space.size
    assert made == [8]
    trials = frame(tmp_path)
    assert len(trials) == trials["config"].map(str).nunique() == space.size


def test_a_stopped_process_that_wakes_up_loses_what_others_have_made(tmp_path: Path) -> None:
    """The claim of the process was removed while it was stopped.

    Trials that nobody else made still count.
    """
    target, explorer = FaultyTarget({}), make_explorer("random", {})
    setting, key = make_task(target, WORK, explorer, 0), (WORK.id, target.fingerprint, "shared")
    space = setting.problem.space
    lowered = target.lower(WORK, space.unravel(np.arange(6)))
    measured = target.measure(lowered)
    whole = Batch(lowered, {}, lowered.configs[:0], 0, measured=measured)
    first, second = (whole.take(np.arange(*ends)) for ends in ((0, 4), (2, 6)))
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
            assert awake.settle(0, second)[1].tolist() == [0, 1, 2, 3]
        with asleep.turn():
            index, kept = asleep.settle(0, first)
        assert (index, kept.tolist()) == (1, [0, 1])
        assert len(awake.finished_rounds()) == 2
    assert len(tables(tmp_path)["trials"]) == 6


# -- commands ----------------------------------------------------------------------------------

COUNT = 60
COMMAND = ("tune", "digits_cnn", "--layers", "conv2,conv3", "--tuner", "random", "--trials",
           str(COUNT), "--batch", "4", "--seed", "7", "--out", "out", "--shared",
           "--bare")  # fmt: skip


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize("killed", ["nobody", "owner", "helper"])
def test_commands_share_a_run_and_one_of_them_may_die(tmp_path: Path, killed: str) -> None:
    check_shared_run(tmp_path, killed)


@pytest.mark.nightly(seconds=10)
@pytest.mark.parametrize("killed", ["owner", "helper"])
def test_commands_share_a_run_on_postgresql(tmp_path: Path, killed: str, database: str) -> None:
    check_shared_run(tmp_path, killed, "--store", database)


def check_shared_run(folder: Path, killed: str, *options: str) -> None:
    """Stop the owner of a run until others have made trials, and kill one command.

    Every trial must be made once, and the results must follow from the trials.
    """
    place = Place(folder)
    with ExitStack() as started:
        owner = started.enter_context(place.start(*COMMAND, *options))
        wait_for(lambda: recorded(place) > 0, owner)
        stop_between_transactions(owner, folder / "out")
        before = recorded(place)
        helpers = [started.enter_context(place.start(*COMMAND, *options)) for _ in range(2)]
        wait_for(lambda: recorded(place) > before + 20, helpers[0])
        commands = {"owner": owner, "helper": helpers[0], "other": helpers[1]}
        if killed in commands:
            commands[killed].kill()
        owner.send_signal(signal.SIGCONT)
        said = {name: command.communicate(timeout=120)[0] for name, command in commands.items()}
    codes = {name: command.returncode for name, command in commands.items()}
    assert codes == {name: -9 if name == killed else 0 for name in commands}, said
    assert "contributes trials to its run" in " ".join(said["other"].split())
    trials = frame(folder / "out")
    assert trials.groupby("workload").size().tolist() == [COUNT, COUNT]
    made = zip(trials["workload"], trials["config"].map(str), strict=True)
    assert len(set(made)) == len(trials)
    summary = json.loads((folder / "out" / "summary.json").read_text())
    for row in summary["workloads"]:
        mine = trials[(trials["workload"] == row["id"]) & (trials["status"] == "valid")]
        assert row["trials"] == COUNT
        assert row["tuned_seconds"] == pytest.approx(mine["seconds"].min())
    with read_store(folder / "out") as store, store.read_snapshot() as connection:
        assert connection.execute(sa.select(CLAIMS)).all() == []
        assert store.describe_owner() is None


def stop_between_transactions(command: subprocess.Popen[str], out: Path) -> None:
    """Stop a command at a moment at which it holds no lock of the database."""
    with read_store(out) as store:
        place = store.place
    postgresql = isinstance(place, str)
    engine = sa.create_engine(
        place if isinstance(place, str) else f"sqlite:///{place}",
        connect_args={} if postgresql else {"timeout": 1},
    )
    while True:
        command.send_signal(signal.SIGSTOP)
        with engine.connect() as connection, suppress(sa.exc.OperationalError):
            if postgresql:
                connection.execute(sa.text("SET lock_timeout = '1s'"))
            update = sa.update(OWNERS).values(beats=OWNERS.c.beats)
            connection.execute(update)
            connection.rollback()
            return
        command.send_signal(signal.SIGCONT)
        time.sleep(0.01)
