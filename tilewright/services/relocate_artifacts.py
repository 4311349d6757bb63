"""Updates MLflow's database after a workspace was moved or copied: it names all places of files by
their whole path.

MLflow has no call that changes them, and asks for no relative ones: so its tables are updated here
(https://github.com/mlflow/mlflow/issues/3144, https://github.com/mlflow/mlflow/issues/8226).
Without it the files of earlier runs are not found: `tests/services/test_moved_workspace.py`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_KEPT_IN = "/mlflow/artifacts"  # of a workspace, as an address
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)


def relocate(database: Path, artifacts: Path) -> None:
    """Have MLflow look for files in `artifacts` where it looks in that folder of a workspace
    elsewhere. A database that cannot be read is left to who opens it next, and says so."""
    here = artifacts.as_uri()
    try:
        with closing(sqlite3.connect(database)) as connection:
            known = connection.execute("SELECT DISTINCT artifact_location FROM experiments")
            for (place,) in known.fetchall():
                if isinstance(place, str) and place.endswith(_KEPT_IN) and place != here:
                    _replace(connection, place, here)
    except sqlite3.DatabaseError:
        return


def _replace(connection: sqlite3.Connection, before: str, now: str) -> None:
    with connection:
        for table, column in _PLACES:
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                (now, len(before) + 1, before, len(before) + 1, f"{before}/"),
            )
