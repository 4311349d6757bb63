"""Checks that several processes on one workload, through one ledger, make every trial once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.sharing_worker import WORK
from tilewright.flows.tuning import tune_shared
from tilewright.models import make_explorer
from tilewright.search import read
from tilewright.targets.fault_injection import FaultyTarget

pytestmark = pytest.mark.slow(seconds=4)

PROCESSES, TRIALS = 4, 96


def _start(ledger: Path, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.reliability.sharing_worker", str(ledger), str(TRIALS),
         *flags],
        stdout=subprocess.PIPE,
    )  # fmt: skip


def test_n_processes_make_every_trial_once_though_one_of_them_dies(tmp_path: Path) -> None:
    """What it had claimed, the others make."""
    ledger = tmp_path / "ledger.jsonl"
    dying = _start(ledger, "--die")
    living = [_start(ledger) for _ in range(1, PROCESSES)]
    assert dying.wait(120) == -9
    ledger.with_name("dead").touch()
    assert [process.wait(120) for process in living] == [0, 0, 0]
    frame = read(ledger).frame()
    assert len(frame) == frame["config"].map(str).nunique() == TRIALS
    rounds = [record["round"] for record in read(ledger).records if record["kind"] == "round"]
    assert rounds == list(range(len(rounds)))


def test_an_exhausted_space_ends_every_worker(tmp_path: Path) -> None:
    ledger, target = tmp_path / "ledger.jsonl", FaultyTarget({})
    size = target.space(WORK).size
    explorer = make_explorer("random", {})
    for _ in range(2):
        held = sum(
            len(done.configs)
            for done in tune_shared(target, WORK, explorer, ledger, trials=size + 10, batch=64)
        )
        assert held == size
    assert len(read(ledger).frame()) == size


def test_a_claim_that_outlived_its_time_is_lost_to_who_claims_next(tmp_path: Path) -> None:
    ledger, target = tmp_path / "ledger.jsonl", FaultyTarget({})
    space, made = target.space(WORK), []

    class Overtaken(FaultyTarget):
        """While it measures, another process makes all trials there are."""

        def measure(self, lowered):  # type: ignore[no-untyped-def]
            made.append(len(lowered))
            for _ in tune_shared(target, WORK, explorer, ledger, trials=space.size, batch=8):
                pass
            return super().measure(lowered)

    explorer = make_explorer("random", {})
    slow = tune_shared(
        Overtaken({}), WORK, explorer, ledger, trials=space.size, batch=8, claim_seconds=0.0
    )
    assert sum(len(done.measured) for done in slow) == space.size
    assert made == [8]
    frame = read(ledger).frame()
    assert len(frame) == frame["config"].map(str).nunique() == space.size
