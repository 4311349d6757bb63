"""Tests what a workspace forgets: cached stages that nothing finds again, and free pages."""

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
from tilewright.tasks.artifact_store import Manifest, Store


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """One with stages `old` and `new` in its cache, both of 40 days ago, that share a data file."""
    found = Workspace(tmp_path / "workspace")
    store = Store(found.cache)
    shared, own = (store.put(data, bytes, ".npz") for data in (b"shared", b"own"))
    store.save(Manifest("stage", "a" * 32, {}, {"one": shared, "two": own}))
    store.save(Manifest("stage", "b" * 32, {}, {"one": shared}))
    for path in found.cache.rglob("*.*"):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    return found


def names(workspace: Workspace) -> list[str]:
    return sorted(path.read_bytes().decode() for path in workspace.cache.glob("data/*"))


def test_what_is_found_again_stays_with_the_data_it_names(workspace: Workspace) -> None:
    assert Store(workspace.cache).find("stage", "b" * 32) is not None
    unused = unused_cache(workspace, time.time() - 30 * DAY)
    assert unused.remove() == unused.size > 0
    assert names(workspace) == ["shared"]
    assert Store(workspace.cache).find("stage", "b" * 32) is not None
    assert Store(workspace.cache).find("stage", "a" * 32) is None


def test_what_is_as_old_as_asked_goes_and_a_dry_look_removes_nothing(workspace: Workspace) -> None:
    assert unused_cache(workspace, time.time() - 50 * DAY).files == ()
    unused = unused_cache(workspace, time.time() - 30 * DAY)
    assert len(unused.files) == 4
    assert unused.size == unused.whole
    assert names(workspace) == ["own", "shared"]


def test_what_is_used_between_a_look_and_its_removal_stays(workspace: Workspace) -> None:
    unused = unused_cache(workspace, time.time() - 30 * DAY)
    store = Store(workspace.cache)
    assert store.find("stage", "b" * 32) is not None
    store.put(b"shared", bytes, ".npz")
    unused.remove()
    assert names(workspace) == ["shared"]
    assert Store(workspace.cache).find("stage", "b" * 32) is not None


def test_a_cache_is_pruned_once_a_day(workspace: Workspace) -> None:
    prune_daily(workspace)
    assert names(workspace) == []
    Store(workspace.cache).put(b"later", bytes, ".npz")
    (later,) = workspace.cache.glob("data/*")
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
