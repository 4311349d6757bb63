"""Reads and changes the trials of an output directory."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy as sa

from tilewright.search import TrialStore, read_store
from tilewright.search.trial_store import FILE, ROUNDS, RUNS, TRIALS, VALIDATIONS


def frame(folder: Path) -> pd.DataFrame:
    """Return the trials of an output directory, or none if it has no database yet."""
    try:
        with read_store(folder) as store:
            return store.frame()
    except FileNotFoundError:
        return pd.DataFrame(columns=["workload", "config"])


def tables(place: Path | TrialStore) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of finished runs, in the order of the runs, without IDs.

    Equal runs have equal tables.
    """
    if isinstance(place, Path):
        with read_store(place) as store:
            return tables(store)
    result = {}
    with place.read_snapshot() as connection:
        for table in (TRIALS, ROUNDS, VALIDATIONS):
            columns = [column for column in table.c if column.name not in ("id", "run_id")]
            names = (RUNS.c.workload, RUNS.c.target, RUNS.c.run)
            order = [table.c[name] for name in ("round", "slot") if name in table.c] or [table.c.id]
            rows = (
                sa.select(*names, *columns).join(RUNS, table.c.run_id == RUNS.c.id)
                .where(table.c.rejected.is_(None), RUNS.c.folder == place.folder)
                .order_by(RUNS.c.id, *order)
            )  # fmt: skip
            result[table.name] = [tuple(row) for row in connection.execute(rows)]
    return result


def rows(folder: Path, query: str, *values: object) -> list[dict[str, Any]]:
    """Run SQL on the trials of a folder that no process uses. Changes are committed."""
    with closing(sqlite3.connect(folder / FILE)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(query, values)]
        connection.commit()
    return rows
