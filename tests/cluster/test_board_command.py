"""Tests `tilewright board serve` and `tune --target board:NAME`.

Two simulated boards of different speed take part; both fail now and then.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from tests.cli.conftest import Place
from tests.cli.test_servers import post
from tests.cluster.boards import SimulatedBoard, compiled_driver
from tests.cluster.clusters import COMMAND, DaskCluster, settings_of
from tests.processes import listening
from tilewright.services.prefect_server import Login
from tilewright.targets.board.target import board_on
from tilewright.targets.cluster import ClusterError, connection
from tilewright.targets.cluster.connection import connect
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import parse_workload

DENSE = parse_workload("dense:n=1,c=48,o=32", "bias, >> 8, min 127, max -128")
WORKLOAD = ("--workload", "dense:n=1,c=256,o=128", "--epilogue", "bias, >> 8, min 127, max -128")
TRIALS = 16
SPECS = {
    "fast": VtaSpec.load("vta-pynq"),
    "slow": VtaSpec.from_mapping({"name": "slow", "memory_latency_cycles": 150, "clock_mhz": 50}),
}


@dataclass(frozen=True)
class Boards:
    """Simulated boards by name. Each has its own worker."""

    cluster: DaskCluster
    boards: dict[str, SimulatedBoard]
    driver: Path

    def serve(self, name: str, **more: str) -> subprocess.Popen[bytes]:
        """Start `tilewright board serve` and wait until it is ready."""
        cluster, board = self.cluster, self.boards[name]
        (file := cluster.folder / f"{name}.json").write_text(
            board.spec.model_dump_json(by_alias=True, exclude={"source"}, exclude_none=True)
        )
        process = cluster.run(
            f"board-{name}", *COMMAND, "board", "serve", name, "--cluster", cluster.address,
            "--driver", str(self.driver), "--reset", board.reset_command, "--target", str(file),
            "--repeats", "1", "--seconds", "3", more=board.environment | more,
        )  # fmt: skip
        cluster.wait_for(f"board-{name}", f"board:{name} (")
        return process


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boards]:
    folder = tmp_path_factory.mktemp("boards")
    driver = compiled_driver(folder / "driver")
    with ExitStack() as stack:
        cluster = stack.enter_context(DaskCluster(folder / "cluster"))
        devices = {
            name: stack.enter_context(SimulatedBoard(folder / name, spec))
            for name, spec in SPECS.items()
        }
        boards = Boards(cluster, devices, driver)
        for name in devices:
            boards.serve(name)
        yield boards


WAIT_SECONDS = 30


def _takes_turns(server: Login) -> None:
    """Check that exactly the tasks that measure on a board have its tag.

    The tag limits them to one at a time.
    """

    def ask(path: str, **asked: object) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = post(
            f"{server.api_url}/{path}", asked, server.credentials.headers
        )
        return result

    tagged = {"tags": {"all_": ["board:slow"]}}
    names: set[str] = set()
    deadline = time.monotonic() + WAIT_SECONDS  # the server stores task runs with a delay
    while not any(name.endswith(": verify") for name in names) and time.monotonic() < deadline:
        names = {item["name"] for item in ask("task_runs/filter", task_runs=tagged)}
    rounds = [name for name in names if "round" in name]
    assert sorted(name.rpartition(" ")[2] for name in rounds) == ["simulate"] * 2
    assert {name.rpartition(": ")[2] for name in names - set(rounds)} >= {"baseline", "verify"}
    (limit,) = [item for item in ask("concurrency_limits/filter") if item["tag"] == "board:slow"]
    assert limit["concurrency_limit"] == 1


@pytest.mark.nightly(seconds=12)
def test_each_board_is_tuned_by_what_it_measures(
    tmp_path: Path, prefect_server: Login, boards: Boards
) -> None:
    """The slow board is tuned with Prefect and MLflow, the fast one without."""
    place, address = Place(tmp_path, prefect_server), boards.cluster.address
    keys = settings_of(boards.cluster.keys)
    # the baselines come first, two of them
    boards.boards["fast"].faults.extend(["", "", "", "time-out", "", "wrong", "hang"])
    cycles = {}
    for name, board in boards.boards.items():
        before = board.resets
        started = place.fork(
            "tune", *WORKLOAD, "--target", f"board:{name}", "--cluster", address, "--tuner",
            "random", "--trials", str(TRIALS), "--batch", "8", "--leaders", "2", "--out", name,
            *(["--bare"] if name == "fast" else []), **keys,
        )  # fmt: skip
        _, said = started.communicate(timeout=300)
        assert started.returncode == 0, said + boards.cluster.said(f"board-{name}")
        met = Counter(pd.read_parquet(tmp_path / name / "trials.parquet")["status"])
        faults = {"timeout": 2, "wrong_result": 1} if name == "fast" else {}
        assert {k: met[k] for k in ("timeout", "wrong_result") if met[k]} == faults
        assert sum(met.values()) == TRIALS
        assert met["valid"] > 4
        assert board.resets - before == sum(faults.values())
        schedule = place.json(f"{name}/schedules.json")
        assert schedule["target"]["name"] == f"board:{name}"
        assert schedule["target"]["kind"] == "board"
        assert schedule["target"]["spec"]["name"] == SPECS[name].name
        cycles[name] = place.json(f"{name}/summary.json")["total"]
    _takes_turns(prefect_server)
    assert cycles["slow"]["tuned_cycles"] > 1.1 * cycles["fast"]["tuned_cycles"], cycles

    done = place.run("board", "list", "--cluster", address, "--json")
    document = json.loads(done.stdout)
    assert {name: about["machine"] for name, about in document.items()} == {
        "fast": "vta-pynq", "slow": "slow",
    }  # fmt: skip
    fast = document["fast"]
    assert (fast["time_outs"], fast["wrong"], fast["resets"]) == (2, 1, 3)
    assert document["slow"]["programs"] >= TRIALS // 2
    assert "board:slow" in place.run("board", "list", "--cluster", address).stdout


@pytest.mark.nightly(seconds=5)
def test_a_worker_beside_a_board_may_be_started_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, boards: Boards
) -> None:
    """Only the batch that the killed worker was measuring is measured again."""
    folder = tmp_path_factory.mktemp("third")
    with SimulatedBoard(folder / "board", SPECS["fast"]) as board:
        boards.boards["third"] = board
        boards.serve("third")
        command = Place(tmp_path).fork(
            "tune", *WORKLOAD, "--target", "board:third", "--cluster", boards.cluster.address,
            "--tuner", "random", "--trials", "24", "--batch", "8", "--leaders", "1", "--bare",
            "--out", "out", **settings_of(boards.cluster.keys),
        )  # fmt: skip
        end = time.monotonic() + 120
        while board.streams < 4:  # the baselines, and the first trials
            assert time.monotonic() < end
            assert command.poll() is None, command.communicate()
            time.sleep(0.01)
        boards.cluster.kill("board-third")
        boards.serve("third")
        _, said = command.communicate(timeout=300)
        assert command.returncode == 0, said
        trials = pd.read_parquet(tmp_path / "out" / "trials.parquet")
        assert trials["status"].tolist() == ["valid"] * 24
        assert trials["config"].map(tuple).nunique() == 24
        boards.cluster.kill("board-third")
        del boards.boards["third"]


@pytest.mark.slow(seconds=4)
def test_workers_with_a_board_do_nothing_else(
    boards: Boards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WORKER_SECONDS", 1.0)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.5)
    cluster = connect(boards.cluster.address)
    assert set(cluster.boards()) >= {"fast", "slow"}
    assert cluster.slots() == 0
    with pytest.raises(ClusterError, match="has had no worker for 1 s"):
        cluster.call(max, 1, 2)
    with pytest.raises(ClusterError, match="has had no worker that offers board:none for 1 s"):
        cluster.call(max, 1, 2, board="none")
    assert cluster.call(max, 1, 2, board="fast") == 2
    boards.cluster.worker("beside")
    assert cluster.call(max, 1, 2) == 2
    boards.cluster.kill("beside")


@pytest.mark.slow(seconds=4)
@pytest.mark.attack
def test_a_board_is_offered_on_loopback_alone(boards: Boards) -> None:
    for name in SPECS:
        result = listening(boards.cluster.processes[f"board-{name}"].pid)
        assert {address.ip for address in result} == {"127.0.0.1"}


@pytest.mark.nightly(seconds=8)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, boards: Boards) -> None:
    place, address = Place(tmp_path), boards.cluster.address
    for more, message in [
        (
            ("--target", "board:fast"),
            "the address of the cluster's scheduler: --cluster tls://HOST:PORT",
        ),
        (("--target", "board:f a", "--cluster", address), "board names have 1 to 60 letters"),
        (
            ("--target", "board:none", "--cluster", address),
            "available boards: board:fast, board:slow",
        ),
        (("--target", "board:fast", "--cluster", address, "--isolate", "3"), "leave it out"),
    ]:
        done = place.run("tune", *WORKLOAD, "--bare", *more)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert message in done.stderr
    serve = ("board", "serve", "fast", "--driver", "/nowhere.o", "--reset", "true", "--cluster")
    for cluster, message in [
        (address, "building the runtime with --driver '/nowhere.o' failed"),
        ("local:2", "write tls://HOST:PORT"),
    ]:
        done = place.run(*serve, cluster)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.slow(seconds=3)
def test_two_boards_of_one_name_are_refused(boards: Boards) -> None:
    cluster, board = boards.cluster, boards.boards["fast"]
    process = cluster.run(
        "twin", *COMMAND, "board", "serve", "fast", "--cluster", cluster.address, "--driver",
        str(boards.driver), "--reset", board.reset_command, more=board.environment,
    )  # fmt: skip
    assert process.wait(60) == 2
    assert "already offers board:fast" in cluster.said("twin")
    assert "Traceback" not in cluster.said("twin")


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_of_a_worker_leaves_nothing_behind(
    tmp_path: Path, boards: Boards, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker removes its folder and ends its program, which would otherwise never end."""
    monkeypatch.setattr(connection, "WORKER_SECONDS", 1.0)
    (temporary := tmp_path / "tmp").mkdir()
    with SimulatedBoard(tmp_path / "board", SPECS["fast"]) as board:
        boards.boards["third"] = board
        process = boards.serve("third", TMPDIR=str(temporary))
        board.faults.append("hang")
        asked = threading.Thread(target=_measured, args=(boards,))
        asked.start()
        end = time.monotonic() + 60
        while not board.held:
            assert time.monotonic() < end
            time.sleep(0.01)
        (program,) = psutil.Process(process.pid).children(recursive=True)
        assert [path.name[:17] for path in temporary.iterdir()] == ["tilewright-board-"]
        process.send_signal(number)
        assert process.wait(30) == 0, boards.cluster.said("board-third")
        assert "Traceback" not in boards.cluster.said("board-third")
        assert list(temporary.iterdir()) == []
        assert not program.is_running() or program.status() == psutil.STATUS_ZOMBIE
        asked.join(60)
        del boards.boards["third"]


def _measured(boards: Boards) -> None:
    """Try to measure a program on a board whose worker is about to end."""
    target = board_on(boards.cluster.address, "third", "extended")
    space = target.space(DENSE)
    lowered = target.lower(DENSE, space.unravel(np.arange(space.size)))
    with pytest.raises(ClusterError, match=r"cannot be used|has had no worker|a call failed"):
        target.measure(lowered.rows(np.flatnonzero(lowered.ok)[:1]))
