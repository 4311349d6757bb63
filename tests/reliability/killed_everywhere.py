"""Kills a short tuning run at every write boundary, resumes it, and says what came of it.

`python -m tests.reliability.killed_everywhere TUNER FOLDER` prints JSON. It imports once and forks
a process for every run, before anything here has started a thread.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tilewright.models.counter_regression
import tilewright.models.gaussian
import tilewright.models.validity  # noqa: F401
from tests.reliability.boundaries import NEVER, Boundaries, report_unwatched_writers
from tilewright.core import blas_threads
from tilewright.core.files import write_atomically
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import Ledger, read
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.workload import parse_workload

WORK = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
TRIALS, BATCH = 12, 4


class Counting(FaultyTarget):
    """Notes every config it measures in a file, which no kill undoes."""

    def __init__(self, notes: Path) -> None:
        super().__init__({})
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def measure(self, lowered: Lowered) -> Measurements:
        flat = self.space(lowered.workload).ravel(lowered.configs)
        os.write(self.notes, "".join(f"{index}\n" for index in flat).encode())
        return super().measure(lowered)


def run(tuner: str, folder: Path, kill_at: int = NEVER) -> Boundaries:
    """The run itself; what it leaves is its ledger and its schedules."""
    target = Counting(folder.with_suffix(".measured"))
    unwatched = report_unwatched_writers([folder])
    boundaries = Boundaries([folder], kill_at)
    boundaries.install()
    with Ledger(folder / "ledger.jsonl") as ledger:
        done = list(
            tune(
                target, WORK, make_explorer(tuner, {}),
                trials=TRIALS, batch=BATCH, seed=3, ledger=ledger,
            )
        )  # fmt: skip
    best = done[-1].best_config
    schedule = None if best is None else target.space(WORK).describe(best.tolist())
    write_atomically(folder / "schedules.json", json.dumps(schedule).encode())
    assert not unwatched, f"written in a way the boundaries do not see: {unwatched}"
    return boundaries


def forked(work: Callable[[], Any], answer: Path | None = None) -> int:
    """Run in a child; returns its exit status as `subprocess` does."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            result = work()
            if answer is not None:
                answer.write_text(json.dumps(result))
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def measured(folder: Path) -> Counter[int]:
    return Counter(int(line) for line in folder.with_suffix(".measured").read_text().split())


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "ledger.jsonl").read_bytes(), (folder / "schedules.json").read_bytes()


def kill_and_resume(
    tuner: str, folder: Path, kill_at: int, wanted: tuple[bytes, bytes], again_at: int = NEVER
) -> str:
    """What went wrong, or nothing. `again_at` kills the resumed run as well."""
    if forked(lambda: run(tuner, folder, kill_at)) != -signal.SIGKILL:
        return "was not killed"
    before = measured(folder) if folder.with_suffix(".measured").exists() else Counter[int]()
    recorded = trials_in(folder)
    if again_at != NEVER:
        forked(lambda: run(tuner, folder, again_at))
    if forked(lambda: run(tuner, folder)) != 0:
        return "did not resume"
    if outcome(folder) != wanted:
        return "came to another result"
    repeated = sum((measured(folder) - Counter(set(measured(folder)))).values())
    in_flight = sum(before.values()) - recorded
    allowed = in_flight if again_at == NEVER else in_flight + BATCH
    if repeated > allowed:
        return f"repeated {repeated} trials, {in_flight} were in flight"
    return ""


def trials_in(folder: Path) -> int:
    return len(read(folder / "ledger.jsonl").frame())


def main(tuner: str, root: Path) -> dict[str, Any]:
    make_explorer(tuner, {})  # imports all tuners, once for all children, as learners are above
    for interface in ("blas", "openmp"):
        blas_threads._controller(interface)
    whole = root / "whole"
    answer = root / "places.json"
    assert forked(lambda: run(tuner, whole).places, answer) == 0
    places: list[str] = json.loads(answer.read_text())
    wanted = outcome(whole)
    assert sum(measured(whole).values()) == TRIALS
    failures = {}
    for kill_at, place in enumerate(places):
        folder = root / f"killed-{kill_at}"
        if problem := kill_and_resume(tuner, folder, kill_at, wanted):
            failures[f"{kill_at}: {place}"] = problem
        shutil.rmtree(folder, ignore_errors=True)
    torn = [k for k, place in enumerate(places) if place == "in write"][1]
    twice = resumed_boundaries(tuner, root / "torn", torn, answer)
    for again_at in range(twice):
        folder = root / f"twice-{again_at}"
        if problem := kill_and_resume(tuner, folder, torn, wanted, again_at):
            failures[f"{torn}, then {again_at}"] = problem
        shutil.rmtree(folder, ignore_errors=True)
    return {"boundaries": len(places), "twice": twice, "failures": failures, "places": places}


def resumed_boundaries(tuner: str, folder: Path, kill_at: int, answer: Path) -> int:
    """How many boundaries a run has that goes on after dying at `kill_at`."""
    forked(lambda: run(tuner, folder, kill_at))
    forked(lambda: run(tuner, folder).count, answer)
    return int(json.loads(answer.read_text()))


if __name__ == "__main__":
    np.seterr(all="ignore")
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
