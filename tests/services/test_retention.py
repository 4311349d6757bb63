"""Tests the cleaning of a workspace: old cached stages, and free pages of databases."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tilewright.services import retention
from tilewright.services.retention import DAY, compact_database, prune_daily, unused_cache
from tilewright.services.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace with the cached files `old` and `new`, both 40 days old."""
    workspace = Workspace(tmp_path / "workspace")
    for name in ("old", "new"):
        path = workspace.cache / "stage" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    return workspace


def read(path: Path) -> None:
    """Update the access time of a file, as reading it does."""
    os.utime(path, (time.time(), path.stat().st_mtime))


def names(workspace: Workspace) -> list[str]:
    return sorted(path.name for path in workspace.cache.rglob("*") if path.parent.name == "stage")


def test_what_was_read_again_stays(workspace: Workspace) -> None:
    read(workspace.cache / "stage" / "new")
    unused = unused_cache(workspace, time.time() - 30 * DAY)
    assert (unused.remove(), unused.whole) == (3, 6)
    assert names(workspace) == ["new"]


def test_what_is_as_old_as_asked_goes_and_a_dry_look_removes_nothing(workspace: Workspace) -> None:
    assert unused_cache(workspace, time.time() - 50 * DAY).files == ()
    unused = unused_cache(workspace, time.time() - 30 * DAY)
    assert len(unused.files) == 2
    assert unused.size == unused.whole
    assert names(workspace) == ["new", "old"]


def test_what_is_used_between_a_look_and_its_removal_stays(workspace: Workspace) -> None:
    unused = unused_cache(workspace, time.time() - 30 * DAY)
    read(workspace.cache / "stage" / "new")
    unused.remove()
    assert names(workspace) == ["new"]


def test_a_cache_is_pruned_once_a_day(workspace: Workspace) -> None:
    prune_daily(workspace)
    assert names(workspace) == []
    later = workspace.cache / "stage" / "later"
    later.write_text("later")
    os.utime(later, (0, 0))
    prune_daily(workspace)
    assert names(workspace) == ["later"]
    os.utime(workspace.cache / "pruned", (0, 0))
    prune_daily(workspace)
    assert names(workspace) == []


def test_pages_without_records_go_back_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BUSY_SECONDS", 0.1)
    database = tmp_path / "records.db"
    assert compact_database(database) is None
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("create table t as select randomblob(1000000) as x")
        connection.execute("drop table t")
        before = database.stat().st_size
        connection.execute("begin immediate")
        assert compact_database(database) is None, "another process writes"
        connection.execute("rollback")
    assert compact_database(database) == before - database.stat().st_size > 900_000
