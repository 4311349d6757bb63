"""Tests machine failures during `tilewright tune`: each gives one message and a resumable run.

The failures are full disks, locked databases, dead servers and jumping clocks.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests import warm
from tests.cli.conftest import TILEWRIGHT, Place
from tests.processes import listening, servers
from tests.reliability.commands import (
    ROOT,
    TUNE,
    WORKLOADS,
    Whole,
    left,
    locked,
    mlflow,
    prefect_states,
    recorded,
    wait_for,
)
from tests.trial_tables import frame
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.prefect_server import Login

pytestmark = pytest.mark.nightly(seconds=20)

STEPS_KIB = range(1000, 40000, 2000)
"""Sizes in KiB of a disk that grows until the run fits. A run needs some ten megabytes."""


@pytest.mark.nightly(seconds=50)
def test_a_disk_that_fills_stops_the_command_until_there_is_room(
    tmp_path: Path, whole: Whole
) -> None:
    place, held = Place(tmp_path / "disk"), []
    with _disk(place.folder, f"size={STEPS_KIB[0]}k"):
        for kib in STEPS_KIB:
            _mount(place.folder, f"remount,size={kib}k")
            done = place.run(*TUNE)
            if done.returncode == 0:
                break
            _assert_one_message(done, "No space left on device", "make room")
            held.append(len(frame(place.folder / "out")))
        assert done.returncode == 0
        assert len(held) >= 4
        assert held == sorted(held)  # earlier trials are kept
        assert any(n > 0 for n in held)
        assert left(place) == whole
        _assert_clean_records(place)


def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path: Path, whole: Whole) -> None:
    if not os.geteuid():
        pytest.skip("the disk above stands for it")
    place = Place(tmp_path)
    limit = f"ulimit -f 1300; exec {TILEWRIGHT} {' '.join(TUNE)}"
    done = subprocess.run(
        ["bash", "-c", limit], cwd=tmp_path, env=place.environment, capture_output=True, text=True
    )
    _assert_one_message(done)
    assert place.run(*TUNE).returncode == 0
    assert left(place) == whole


@pytest.mark.parametrize("name", ["home", "out"])
def test_a_read_only_disk_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    place = Place(tmp_path)
    with _disk(tmp_path / name, "ro"):
        done = place.run(*TUNE)
        _assert_one_message(done, "folder")
    assert not (tmp_path / "out" / "trials.sqlite").exists()


def test_a_database_locked_for_longer_than_the_wait_stops_the_command(
    tmp_path: Path, whole: Whole, prefect_server: Login
) -> None:
    """Prefect's database is locked in the middle of a run, and MLflow's before a run.

    MLflow alone waits 20 s for each lock.
    """
    place, other = Place(tmp_path / "prefect"), Place(tmp_path / "mlflow")
    guest = Place(other.folder, prefect_server)
    runs_path = other.folder / "home" / "mlflow" / "mlflow.db"
    runs_path.parent.mkdir(parents=True)
    provide_mlflow_database(runs_path)
    place.folder.mkdir()
    with locked(runs_path):
        blocked = guest.fork(*TUNE)
        command = place.fork(*TUNE, PREFECT_CLIENT_MAX_RETRIES="1", PREFECT_API_REQUEST_TIMEOUT="3")
        wait_for(lambda: recorded(place) > 0, command)
        with locked(place.folder / "home" / "prefect" / "prefect.db") as path:
            _assert_one_message(
                _ended(command), f"the database {path} is locked by another process"
            )
        _assert_one_message(
            _ended(blocked), f"the database {runs_path} is locked by another process"
        )
    for stopped in (place, other):
        assert stopped.run(*TUNE).returncode == 0
        assert left(stopped) == whole
        _assert_clean_records(stopped)


def test_a_busy_database_and_a_killed_prefect_server_only_delay(
    tmp_path: Path, whole: Whole
) -> None:
    place = Place(tmp_path)
    command = place.start(*TUNE)
    wait_for(lambda: recorded(place) > 0, command)
    assert {address.ip for address in listening(command.pid)} == {"127.0.0.1"}
    for name in ("mlflow/mlflow.db", "prefect/prefect.db"):
        with locked(tmp_path / "home" / name):
            time.sleep(4.0)
    (server,) = servers(command.pid)
    os.kill(server.pid, signal.SIGKILL)
    printed, _ = command.communicate(timeout=300)
    assert command.returncode == 0, printed
    assert left(place) == whole
    assert mlflow(place)[0] == {"FINISHED": 1 + WORKLOADS}


JUMPING = """
import itertools, sys, time
now, shifts = time.time, itertools.cycle([0.0, 3600.0, -3600.0, 1e6, -1e6])
time.time = lambda: now() + next(shifts)
from tilewright.cli import main
sys.argv[0] = "tilewright"
main()
"""


def test_a_clock_that_jumps_and_a_second_command_change_nothing(
    tmp_path: Path, whole: Whole, prefect_server: Login
) -> None:
    """The second command is refused while the first one works, whatever its clock says."""
    place = Place(tmp_path, prefect_server)
    first = subprocess.Popen(
        [sys.executable, "-c", JUMPING, *TUNE], cwd=tmp_path, text=True,
        env=place.environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_for(lambda: recorded(place) > 0, first)
    first.send_signal(signal.SIGSTOP)  # it must not end before the second one starts
    second = place.run(*TUNE)
    first.send_signal(signal.SIGCONT)
    _assert_one_message(second, f"is in use by process {first.pid} on")
    printed, _ = first.communicate(timeout=300)
    assert first.returncode == 0, printed
    assert left(place) == whole


# -- disks, messages, records ------------------------------------------------------------------


def _ended(command: warm.Started) -> subprocess.CompletedProcess[str]:
    printed, errors = command.communicate(timeout=300)
    assert command.returncode is not None
    return subprocess.CompletedProcess(command.args, command.returncode, printed, errors)


def _assert_one_message(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def _assert_clean_records(place: Place) -> None:
    """Check that MLflow and Prefect have no running, duplicate or incomplete records."""
    runs, steps = mlflow(place)
    assert runs == {"FINISHED": 1 + WORKLOADS}
    assert [step for step in steps if step[3] > 1] == []
    for table in ("flow_run", "task_run"):
        assert not {"Pending", "Running"} & set(prefect_states(place, table))
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        models = database.execute(
            "select source_run_id, name, artifact_location from logged_models"
            " where lifecycle_stage = 'active'"
        ).fetchall()
    assert Counter((run, name) for run, name, _ in models).most_common(1)[0][1] == 1
    for _, _, folder in models:
        assert (Path(folder.removeprefix("file://")) / "MLmodel").is_file()


@contextmanager
def _disk(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    if os.geteuid():
        pytest.skip("only root can mount a disk")
    _mount(folder, options)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
