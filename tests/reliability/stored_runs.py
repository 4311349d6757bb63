"""A short run in a trial store, and processes that own a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.trial_tables import tables
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import TrialStore
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
TRIALS, BATCH = 20, 4


class Counting(FaultyTarget):
    """A target that counts the measured configs."""

    measured = 0

    def measure(self, lowered: Lowered) -> Measurements:
        self.measured += len(lowered)
        return super().measure(lowered)


def tune_into(store: TrialStore, target: FaultyTarget | None = None) -> None:
    explorer = make_explorer("random", {})
    for _ in tune(
        target or FaultyTarget({}), WORK, explorer, trials=TRIALS, batch=BATCH, store=store
    ):
        pass


def whole_run(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the tables of an undisturbed run."""
    with TrialStore(folder / "whole.sqlite") as store:
        tune_into(store)
        return tables(store)


HOLD = """
import sys, time
from pathlib import Path
from tilewright.search import TrialStore
with TrialStore(Path(sys.argv[1]), lease_seconds=float(sys.argv[2])) as store:
    print("held", flush=True)
    time.sleep(600)
"""


def hold(path: Path, lease_seconds: float = 30.0, *before: str) -> subprocess.Popen[bytes]:
    """Start a process that owns a store until it is killed.

    The words `before` precede its command line, for example to start it in a container.
    """
    holder = subprocess.Popen(
        [*before, sys.executable, "-c", HOLD, str(path), str(lease_seconds)],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder
