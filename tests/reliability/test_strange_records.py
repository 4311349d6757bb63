"""Checks that a stranger's databases of Prefect and MLflow decide nothing.

That is: what is run, where files go, and which server is asked for them.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.cli.test_servers import read_until, stop
from tests.sharing import free_port
from tilewright.services.prefect_server import Login
from tilewright.services.server_process import LOOPBACK

pytestmark = [pytest.mark.nightly(seconds=20), pytest.mark.attack]

TUNE = ("tune", "digits_cnn", "--layers", "conv2", "--trials", "8", "--batch", "8")
COMPARE = (
    "compare", "--tuners", "default", "--network", "digits_cnn", "--workloads", "2", "--trials",
    "24", "--batch", "8", "--seeds", "0", "--jobs", "1",
)  # fmt: skip


def change(place: Place, *statements: str) -> None:
    """Edit MLflow's database as its owner may."""
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0, statement
        database.commit()


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """The address of a server elsewhere, and what it was asked."""
    asked: list[str] = []

    class Asked(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_error(404)

        do_GET = do_PUT = do_POST = _answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Asked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_address[1]}", asked
        server.shutdown()


def test_files_of_runs_and_models_stay_in_the_workspace(
    tmp_path: Path, prefect_server: Login
) -> None:
    """A comparison and its champion, whose places are then said to be others."""
    guest = Place(tmp_path, prefect_server)
    done = guest.run(*COMPARE, "--out", "compared")
    assert done.returncode == 0, done.stderr
    warm = (*TUNE, "--tuner", "default", "--warm-start", "champion")
    with listener() as (address, asked):
        elsewhere = f"'{address}/models'"
        change(
            guest,
            f"update logged_models set artifact_location = {elsewhere}",
            f"update model_versions set source = {elsewhere}, storage_location = {elsewhere}",
        )
        done = guest.run(*warm, "--out", "warm")
        assert done.returncode == 2
        assert f"keep files in {address}/models, outside of" in done.stderr
        assert done.stderr.count("\n") == 1
    assert asked == []
    place = guest.folder / "precious"
    change(guest, f"update experiments set artifact_location = '{place.as_uri()}' "
           "where experiment_id <> 0")  # fmt: skip
    done = guest.run(*TUNE, "--out", "out")
    assert done.returncode == 2
    assert f"keep files in {place.as_uri()}, outside of" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not place.exists()


def test_serve_starts_no_run_that_waited_in_the_records(tmp_path: Path) -> None:
    """One that is due, of this very deployment, with parameters of the stranger's choice."""
    place = Place(tmp_path)
    serve = ("serve", "digits_cnn", "--tuner", "random", "--trials", "2", "--cron", "0 0 1 1 *",
             "--prefect-port", str(free_port()), "--out", "out")  # fmt: skip
    path = place.folder / "home" / "prefect" / "prefect.db"
    first = place.start(*serve)
    try:
        read_until(first, "serving")
        _plant(path, place.folder / "stolen", first)
    finally:
        stop(first)
    assert _planted(path, "update flow_run set next_scheduled_start_time = '2026-01-01 00:00:00'")
    second = place.start(*serve)
    try:
        assert "dropped 1 of the runs" in read_until(second, "dropped")
        assert _planted(path, "update flow_run set name = 'still there'") == 0
        time.sleep(15)  # the runner asks for what is due every ten seconds
        assert not (place.folder / "stolen").exists()
    finally:
        stop(second)


def _plant(path: Path, out: Path, server: subprocess.Popen[str]) -> None:
    """Make one of the schedule's runs a planted one."""
    deadline = time.monotonic() + 120
    options = json.dumps({"options": {"model": "digits_cnn", "tuner": "random", "trials": 2,
                                      "out": str(out)}})  # fmt: skip
    change = f"update flow_run set name = 'planted', auto_scheduled = 0, parameters = '{options}'"
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        while not database.execute(
            f"{change} where id in (select id from flow_run where auto_scheduled limit 1)"
        ).rowcount:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.5)


def _planted(path: Path, change: str) -> int:
    """How many planted runs a change found."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        return database.execute(f"{change} where name = 'planted'").rowcount
