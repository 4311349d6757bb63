"""MLflow's SQLite file: creates it whole or not at all, and updates it after a workspace was moved.

MLflow builds the database in some fifty steps that SQLite does not take back together. A command
that is killed or finds its disk full in the middle leaves a file that no later one can open. The
database is therefore built once beside the environment, and every new workspace gets a copy.

MLflow names all places of files by their whole path. It has no call that changes them, and asks for
no relative ones, so `relocate_artifacts` updates its tables
(https://github.com/mlflow/mlflow/issues/3144, https://github.com/mlflow/mlflow/issues/8226).
Otherwise the files of earlier runs would not be found: `tests/services/test_moved_workspace.py`.
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

_KEPT_IN = "/mlflow/artifacts"  # of a workspace, as an address
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)


def provide_mlflow_database(path: Path) -> None:
    """Create an empty database unless there is one. Raises `OSError`."""
    if path.exists():
        return
    with providing(path) as fresh:
        if _template_provided():
            shutil.copyfile(_template(), fresh)
        else:
            _build(fresh)


def _template_provided() -> bool:
    """Whether the template exists, built now if need be; not where the environment is read-only."""
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
        raise OSError(f"MLflow's database cannot be built: {error.orig}") from error
    finally:
        engine.dispose()


def relocate_artifacts(database: Path, artifacts: Path) -> None:
    """Let MLflow look for files in `artifacts` where its database names that folder of a workspace
    elsewhere. A database that cannot be read is left as it is: whoever opens it next reports
    that."""
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
