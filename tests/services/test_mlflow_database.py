"""Checks that MLflow's database is created completely or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly(seconds=8)

PROVIDE = """
import sys
from pathlib import Path
from tilewright.services import mlflow_database as subject
subject._template = lambda: Path(sys.argv[1])
subject.provide_mlflow_database(Path(sys.argv[2]))
"""
KILLED = """
import os, signal, sqlalchemy.engine
steps = 0
def step(*_):
    global steps
    steps += 1
    if steps == 200:
        os.kill(os.getpid(), signal.SIGKILL)
import sqlalchemy.event
sqlalchemy.event.listen(sqlalchemy.engine.Engine, "before_cursor_execute", step)
"""
USE = """
import sys
from mlflow.tracking import MlflowClient
client = MlflowClient(f"sqlite:///{sys.argv[1]}")
run = client.create_run(client.create_experiment("e"))
client.log_metric(run.info.run_id, "m", 1.0)
"""


def _run(program: str, *arguments: Path) -> int:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], env=os.environ, capture_output=True
    ).returncode


def test_one_killed_while_it_is_built_is_built_again(tmp_path: Path) -> None:
    template, path = tmp_path / "template.db", tmp_path / "mlflow.db"
    assert _run(KILLED + PROVIDE, template, path) == -signal.SIGKILL
    assert not template.exists()
    assert not path.exists()
    assert _run(PROVIDE, template, path) == 0
    assert template.read_bytes() == path.read_bytes()
    assert _run(USE, path) == 0


def test_an_environment_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "mlflow.db"
    assert _run(PROVIDE, tmp_path / "file" / "template.db", path) == 0
    before = path.read_bytes()
    assert _run(PROVIDE, tmp_path / "file" / "template.db", path) == 0
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file", path]
