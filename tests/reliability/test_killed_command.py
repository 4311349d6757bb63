"""`tilewright tune` under `kill -9`, a second command, a locked database, servers that vanish."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from search import read
from tests.flows.conftest import Place
from tests.reliability.test_ledger_faults import _hold

ROOT = Path(__file__).parents[2]
TUNE = ("tune", "digits_cnn", "--tuner", "ml2tuner", "--trials", "16", "--batch", "8", "--seed",
        "7", "--out", "out")  # fmt: skip
WORKLOADS, TRIALS, BATCH = 3, 16, 8
KILLS = (61, 160, 203, 120)
"""After how many write boundaries each of the killed commands dies: in turn before a rename, in the
middle of a data file, in one of the ledger, after a sync; the whole run has about 700."""


@dataclass(frozen=True)
class Whole:
    """What an uninterrupted run leaves."""

    ledger: bytes
    schedules: bytes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    place = Place(tmp_path_factory.mktemp("whole"))
    assert _killed(place, -1) == 0
    note = (place.folder / "notes").read_text().splitlines()[-1]
    assert "unwatched 0" in note, note
    return _left(place)


def _left(place: Place) -> Whole:
    out = place.folder / "out"
    return Whole((out / "ledger.jsonl").read_bytes(), (out / "schedules.json").read_bytes())


def _killed(place: Place, kill_at: int) -> int:
    """The exit status of the command that dies at this boundary."""
    environment = place.environment | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "tests.reliability.killed_command", str(kill_at), "notes", "out",
         "home/cache", "--", *TUNE],
        cwd=place.folder, env=environment, stdout=subprocess.DEVNULL, check=False, timeout=300,
    ).returncode  # fmt: skip


def _prefect_states(place: Place, table: str) -> Counter[str]:
    with closing(sqlite3.connect(place.folder / "home" / "prefect" / "prefect.db")) as database:
        return Counter(name for (name,) in database.execute(f"select state_name from {table}"))


def _mlflow(place: Place) -> tuple[Counter[str], list[tuple[str, str, int, int]]]:
    """Runs by status, and how often each step of each metric was logged."""
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        runs = Counter(status for (status,) in database.execute("select status from runs"))
        steps = database.execute(
            "select run_uuid, key, step, count(*) from metrics group by run_uuid, key, step"
        ).fetchall()
    return runs, steps


def test_a_command_killed_again_and_again_ends_like_one_that_was_not(
    whole: Whole, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    for kill_at in KILLS:
        assert _killed(place, kill_at) == -signal.SIGKILL
    assert _killed(place, -1) == 0
    assert _left(place) == whole
    lines = (tmp_path / "notes").read_text().splitlines()
    timed = Counter(line for line in lines if not line.startswith("boundaries"))
    assert len(timed) == WORKLOADS * TRIALS
    assert sum(timed.values()) - len(timed) <= BATCH * len(KILLS)
    flows = _prefect_states(place, "flow_run")
    assert set(flows) == {"Completed", "Crashed"}
    assert flows["Completed"] >= 1 + WORKLOADS  # and workloads that were done before a kill
    assert "Running" not in _prefect_states(place, "task_run")
    runs, steps = _mlflow(place)
    assert runs == {"FINISHED": 1 + WORKLOADS}
    assert [step for step in steps if step[3] > 1] == []
    assert sum(key == "trials" for _, key, _, _ in steps) == WORKLOADS * TRIALS // BATCH
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert sorted(name for name in left if not name.startswith((".", "ledger.jsonl."))) == [
        "convergence.png", "ledger.jsonl", "schedules.json", "summary.json", "trials.parquet",
    ]  # fmt: skip


def test_a_command_is_refused_while_another_writes_to_its_folder(
    tmp_path: Path, whole: Whole
) -> None:
    place = Place(tmp_path)
    other = _hold(tmp_path / "out" / "ledger.jsonl")
    try:
        refused = place.run(*TUNE)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: ")
        assert f"is being written by process {other.pid} on" in refused.stderr
    finally:
        other.kill()
        other.wait()
    assert place.run(*TUNE).returncode == 0
    assert _left(place) == whole


def test_a_database_locked_by_another_process_only_delays(tmp_path: Path, whole: Whole) -> None:
    place = Place(tmp_path)
    command = place.start(*TUNE)
    _wait_for(lambda: _recorded(place) > 0, command)
    for name in ("mlflow/mlflow.db", "prefect/prefect.db"):
        with _locked(tmp_path / "home" / name):
            time.sleep(4.0)
    assert command.wait(300) == 0
    assert _left(place) == whole
    runs, _ = _mlflow(place)
    assert runs == {"FINISHED": 1 + WORKLOADS}


def test_servers_that_die_and_come_back_only_delay(tmp_path: Path, whole: Whole) -> None:
    place = Place(tmp_path)
    prefect, mlflow = _free_port(), _free_port()
    addresses = {
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow}",
    }
    with _servers(place, prefect, mlflow):
        command = subprocess.Popen(
            [str(Path(sys.executable).with_name("tilewright")), *TUNE],
            cwd=tmp_path, env=place.environment | addresses, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _wait_for(lambda: _recorded(place) > 0, command)
    assert command.poll() is None  # both servers are gone, the command is not
    time.sleep(1.0)
    with _servers(place, prefect, mlflow):
        printed, _ = command.communicate(timeout=300)
    assert command.returncode == 0, printed
    assert _left(place) == whole


# -- around a command --------------------------------------------------------------------------


def _recorded(place: Place) -> int:
    return len(read(place.folder / "out" / "ledger.jsonl").records)


def _wait_for(condition, command: subprocess.Popen[str]) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 240
    while not condition():
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Another process has the database for itself."""
    program = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1], timeout=60);"
        "database.execute('begin exclusive'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        yield
        holder.communicate()


@contextmanager
def _servers(place: Place, prefect: int, mlflow: int) -> Iterator[None]:
    """Prefect's and MLflow's own servers, killed at the end as a crash would."""
    environment = place.environment | {"PYTHONPATH": str(ROOT)}
    program = (
        "import sys, time; from tasks.home import use_home; home = use_home()\n"
        "from tasks.prefect_server import start_prefect_pages\n"
        "from tasks.mlflow_server import start_mlflow_server\n"
        "mlflow = start_mlflow_server(home, '127.0.0.1', int(sys.argv[2]))\n"
        "start_prefect_pages(home, '127.0.0.1', int(sys.argv[1])).child.wait(); mlflow.wait()\n"
        "print('up', flush=True); time.sleep(600)"
    )
    servers = subprocess.Popen(
        [sys.executable, "-c", program, str(prefect), str(mlflow)],
        cwd=place.folder, env=environment, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert servers.stdout is not None
        assert servers.stdout.readline() == b"up\n"
        yield
    finally:
        os.kill(servers.pid, signal.SIGKILL)  # its children end with it, at once
        servers.wait()
        for port in (prefect, mlflow):
            _wait_until_closed(port)


def _wait_until_closed(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.05)
    raise AssertionError(f"port {port} stays open")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
