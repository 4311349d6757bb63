"""Kills a short tuning run at every write, resumes it, and reports the outcome.

`python -m tests.reliability.killed_everywhere TUNER FOLDER STRIDE [URL]` prints JSON. With a STRIDE
of 1 a run is killed at every write boundary, with 3 at every third one. The process must have
`kill_at_write.c` preloaded. It imports everything once and forks one process per run before any
thread is started. If the URL of a PostgreSQL database is given, the boundaries are before and after
each statement and each commit instead.
"""

from __future__ import annotations

import ctypes
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
import sqlalchemy as sa

import tilewright.models.counter_regression
import tilewright.models.gaussian
import tilewright.models.validity  # noqa: F401
from tests.reliability.stored_runs import WORK
from tests.trial_tables import tables
from tilewright.core import thread_pools
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.search import open_store, read_store
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.fault_injection import FaultyTarget

TRIALS, BATCH = 12, 4
NEVER = -1


class Noting(FaultyTarget):
    """A target that writes every measured config to a file, which survives a kill."""

    def __init__(self, notes: Path) -> None:
        super().__init__({})
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def measure(self, lowered: Lowered) -> Measurements:
        flat = self.space(lowered.workload).ravel(lowered.configs)
        os.write(self.notes, "".join(f"{index}\n" for index in flat).encode())
        return super().measure(lowered)


class Places:
    """Counter of the places at which a run may be killed. It kills the run at one of them."""

    def __init__(self, folder: Path, kill_at: int, url: str) -> None:
        self.count, self._kill_at = 0, kill_at
        self._watcher = None if url else ctypes.CDLL(None)
        if self._watcher is not None:
            self._watcher.watch(os.fsencode(folder.resolve()), kill_at)
            return
        engine: Any = sa.Engine
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            sa.event.listen(engine, name, lambda *_: self._pass())

    def _pass(self) -> None:
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def passed(self) -> int:
        return self.count if self._watcher is None else int(self._watcher.passed_places())


def run(tuner: str, folder: Path, url: str, kill_at: int = NEVER) -> int:
    """Tune. Return the number of passed places."""
    target = Noting(folder.with_suffix(".measured"))
    places = Places(folder, kill_at, url)
    with open_store(folder, url) as store:
        for _ in tune(
            target, WORK, make_explorer(tuner, {}), trials=TRIALS, batch=BATCH, seed=3, store=store
        ):
            pass
    return places.passed()


def forked(work: Callable[[], Any], answer: Path | None = None) -> int:
    """Run a function in a forked child. Return the exit status, as `subprocess` does."""
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
    notes = folder.with_suffix(".measured")
    return Counter(int(line) for line in notes.read_text().split()) if notes.exists() else Counter()


def outcome(folder: Path) -> Any:
    """Return the tables of a run as JSON.

    A child reads them, because this process must not open a database before it forks.
    """
    answer = folder.with_suffix(".tables")
    assert forked(lambda: tables(folder), answer) == 0
    return json.loads(answer.read_text())


def recorded(folder: Path) -> int:
    def count() -> int:
        try:
            with read_store(folder) as store:
                return len(store.frame())
        except FileNotFoundError:
            return 0

    answer = folder.with_suffix(".count")
    return int(answer.read_text()) if forked(count, answer) == 0 else 0


def kill_and_resume(
    tuner: str, folder: Path, url: str, kill_at: int, wanted: Any, again_at: int = NEVER
) -> str:
    """Kill a run and resume it. Return a description of any problem, or "".

    With `again_at`, the resumed run is killed too.
    """
    if forked(lambda: run(tuner, folder, url, kill_at)) != -signal.SIGKILL:
        return "was not killed"
    before, kept = measured(folder), recorded(folder)
    if again_at != NEVER:
        forked(lambda: run(tuner, folder, url, again_at))
    if forked(lambda: run(tuner, folder, url)) != 0:
        return "did not resume"
    if outcome(folder) != wanted:
        return "came to another result"
    repeated = sum((measured(folder) - Counter(set(measured(folder)))).values())
    in_flight = sum(before.values()) - kept
    allowed = in_flight if again_at == NEVER else in_flight + BATCH
    if repeated > allowed:
        return f"repeated {repeated} trials, {in_flight} were in flight"
    return ""


def main(tuner: str, root: Path, stride: int, url: str = "") -> dict[str, Any]:
    make_explorer(tuner, {})  # imports all tuners once for all children
    for interface in ("blas", "openmp"):
        thread_pools._controller(interface)
    whole, answer = root / "whole", root / "count.json"
    if url:  # the first run makes the tables, which the others find
        assert forked(lambda: run(tuner, root / "first", url)) == 0
    assert forked(lambda: run(tuner, whole, url), answer) == 0
    count = int(answer.read_text())
    wanted = outcome(whole)
    assert sum(measured(whole).values()) == TRIALS
    failures = {}
    for kill_at in range(0, count, stride):
        folder = root / f"killed-{kill_at}"
        if problem := kill_and_resume(tuner, folder, url, kill_at, wanted):
            failures[str(kill_at)] = problem
        shutil.rmtree(folder, ignore_errors=True)
    middle = count // 2
    folder = root / "half"
    forked(lambda: run(tuner, folder, url, middle))
    forked(lambda: run(tuner, folder, url), answer)
    twice = int(answer.read_text())
    for again_at in range(0, twice, 3 * stride):
        folder = root / f"twice-{again_at}"
        if problem := kill_and_resume(tuner, folder, url, middle, wanted, again_at):
            failures[f"{middle}, then {again_at}"] = problem
        shutil.rmtree(folder, ignore_errors=True)
    return {"places": count, "twice": twice, "failures": failures}


if __name__ == "__main__":
    np.seterr(all="ignore")
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])))
