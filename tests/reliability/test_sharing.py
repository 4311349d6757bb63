"""Several processes on one workload, through one ledger: every trial is made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from models import make_explorer
from search import read, tune_shared
from targets.faulty import FaultyTarget
from tests.reliability.sharing_worker import WORK

pytestmark = pytest.mark.slow(seconds=4)

PROCESSES, TRIALS = 4, 24


def _start(ledger: Path, worker: int, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.reliability.sharing_worker", str(ledger), f"w{worker}",
         str(TRIALS), *flags],
        stdout=subprocess.PIPE,
    )  # fmt: skip


def test_n_processes_times_m_trials_are_n_times_m_distinct_trials(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    dying = [_start(ledger, 0, "--die")]
    living = [_start(ledger, worker) for worker in range(1, PROCESSES)]
    assert [process.wait(120) for process in dying + living] == [-9, 0, 0, 0]
    assert _start(ledger, 0).wait(120) == 0  # the one that died goes on under its name
    frame = read(ledger).frame()
    assert len(frame) == PROCESSES * TRIALS
    assert frame["config"].map(str).nunique() == PROCESSES * TRIALS
    trials = [record for record in read(ledger).records if record["kind"] == "trial"]
    assert len(trials) == PROCESSES * TRIALS
    rounds = [record["round"] for record in read(ledger).records if record["kind"] == "round"]
    assert rounds == list(range(len(rounds)))


def test_an_exhausted_space_ends_every_worker(tmp_path: Path) -> None:
    ledger, target = tmp_path / "ledger.jsonl", FaultyTarget({})
    size = target.space(WORK).size
    explorer = make_explorer("random", {})
    for worker in ("a", "b"):
        half = size // 2 + 10
        for _ in tune_shared(target, WORK, explorer, ledger, worker=worker, trials=half, batch=64):
            pass
    assert len(read(ledger).frame()) == size


def test_a_claim_that_outlived_its_time_is_lost_to_who_claims_next(tmp_path: Path) -> None:
    ledger, target = tmp_path / "ledger.jsonl", FaultyTarget({})
    space = target.space(WORK)

    class Overtaken(FaultyTarget):
        """While it measures, another process makes all trials there are."""

        def measure(self, lowered):  # type: ignore[no-untyped-def]
            for _ in tune_shared(
                target, WORK, explorer, ledger, worker="fast", trials=space.size, batch=72
            ):
                pass
            return super().measure(lowered)

    explorer = make_explorer("random", {})
    slow = tune_shared(
        Overtaken({}), WORK, explorer, ledger, worker="slow", trials=8, batch=8, claim_seconds=0.0
    )
    assert [len(done.measured) for done in slow] == [0]
    frame = read(ledger).frame()
    assert len(frame) == frame["config"].map(str).nunique() == space.size
