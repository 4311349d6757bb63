"""Checks that damaged files are recomputed, and no file of a run holds a secret."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import TILEWRIGHT, Place
from tests.reliability.commands import TUNE, Whole, left
from tilewright.services.prefect_server import Login
from tilewright.services.server_credentials import workspace_secret
from tilewright.services.server_process import listening_socket
from tilewright.services.workspace import Workspace
from tilewright.tasks.cached_task import RecordSerializer

DAMAGES = ("truncated", "emptied", "replaced")


@pytest.mark.nightly(seconds=15)
@pytest.mark.parametrize("turn", range(len(DAMAGES)))
def test_every_damaged_file_of_a_run_is_noticed_and_made_anew(
    tmp_path: Path, whole: Whole, turn: int, prefect_server: Login
) -> None:
    """Each file in the cache, models included, gets each kind of damage in one of three turns."""
    place = Place(tmp_path / "copy", prefect_server)
    shutil.copytree(whole.place.folder, place.folder)
    marker = tmp_path / "executed"
    files = sorted(path for path in (place.folder / "home" / "cache").rglob("*") if path.is_file())
    stages = {
        "import_model", "extract_subgraphs", "measure_baseline", "retrain_models",
        "verify_schedule", "picture",
    }  # fmt: skip
    assert {path.parent.name for path in files} > stages
    assert len(files) > 40
    for number, path in enumerate(files):
        path.write_bytes(_damaged(path.read_bytes(), DAMAGES[(number + turn) % 3], marker))
    for name in ("summary.json", "schedules.json", "trials.parquet"):
        (place.folder / "out" / name).write_bytes(_pickle(marker))
    done = place.run(*TUNE)
    assert done.returncode == 0, done.stderr
    assert not marker.exists()
    again = left(place)
    assert again.schedules == whole.schedules
    pictures = [item / "out" / "convergence.png" for item in (place.folder, whole.place.folder)]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert again.trials == whole.trials
    made = [path for path in files if _is_whole(path)]
    assert {path.parent.name for path in made} >= stages


SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "hush-7f3a-aws-wJalrXUtnFEMI",
    "AWS_SESSION_TOKEN": "hush-7f3a-session-IQoJb3JpZ2lu",
    "MLFLOW_TRACKING_TOKEN": "hush-7f3a-mlflow-dapi0123",
    "OPENAI_API_KEY": "hush-7f3a-openai-sk-0123",
    "GITHUB_TOKEN": "hush-7f3a-github-ghp-0123",
    "DATABASE_URL": "postgres://me:hush-7f3a-database@db/x",
    "PREFECT_UI_URL": "http://me:hush-7f3a-pages@127.0.0.1:4200",
}


@pytest.mark.nightly(seconds=25)
def test_no_file_of_a_run_holds_a_variable_of_the_environment(tmp_path: Path) -> None:
    """One run finishes, and another one fails with a traceback in its log."""
    place = Place(tmp_path)
    environment = place.environment | SECRETS
    broken = {"MLFLOW_TRACKING_URI": "http://me:hush-7f3a-tracking@127.0.0.1:9",
              "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}  # fmt: skip
    for extra, status in ({}, 0), (broken, 2):
        done = subprocess.run(
            [str(TILEWRIGHT), *TUNE], cwd=tmp_path, env=environment | extra,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert "hush-7f3a" not in done.stdout + done.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"prefect.db", "mlflow.db", "tilewright.log", "summary.json"} <= {f.name for f in files}
    assert [path for path in files if b"hush-7f3a" in path.read_bytes()] == []
    secret = workspace_secret(Workspace(tmp_path / "home")).encode()
    assert [path.name for path in files if secret in path.read_bytes()] == ["secret"]


@pytest.mark.slow(seconds=12)
def test_opening_the_pages_to_others_is_warned_of(tmp_path: Path) -> None:
    with listening_socket("0.0.0.0", 0) as taken:  # so that no port is really opened
        taken.listen()
        port = str(taken.getsockname()[1])
        done = Place(tmp_path).run("ui", "--host", "0.0.0.0", "--prefect-port", port)
    warning, error = done.stderr.splitlines()
    assert warning.startswith("warning: everyone who can reach 0.0.0")
    assert "the connection is not encrypted" in warning
    assert error.startswith(f"error: cannot listen on 0.0.0.0:{port}: ")


# -- damage and manifests ----------------------------------------------------------------------


def _damaged(data: bytes, damage: str, marker: Path) -> bytes:
    if damage == "truncated":
        return data[: len(data) // 2]
    if damage == "emptied":
        return b""
    return _pickle(marker)


def _pickle(marker: Path) -> bytes:
    """Return a pickle that creates a marker file if any process loads it."""
    return b"cos\nsystem\n(S'touch " + os.fsencode(marker) + b"'\ntR."


def _is_whole(path: Path) -> bool:
    with suppress(Exception):
        RecordSerializer().loads(json.loads(path.read_bytes())["result"].encode())
        return True
    return False
