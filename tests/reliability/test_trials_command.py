"""Checks that `tilewright trials` prints, filters and exports the trials of any run."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests import in_process
from tests.reliability.stored_runs import TRIALS, WORK, hold, tune_into
from tests.trial_tables import rows
from tilewright.search import TrialStore
from tilewright.search.trial_store import COLUMNS, FILE


def _trials(*arguments: str) -> subprocess.CompletedProcess[str]:
    return in_process.run(["trials", *arguments], Path.cwd(), os.environ)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials")
    with TrialStore(folder / FILE) as store:
        tune_into(store)
    return folder


@pytest.mark.slow(seconds=2)
def test_trials_of_a_living_and_a_dead_run(out: Path) -> None:
    holder = hold(out / FILE)
    try:
        living = _trials(str(out))
        assert living.returncode == 0, living.stderr
        assert f"{TRIALS} trials of 1 workload; process {holder.pid} on" in living.stdout
        assert living.stderr == ""
    finally:
        holder.kill()
        holder.wait()
    dead = _trials(str(out))
    assert f"{TRIALS} trials of 1 workload; the run was stopped" in dead.stdout
    table = pd.read_csv(io.StringIO(_trials(str(out), "--csv").stdout))
    assert tuple(table.columns) == COLUMNS
    assert table["trial"].tolist() == list(range(TRIALS))


@pytest.mark.parametrize("name", ["all.csv", "all.parquet", "all.json"])
def test_every_format_has_the_same_trials(name: str, out: Path, tmp_path: Path) -> None:
    printed = pd.DataFrame(json.loads(_trials(str(out), "--json").stdout))
    done = _trials(str(out), "--export", str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet, ".json": pd.read_json}
    table = read[Path(name).suffix](tmp_path / name)
    assert tuple(table.columns) == tuple(printed.columns) == COLUMNS
    for column in ("workload", "trial", "round", "knobs", "status", "cycles"):
        assert table[column].tolist() == printed[column].tolist()
    valid = printed["status"] == "valid"
    assert table["seconds"][valid].tolist() == pytest.approx(printed["seconds"][valid].tolist())


def test_trials_are_filtered_by_status_layer_and_rank(out: Path) -> None:
    valid = json.loads(_trials(str(out), "--json", "--status", "valid").stdout)
    assert 0 < len(valid) < TRIALS
    assert {row["status"] for row in valid} == {"valid"}
    (best,) = json.loads(_trials(str(out), "--json", "--best", "1").stdout)
    assert best["cycles"] == min(row["cycles"] for row in valid)
    assert len(json.loads(_trials(str(out), "--json", "--layer", WORK.id).stdout)) == TRIALS
    for option, value in (("--layer", "conv9"), ("--status", "fine"), ("--export", "x.xlsx")):
        refused = _trials(str(out), option, value)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: {option} {value}: ")


def test_a_row_that_cannot_be_true_is_told_and_left_out(out: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes((out / FILE).read_bytes())
    rows(tmp_path, "update trials set cycles = 'many' where id = 3")
    before = (tmp_path / FILE).read_bytes()
    done = _trials(str(tmp_path))
    assert done.stderr.startswith(f"note: {tmp_path / FILE}: ignored a trial: cycles: ")
    assert f"{TRIALS - 1} trials of 1 workload" in done.stdout
    assert (tmp_path / FILE).read_bytes() == before


def test_a_folder_without_trials_is_one_clear_error(tmp_path: Path) -> None:
    done = _trials(str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path} contains no trials.sqlite")
