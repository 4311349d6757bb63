"""Checks that a workspace still finds its files after it was moved."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tilewright.services.mlflow_database import provide_mlflow_database, relocate_artifacts
from tilewright.services.workspace import Workspace


def _made(workspace: Path, place: str) -> Path:
    """Make an MLflow database with an experiment, a run and a model at `place`.

    A second experiment keeps its files elsewhere.
    """
    (workspace / "mlflow" / "artifacts").mkdir(parents=True)
    database = workspace / "mlflow" / "mlflow.db"
    provide_mlflow_database(database)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.executemany(
            "INSERT INTO experiments (experiment_id, name, artifact_location, workspace) "
            "VALUES (?, ?, ?, 'default')",
            [(7, "ours", place), (8, "other", "s3://bucket/artifacts")],
        )
        connection.execute(
            "INSERT INTO runs (run_uuid, experiment_id, artifact_uri) VALUES ('r', 7, ?)",
            (f"{place}/r/artifacts",),
        )
    return database


def _places(database: Path) -> set[str]:
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT artifact_location FROM experiments WHERE experiment_id > 6 "
            "UNION SELECT artifact_uri FROM runs"
        )
        return {place for (place,) in rows}


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_it_names_its_new_place(tmp_path: Path, how: object) -> None:
    old, new = tmp_path / "old", tmp_path / "new ?"
    _made(old, (old / "mlflow" / "artifacts").as_uri())
    assert callable(how)
    how(old, new)
    artifacts = new / "mlflow" / "artifacts"
    for _ in range(2):
        relocate_artifacts(new / "mlflow" / "mlflow.db", artifacts)
        here = artifacts.as_uri()
        assert _places(new / "mlflow" / "mlflow.db") == {
            here, f"{here}/r/artifacts", "s3://bucket/artifacts",
        }  # fmt: skip


@pytest.mark.slow(seconds=4)
def test_mlflow_finds_files_of_earlier_runs_then_and_not_without(tmp_path: Path) -> None:
    """Without `relocate_artifacts`, MLflow does not find the files."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    old, new = Workspace(tmp_path / "old"), Workspace(tmp_path / "new")
    old.mlflow_artifacts.mkdir(parents=True)
    provide_mlflow_database(old.mlflow_database)
    client = MlflowClient(old.mlflow_address)
    place = old.mlflow_artifacts.as_uri()
    run = client.create_run(client.create_experiment("ours", place)).info.run_id
    client.log_text(run, "kept", "note.txt")
    shutil.move(old.root, new.root)

    moved = MlflowClient(new.mlflow_address)
    with pytest.raises((MlflowException, OSError)):
        moved.download_artifacts(run, "note.txt", str(tmp_path))
    relocate_artifacts(new.mlflow_database, new.mlflow_artifacts)
    artifacts = moved.download_artifacts(run, "note.txt", str(tmp_path))
    assert Path(artifacts).read_text() == "kept"


def test_what_is_no_database_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    database.write_bytes(b"no database, but long enough to be taken for one" * 100)
    before = database.read_bytes()
    relocate_artifacts(database, tmp_path / "artifacts")
    assert database.read_bytes() == before
