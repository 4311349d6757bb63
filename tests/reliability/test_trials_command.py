"""Checks that `tilewright trials` reads what is there, whatever state the run is in."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests import in_process
from tests.reliability.test_ledger_faults import TRIALS, _hold, _tune
from tilewright.search import Ledger
from tilewright.search.ledger import COLUMNS


def _trials(*arguments: str) -> subprocess.CompletedProcess[str]:
    return in_process.run(["trials", *arguments], Path.cwd(), os.environ)


@pytest.mark.slow(seconds=2)
def test_trials_of_a_living_a_dead_and_a_damaged_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        _tune(ledger)
    holder = _hold(path)
    try:
        with path.open("ab") as file:
            file.write(b'{"check":"half a rec')  # as a reader may find it while a writer writes
        living = _trials(str(tmp_path))
        assert living.returncode == 0, living.stderr
        assert f"{TRIALS} trials of 1 workload; process {holder.pid} on" in living.stdout
        assert living.stderr == ""
    finally:
        holder.kill()
        holder.wait()
    before = path.read_bytes()
    dead = _trials(str(tmp_path), "--csv")
    assert "last record was torn (20 bytes)" in dead.stderr
    table = pd.read_csv(io.StringIO(dead.stdout))
    assert tuple(table.columns) == COLUMNS
    assert table["trial"].tolist() == list(range(TRIALS))
    assert path.read_bytes() == before


def test_a_folder_without_a_ledger_is_one_clear_error(tmp_path: Path) -> None:
    done = _trials(str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no ledger.jsonl in")
