"""Tests how the database tables of an earlier trial store are upgraded."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.reliability.postgres import postgres
from tests.reliability.stored_runs import TRIALS, tune_into
from tests.trial_tables import frame, rows, tables
from tilewright.core.formats import TRIAL_STORE
from tilewright.search import TrialStore, TrialStoreError, open_store
from tilewright.search import trial_store as module
from tilewright.search.trial_store import FILE

RECORDED = Path(__file__).parents[1] / "data" / "trial_store"
ADDS_A_COLUMN = ("ALTER TABLE trials ADD COLUMN joules DOUBLE PRECISION",)
FAILS_HALFWAY = (*ADDS_A_COLUMN, "UPDATE no_such_table SET joules = 0")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return an output directory with a database of table version 1."""
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript((RECORDED / "version-1.sql").read_text())
    return tmp_path


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make this program one that writes the next table version."""
    written = TRIAL_STORE.written + 1
    changed = replace(TRIAL_STORE, written=written, read=(*TRIAL_STORE.read, written))
    monkeypatch.setattr(module, "TRIAL_STORE", changed)
    monkeypatch.setattr(module, "MIGRATIONS", {**module.MIGRATIONS, written: ADDS_A_COLUMN})
    return monkeypatch


def schema(folder: Path) -> dict[str, str]:
    """Return the SQL statements that create a database's tables, with uniform white space."""
    result = rows(folder, "select name, sql from sqlite_master where sql is not null")
    return {row["name"]: re.sub(r"\s+", " ", row["sql"]) for row in result}


def version(folder: Path) -> str:
    return str(rows(folder, "select value from trial_store where name = 'version'")[0]["value"])


def test_every_version_that_is_read_is_recorded_and_has_a_migration() -> None:
    assert {f"version-{number}.sql" for number in TRIAL_STORE.read} == {
        path.name for path in RECORDED.iterdir()
    }
    assert set(module.MIGRATIONS) == set(TRIAL_STORE.read) - {1}


def test_a_database_of_version_1_ends_like_a_new_one(recorded: Path, tmp_path: Path) -> None:
    before = rows(recorded, "select config, cycles from trials order by id")
    with open_store(recorded) as store:
        assert store.frame()["cycles"].tolist() == [row["cycles"] for row in before]
    with TrialStore(tmp_path / "new" / FILE):
        pass
    assert schema(recorded) == schema(tmp_path / "new")
    assert version(recorded) == str(TRIAL_STORE.written)


@pytest.mark.usefixtures("next_version")
def test_a_migration_is_applied_once(recorded: Path) -> None:
    before = tables(recorded)["trials"]  # reading migrates the tables too
    for _ in range(2):  # the statement would fail the second time
        with open_store(recorded) as store:
            assert store.version == TRIAL_STORE.written + 1
            assert len(store.frame()) == TRIALS
    assert version(recorded) == str(TRIAL_STORE.written + 1)
    assert "joules" in schema(recorded)["trials"]
    assert tables(recorded)["trials"] == before


def test_a_migration_that_fails_changes_nothing(
    recorded: Path, next_version: pytest.MonkeyPatch
) -> None:
    next_version.setattr(
        module, "MIGRATIONS", {**module.MIGRATIONS, TRIAL_STORE.written + 1: FAILS_HALFWAY}
    )
    before = schema(recorded)
    with pytest.raises(TrialStoreError, match="no such table: no_such_table"):
        TrialStore(recorded / FILE)
    assert (schema(recorded), version(recorded)) == (before, "1")


def test_the_program_before_a_migration_refuses_the_database_after_it(recorded: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written = TRIAL_STORE.written + 1
        patch.setattr(module, "TRIAL_STORE", replace(TRIAL_STORE, written=written))
        patch.setattr(module, "MIGRATIONS", {**module.MIGRATIONS, written: ADDS_A_COLUMN})
        TrialStore(recorded / FILE).close()
    refused = rf"trials\.sqlite is a trial database of version {written}, this program reads 1"
    for opens in (lambda: TrialStore(recorded / FILE), lambda: frame(recorded)):
        with pytest.raises(TrialStoreError, match=refused):
            opens()


@pytest.mark.nightly(seconds=10)
def test_a_postgresql_database_migrates_once_and_not_by_half(
    next_version: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = TRIAL_STORE.written + 1
    with postgres() as url:
        with next_version.context() as older:
            older.setattr(module, "TRIAL_STORE", TRIAL_STORE)
            with TrialStore(url, "first") as store:
                tune_into(store)
                before = tables(store)
        with next_version.context() as faulty:
            faulty.setattr(module, "MIGRATIONS", {**module.MIGRATIONS, written: FAILS_HALFWAY})
            with pytest.raises(TrialStoreError, match="no_such_table"):
                TrialStore(url, "first")
        for _ in range(2):
            with TrialStore(url, "first") as store:
                assert tables(store) == before
        with TrialStore(url, "first") as store, store.read_snapshot() as connection:
            columns = {column["name"] for column in sa.inspect(connection).get_columns("trials")}
            assert "joules" in columns
            assert store.version == written
