"""Shared helpers for tests of whole commands: a short tuning run, its files and its records."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import warm
from tests.cli.conftest import Place
from tests.trial_tables import frame, tables

ROOT = Path(__file__).parents[2]
LAYERS = ("conv2", "conv3", "fc")
TUNE = ("tune", "digits_cnn", "--layers", ",".join(LAYERS), "--tuner", "ml2tuner-published",
        "--trials", "16", "--batch", "8", "--seed", "7", "--out", "out")  # fmt: skip
WORKLOADS, TRIALS, BATCH = len(LAYERS), 16, 8


@dataclass(frozen=True)
class Whole:
    """The results of an uninterrupted run."""

    trials: dict[str, list[tuple[Any, ...]]]
    schedules: bytes
    place: Place = field(compare=False)


def left(place: Place) -> Whole:
    out = place.folder / "out"
    return Whole(tables(out), (out / "schedules.json").read_bytes(), place)


def killed(place: Place, kill_at: int, command: Sequence[str] = TUNE) -> int:
    """Run a command that is killed at a write boundary. Return its exit status."""
    environment = place.environment | {"PYTHONPATH": str(ROOT)}
    return warm.run(
        [str(kill_at), "notes", "out", "home/cache", "--", *command], place.folder, environment,
        timeout=300, module="tests.reliability.killed_command",
    ).returncode  # fmt: skip


def recorded(place: Place) -> int:
    """Return the number of trials so far."""
    return len(frame(place.folder / "out"))


def prefect_states(place: Place, table: str) -> Counter[str]:
    with closing(sqlite3.connect(place.folder / "home" / "prefect" / "prefect.db")) as database:
        return Counter(name for (name,) in database.execute(f"select state_name from {table}"))


def mlflow(place: Place) -> tuple[Counter[str], list[tuple[str, str, int, int]]]:
    """Return the number of MLflow runs by status, and the count of each logged metric step."""
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        runs = Counter(status for (status,) in database.execute("select status from runs"))
        steps = database.execute(
            "select run_uuid, key, step, count(*) from metrics group by run_uuid, key, step"
        ).fetchall()
    return runs, steps


def wait_for(condition: Callable[[], bool], command: subprocess.Popen[str] | warm.Started) -> None:
    deadline = time.monotonic() + 900
    while not condition():
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Lock a database exclusively from another process while the context is open."""
    program = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1], timeout=60);"
        "database.execute('begin exclusive'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        try:
            yield path
        finally:
            holder.communicate()
