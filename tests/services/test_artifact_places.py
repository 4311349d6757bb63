"""Tests where files of runs and models may be, whatever MLflow's database says.

`tests/reliability/test_strange_records.py` tests what commands do then.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tilewright.services.artifact_places import ArtifactPlaceError, check_places
from tilewright.services.mlflow_database import provide_mlflow_database
from tilewright.services.workspace import Workspace

COLUMNS = (
    ("experiments", "artifact_location"), ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"), ("model_versions", "storage_location"),
    ("model_versions", "source"),
)  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """With an experiment, a run, and a model of two kinds, all in its own folder."""
    found = Workspace(tmp_path / "a b#c%d")
    found.mlflow_artifacts.mkdir(parents=True)
    provide_mlflow_database(found.mlflow_database)
    place = found.mlflow_artifacts.as_uri()
    run(
        found,
        "INSERT INTO experiments (experiment_id, name, artifact_location, workspace) "
        f"VALUES (7, 'ours', '{place}', 'default')",
        f"INSERT INTO runs (run_uuid, experiment_id, artifact_uri) VALUES ('r', 7, '{place}/r')",
        "INSERT INTO logged_models (model_id, experiment_id, name, artifact_location, "
        "creation_timestamp_ms, last_updated_timestamp_ms, status) "
        f"VALUES ('m', 7, 'm', '{place}/models/m', 0, 0, 0)",
        "INSERT INTO model_versions (name, version, source, storage_location, workspace) "
        f"VALUES ('x', 1, 'models:/m', '{place}/models/m', 'default')",
    )
    return found


def run(workspace: Workspace, *statements: str) -> None:
    with closing(sqlite3.connect(workspace.mlflow_database)) as database, database:
        database.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            assert database.execute(statement).rowcount == 1


def say(workspace: Workspace, table: str, column: str, address: str) -> None:
    quoted = address.replace("'", "''")
    which = " WHERE experiment_id = 7" if table == "experiments" else ""
    run(workspace, f"UPDATE {table} SET {column} = '{quoted}'{which}")


def check(workspace: Workspace) -> None:
    check_places(workspace.mlflow_database, workspace.mlflow_artifacts)


def test_the_workspace_is_a_place_and_so_is_what_mlflow_looks_up_itself(
    workspace: Workspace,
) -> None:
    check(workspace)
    for address in (
        f"{workspace.mlflow_artifacts.as_uri()}/x/artifacts", str(workspace.mlflow_artifacts / "x"),
        "models:/m-1", "runs:/1/model", "mlflow-artifacts:/x",
    ):  # fmt: skip
        say(workspace, "model_versions", "source", address)
        check(workspace)


@pytest.mark.attack
@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/x", "http://127.0.0.1:9/x", "ftp://host/x", "dbfs:/x", "mlflow-artifacts://host/x",
        "file:///etc", "file://host/etc", "FILE:///etc", "/etc", "../x", "x", "file:x", "c:/x", "",
        "{uri}/../../../x", "{uri}/%2e%2e/%2e%2e/%2e%2e/x", "{path}/%2e%2e/%2e%2e/%2e%2e/x",
        "{path}/../../../x", "{uri}/link", "\x1b]0;x\x07",
    ],
)  # fmt: skip
def test_elsewhere_is_not(workspace: Workspace, address: str) -> None:
    artifacts = workspace.mlflow_artifacts
    (artifacts / "link").symlink_to("/etc")
    for table, column in COLUMNS:
        check(workspace)
        say(workspace, table, column, address.format(uri=artifacts.as_uri(), path=artifacts))
        with pytest.raises(ArtifactPlaceError, match="outside of") as caught:
            check(workspace)
        assert str(caught.value).isprintable()
        say(workspace, table, column, artifacts.as_uri())


def test_what_is_no_database_is_left_to_who_opens_it(workspace: Workspace) -> None:
    workspace.mlflow_database.write_bytes(b"no database, but long enough to be taken for one" * 100)
    check(workspace)
