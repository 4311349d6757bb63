"""Creates MLflow's database, whole or not at all.

MLflow builds it in some fifty steps that SQLite does not take back together. A command that is
killed or finds its disk full in the middle leaves a file that no later one can open. It is
therefore built once beside the environment, and every new workspace gets a copy.
"""

from __future__ import annotations

import logging
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from tilewright.core.files import providing
from tilewright.services.sqlite_address import sqlite_address


def provide_mlflow_database(path: Path) -> None:
    """Put an empty database there unless one is there already. Raises `OSError`."""
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
