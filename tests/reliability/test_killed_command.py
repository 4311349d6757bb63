"""Tests `tilewright tune` when it is killed by SIGKILL, and when its servers disappear."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.reliability.commands import (
    BATCH,
    ROOT,
    TRIALS,
    TUNE,
    WORKLOADS,
    Whole,
    killed,
    left,
    mlflow,
    prefect_states,
    recorded,
    wait_for,
)
from tests.sharing import free_port, prefect_beside

pytestmark = pytest.mark.nightly(seconds=45)

KILLS = (42, 55, 60, 65)
"""Number of write boundaries after which each command is killed. The first kill hits the writing of
a Prefect record, and the others the rest of the run. A whole run has about 290 boundaries."""


def test_a_command_killed_again_and_again_ends_like_one_that_was_not(
    whole: Whole, tmp_path: Path
) -> None:
    """The first command starts its own Prefect server, which dies with it.

    The later commands use another server on the same records.
    """
    assert killed(Place(tmp_path), KILLS[0]) == -signal.SIGKILL
    with prefect_beside(tmp_path / "home") as server:
        place = Place(tmp_path, server)
        for kill_at in KILLS[1:]:
            assert killed(place, kill_at) == -signal.SIGKILL
        assert killed(place, -1) == 0
    assert left(place) == whole
    lines = (tmp_path / "notes").read_text().splitlines()
    timed = Counter(line for line in lines if not line.startswith("boundaries"))
    assert len(timed) == WORKLOADS * TRIALS
    assert sum(timed.values()) - len(timed) <= BATCH * len(KILLS)
    flows = prefect_states(place, "flow_run")
    assert set(flows) == {"Completed", "Crashed"}
    assert flows["Completed"] >= 1 + WORKLOADS  # plus workloads finished before a kill
    assert "Running" not in prefect_states(place, "task_run")
    runs, steps = mlflow(place)
    assert runs == {"FINISHED": 1 + WORKLOADS}
    assert [step for step in steps if step[3] > 1] == []
    rounds = TRIALS // BATCH  # per workload, and for the network
    assert sum(key == "trials" for _, key, _, _ in steps) == (1 + WORKLOADS) * rounds
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert sorted(name for name in names if not name.startswith((".", "trials.sqlite-"))) == [
        "convergence.png", "run.json", "schedules.json", "summary.json", "trials.parquet",
        "trials.sqlite",
    ]  # fmt: skip


def test_servers_that_die_and_come_back_only_delay(tmp_path: Path, whole: Whole) -> None:
    place = Place(tmp_path)
    prefect, mlflow = free_port(), free_port()
    addresses = {
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
        "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow}",
    }
    with _servers(place, prefect, mlflow):
        command = place.fork(*TUNE, **addresses)
        wait_for(lambda: recorded(place) > 0, command)
    assert command.poll() is None  # the command survives both servers
    time.sleep(1.0)
    with _servers(place, prefect, mlflow):
        printed = command.communicate(timeout=300)
    assert command.returncode == 0, printed
    assert left(place) == whole


# -- helpers around a command ------------------------------------------------------------------


@contextmanager
def _servers(place: Place, prefect: int, mlflow: int) -> Iterator[None]:
    """Run Prefect's and MLflow's servers, and kill them at the end as a crash would."""
    environment = place.environment | {"PYTHONPATH": str(ROOT)}
    program = (
        "import sys, time; from tilewright.services.workspace import use_workspace\n"
        "workspace = use_workspace()\n"
        "from tilewright.services.prefect_server import start_prefect_pages\n"
        "from tilewright.services.mlflow_server import start_mlflow_server\n"
        "mlflow = start_mlflow_server(workspace, '127.0.0.1', int(sys.argv[2]))\n"
        "prefect = start_prefect_pages(workspace, '127.0.0.1', int(sys.argv[1]))\n"
        "prefect.process.wait(); mlflow.wait()\n"
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
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.05)
    raise AssertionError(f"port {port} stays open")
