"""MLflow's SQLite file: functions that create it atomically and update it after a workspace moved.

MLflow creates the database in about fifty steps, and SQLite does not roll them back together. A
command that is killed or runs out of disk space halfway would leave a file that no later command
can open. The database is therefore created once, beside the Python environment, as a template. Each
new workspace gets a copy.

MLflow stores absolute paths of files. It supports no relative paths and has no function to change
the stored ones (https://github.com/mlflow/mlflow/issues/3144,
https://github.com/mlflow/mlflow/issues/8226). After a workspace was moved, MLflow would not find
the files of earlier runs, so `relocate_artifacts` updates the tables
(`tests/services/test_moved_workspace.py`).
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from tilewright.core.database_url import sqlite_address
from tilewright.core.files import providing

_KEPT_IN = "/mlflow/artifacts"  # end of an artifact location in a workspace
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)


def provide_mlflow_database(path: Path) -> None:
    """Create an empty MLflow database if the file does not exist. Raise `OSError` if that fails."""
    if path.exists():
        return
    with providing(path) as fresh:
        if _template_provided():
            shutil.copyfile(_template(), fresh)
        else:
            _build(fresh)


def _template_provided() -> bool:
    """Build the template database if it is missing. Return False if it cannot be written."""
    template = _template()
    try:
        if not template.exists():
            with providing(template) as fresh:
                _build(fresh)
    except OSError:
        return False
    return True


def _template() -> Path:
    return Path(sys.prefix) / "share" / "tilewright" / f"mlflow-{version('mlflow')}.db"


def _build(path: Path) -> None:
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine
    from sqlalchemy.exc import OperationalError

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    path.unlink(missing_ok=True)
    engine = create_engine(sqlite_address(path))
    try:
        _initialize_tables(engine)  # type: ignore[no-untyped-call]
    except OperationalError as error:
        raise OSError(f"cannot create MLflow's database: {error.orig}") from error
    finally:
        engine.dispose()


def relocate_artifacts(database: Path, artifacts: Path) -> None:
    """Update the artifact locations in MLflow's database after the workspace was moved.

    A database that cannot be read is left unchanged. The next program that opens it reports the
    problem.

    Args:
        database: MLflow's SQLite file.
        artifacts: current folder of the artifacts.
    """
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
