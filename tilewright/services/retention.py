"""How long a workspace keeps what: removes stages of the cache that were not used for 30 days.

A file of the cache counts as used when it was written or last read. A disk that does not record
when files are read (`noatime`) counts from when they were written. Runs in MLflow are kept until
the user deletes them. Prefect's server forgets flow runs after 90 days and events after a week
(`prefect_mlflow_settings`).
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.core.files import remove
from tilewright.services.workspace import Workspace

DAY = 86_400.0
UNUSED_DAYS = 30.0
"""Days after which a cached stage that was not found again is removed by itself."""
_LOOKED = "pruned"
_BUSY_SECONDS = 2.0


@dataclass(frozen=True)
class UnusedCache:
    """Files of a cache folder that no stage used since `before` (seconds of the epoch); sizes in
    bytes."""

    root: Path
    before: float
    files: tuple[Path, ...]
    size: int
    whole: int

    def remove(self) -> int:
        """Remove the files that are still unused. Return how many bytes that freed."""
        freed = 0
        for path in self.files:
            if _used(path) >= self.before:
                continue  # another command has just found it
            with suppress(OSError):
                size = _size(path)
                remove(path)
                freed += size
        return freed


def unused_cache(workspace: Workspace, before: float) -> UnusedCache:
    """Find what no stage used since `before` (seconds of the epoch)."""
    root = workspace.cache
    files = sorted(path for path in root.rglob("*") if path.is_file() and path != root / _LOOKED)
    old = [path for path in files if _used(path) < before]
    size, whole = (sum(map(_size, some)) for some in (old, files))
    return UnusedCache(root, before, tuple(old), size, whole)


def prune_daily(workspace: Workspace) -> None:
    """Remove cached stages that were not used for `UNUSED_DAYS`, unless that was done today."""
    looked = workspace.cache / _LOOKED
    now = time.time()
    if not workspace.cache.is_dir() or _used(looked) > now - DAY:
        return
    with suppress(OSError):
        looked.touch()
        unused_cache(workspace, now - UNUSED_DAYS * DAY).remove()


def compact_database(database: Path) -> int | None:
    """Give free pages of an SQLite file back to the disk. Return the bytes that this freed, or None
    if another process uses the file, or it is no database."""
    if not database.is_file():
        return None
    before = _size(database) + _size(Path(f"{database}-wal"))
    try:
        with closing(sqlite3.connect(database, timeout=_BUSY_SECONDS)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:
        return None
    return max(0, before - _size(database) - _size(Path(f"{database}-wal")))


def _used(path: Path) -> float:
    try:
        state = path.stat()
        return max(state.st_atime, state.st_mtime)
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
