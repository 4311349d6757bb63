"""Retention of a workspace's data: removal of cached stages that were not used for 30 days.

A cached file counts as used when it was written or last read. On a disk that does not record read
times (`noatime`), only the time of writing counts.

MLflow runs are kept until the user deletes them. Prefect's server deletes flow runs after 90 days
and events after a week (`prefect_mlflow_settings`).
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
"""Number of days after which an unused cached result is removed automatically."""
_LOOKED = "pruned"
_BUSY_SECONDS = 2.0


@dataclass(frozen=True)
class UnusedCache:
    """Files of a cache folder that no command has used since a given time.

    Attributes:
        root: the cache folder.
        before: the time, in seconds since the epoch.
        files: the unused files.
        size: total size of the unused files in bytes.
        whole: total size of all files of the cache in bytes.
    """

    root: Path
    before: float
    files: tuple[Path, ...]
    size: int
    whole: int

    def remove(self) -> int:
        """Remove the files that are still unused. Return the number of freed bytes."""
        freed = 0
        for path in self.files:
            if _last_used(path) >= self.before:
                continue  # another command has just used it
            with suppress(OSError):
                size = _size(path)
                remove(path)
                freed += size
        return freed


def unused_cache(workspace: Workspace, before: float) -> UnusedCache:
    """Find the files of a workspace's cache that were not used since a given time.

    Nothing is removed.

    Args:
        workspace: the workspace.
        before: the time, in seconds since the epoch.

    Returns:
        The unused files, with their sizes.
    """
    root = workspace.cache
    files = sorted(path for path in root.rglob("*") if path.is_file() and path != root / _LOOKED)
    old = [path for path in files if _last_used(path) < before]
    size, whole = (sum(map(_size, some)) for some in (old, files))
    return UnusedCache(root, before, tuple(old), size, whole)


def prune_daily(workspace: Workspace) -> None:
    """Remove cached stages that were not used for `UNUSED_DAYS`, at most once a day."""
    looked = workspace.cache / _LOOKED
    now = time.time()
    if not workspace.cache.is_dir() or _last_used(looked) > now - DAY:
        return
    with suppress(OSError):
        looked.touch()
        unused_cache(workspace, now - UNUSED_DAYS * DAY).remove()


def compact_database(database: Path) -> int | None:
    """Shrink an SQLite file by returning its unused pages to the file system.

    Returns:
        The number of freed bytes. None if the file does not exist or SQLite fails, for example
        because another process uses the file, it is not a database, or the disk is full.
    """
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


def _last_used(path: Path) -> float:
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
