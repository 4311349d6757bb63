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
from tilewright.services.workspace import Home

COLUMNS = (
    ("experiments", "artifact_location"), ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"), ("model_versions", "storage_location"),
    ("model_versions", "source"),
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """With an experiment, a run, and a model of two kinds, all in its own folder."""
    found = Home(tmp_path / "a b#c%d")
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


def run(home: Home, *statements: str) -> None:
    with closing(sqlite3.connect(home.mlflow_database)) as database, database:
        database.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            assert database.execute(statement).rowcount == 1


def say(home: Home, table: str, column: str, address: str) -> None:
    quoted = address.replace("'", "''")
    which = " WHERE experiment_id = 7" if table == "experiments" else ""
    run(home, f"UPDATE {table} SET {column} = '{quoted}'{which}")


def check(home: Home) -> None:
    check_places(home.mlflow_database, home.mlflow_artifacts)


def test_the_workspace_is_a_place_and_so_is_what_mlflow_looks_up_itself(home: Home) -> None:
    check(home)
    for address in (
        f"{home.mlflow_artifacts.as_uri()}/x/artifacts", str(home.mlflow_artifacts / "x"),
        "models:/m-1", "runs:/1/model", "mlflow-artifacts:/x",
    ):  # fmt: skip
        say(home, "model_versions", "source", address)
        check(home)


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
def test_elsewhere_is_not(home: Home, address: str) -> None:
    artifacts = home.mlflow_artifacts
    (artifacts / "link").symlink_to("/etc")
    for table, column in COLUMNS:
        check(home)
        say(home, table, column, address.format(uri=artifacts.as_uri(), path=artifacts))
        with pytest.raises(ArtifactPlaceError, match="outside of") as caught:
            check(home)
        assert str(caught.value).isprintable()
        say(home, table, column, artifacts.as_uri())


def test_what_is_no_database_is_left_to_who_opens_it(home: Home) -> None:
    home.mlflow_database.write_bytes(b"no database, but long enough to be taken for one" * 100)
    check(home)
