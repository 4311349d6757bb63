"""Tests `tilewright clean` on a workspace that a run has written to."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest

from tests.cli.conftest import Place


@pytest.mark.nightly(seconds=20)
def test_old_stages_and_records_go_once_that_is_asked_for(place: Place) -> None:
    command = ("tune", "digits_cnn", "--layers", "fc", "--trials", "2", "--tuner", "random")
    assert place.run(*command, "--out", "out").returncode == 0
    home = place.folder / "home"
    for path in (home / "cache").rglob("*.*"):
        os.utime(path, (0, 0))
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as records:
        runs = records.execute("update flow_run set end_time = '2001-01-01 00:00:00'").rowcount
        records.commit()
    looked = place.run("clean")
    assert f"Prefect        {runs} runs that ended" in looked.stdout, looked.stderr
    assert "repeat the command with --yes" in looked.stdout
    assert list((home / "cache").glob("data/*"))
    cleaned = place.run("clean", "--yes")
    assert "given back" in cleaned.stdout, cleaned.stderr
    assert not list((home / "cache").glob("data/*"))
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as records:
        assert records.execute("select count(*) from flow_run").fetchone() == (0,)
