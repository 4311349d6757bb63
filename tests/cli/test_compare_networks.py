"""Tests `tilewright compare NETWORK`: killed, repeated, and recorded below one MLflow run."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from tests import warm
from tests.cli.conftest import Place
from tests.trial_tables import frame, tables
from tilewright.evaluation.compare.record import RECORD
from tilewright.evaluation.row_cache import RUNS
from tilewright.tuning.output_dir import STORE

SWEEP_DIGITS = ("compare", "digits_cnn", "--layers", "fc", "--trials", "16", "--batch", "4",
                "--tuners", "random,ml2tuner-published", "--out", "out")  # fmt: skip


def _wait_for(victim: warm.Started, enough: Any) -> None:
    deadline = time.monotonic() + 300
    while victim.poll() is None and not enough() and time.monotonic() < deadline:
        time.sleep(0.02)


def _mlflow(place: Place, question: str) -> list[Any]:
    with closing(sqlite3.connect(place.folder / "home" / "mlflow" / "mlflow.db")) as database:
        return database.execute(question).fetchall()


@pytest.mark.nightly(seconds=25)
def test_a_killed_sweep_goes_on_and_repeats_nothing(guest: Place) -> None:
    out = guest.folder / "out"
    second = out / "digits_cnn" / "vta-pynq" / "ml2tuner-published" / "seed-0"
    victim = guest.fork(*SWEEP_DIGITS, "--seeds", "0-1")
    _wait_for(victim, lambda: len(frame(second)) > 2)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    assert (out / RUNS).read_bytes().count(b"\n") == 1
    assert not (out / RECORD).exists()
    stored = {path.parent: tables(path.parent) for path in out.rglob(STORE)}
    first = out / "digits_cnn" / "vta-pynq" / "random" / "seed-0"
    kept = {path: path.read_bytes() for path in first.iterdir() if path.is_file()}

    done = guest.run(*SWEEP_DIGITS, "--seeds", "0-1")
    assert done.returncode == 0, done.stderr
    assert "4 runs, 1 of them is already finished" in done.stdout
    assert "[1/4]" not in done.stdout
    assert done.stdout.count("digits_cnn on vta-pynq, ml2tuner-published, seed 0: ") == 1
    assert {path: path.read_bytes() for path in kept} == kept
    for path, before in stored.items():
        kept = before["trials"]  # measured trials are kept
        assert tables(path)["trials"][: len(kept)] == kept

    document = guest.json(f"out/{RECORD}")
    assert [(run["tuner"], run["seed"]) for run in document["runs"]] == [
        ("random", 0), ("ml2tuner-published", 0), ("random", 1), ("ml2tuner-published", 1),
    ]  # fmt: skip
    assert all(run["trials"] == 16 for run in document["runs"])
    assert all(f"{run['tuned_cycles']:,}" in done.stdout for run in document["runs"])

    parents = "select run_uuid, value from tags where key = 'mlflow.parentRunId'"
    above = dict(_mlflow(guest, parents))
    runs = {run["mlflow_run_id"] for run in document["runs"]}
    (sweep,) = {above[run] for run in runs}
    assert {run for run, parent in above.items() if parent == sweep} == runs
    assert len(above) == 4 + 4  # each has one run per workload below it
    assert set(_mlflow(guest, "select distinct status from runs")) == {("FINISHED",)}
    ((note,),) = _mlflow(
        guest,
        f"select value from tags where run_uuid = '{sweep}' and key = 'mlflow.note.content'",
    )
    assert "| network | target | tuner | seed | trials |" in note
    assert f"/runs/{sweep}?" in done.stdout

    listed = warm.run(
        [], guest.folder, guest.environment, 300,
        program="import tilewright; print(sorted(tilewright.runs()['run_id']))",
    )  # fmt: skip
    assert listed.stdout.strip() == str(sorted(runs)), listed.stderr

    again = guest.run(*SWEEP_DIGITS, "--seeds", "0-2", "--tuners", "random", "--json")
    assert again.returncode == 0, again.stderr
    assert "[3/3] digits_cnn on vta-pynq, random, seed 2: " in again.stderr
    added = {run: parent for run, parent in _mlflow(guest, parents) if run not in above}
    assert len(added) == 2  # a run, and that of its workload
    assert sweep in added.values()
