"""Kills a comparison at its file changes, repeats it, and reports the outcome.

`python -m tests.reliability.killed_comparison FOLDER STEP` prints JSON. It kills at every STEP-th
file change. Every comparison runs in a fork of this process, which starts no thread.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability.boundaries import NEVER, Boundaries, report_unwatched_writers
from tests.reliability.killed_everywhere import forked
from tilewright.core import thread_pools
from tilewright.evaluation.compare.benchmark_suite import recorded_test_bed
from tilewright.evaluation.compare.plan import ComparisonPlan, parse_tuner_configs, plan
from tilewright.evaluation.compare.record import RECORD
from tilewright.evaluation.row_cache import RUNS
from tilewright.flows.comparison import compare_tuners
from tilewright.reports.comparison import REPORT
from tilewright.search import LocalRunner

TABLE = Path(__file__).parents[1] / "data" / "tvm-vta" / "C10.csv.gz"
TUNERS, SEEDS = "random,grid", (0, 1)


def asked() -> ComparisonPlan:
    return plan(recorded_test_bed([TABLE]), parse_tuner_configs(TUNERS), SEEDS, 8, 4)


def compare(what: ComparisonPlan, folder: Path, kill_at: int = NEVER) -> Boundaries:
    unwatched = report_unwatched_writers([folder])
    boundaries = Boundaries([folder], kill_at)
    boundaries.install()
    compare_tuners(LocalRunner(), what, folder)
    assert not unwatched, f"written in a way the boundaries do not see: {unwatched}"
    return boundaries


def outcome(folder: Path) -> dict[str, Any]:
    """Return the results of a comparison without times."""
    document: dict[str, Any] = json.loads((folder / RECORD).read_text())
    for run in document["runs"]:
        del run["wall_seconds"]
    for row in (row for board in document["leaderboards"] for row in board["tuners"]):
        for timed in ("wall_seconds", "seconds_to_goal", "stack_seconds_to_goal"):
            del row[timed]
            row["intervals"].pop(timed, None)
    assert (folder / REPORT).read_text().rstrip().endswith("</html>")
    return document


def kept(folder: Path) -> list[str]:
    """Return the keys of the runs that are completely written to the file, in order."""
    path = folder / RUNS
    keys = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
        try:
            keys.append(str(json.loads(line)["key"]))
        except ValueError:
            continue  # cut off by an earlier kill
    return keys


def problem(what: ComparisonPlan, folder: Path, kill_at: int, wanted: dict[str, Any]) -> str:
    """Kill a comparison and repeat it. Return a description of any problem, or ""."""
    if forked(lambda: compare(what, folder, kill_at)) != -signal.SIGKILL:
        return "was not killed"
    before = kept(folder)
    if forked(lambda: compare(what, folder)) != 0:
        return "cannot be repeated"
    if outcome(folder) != wanted:
        return "came to another result"
    after = kept(folder)
    if after[: len(before)] != before or len(set(after)) != len(after):
        return f"a finished run was made again: {before}, then {after}"
    if len(after) != len(what.jobs):
        return f"{len(after)} of {len(what.jobs)} runs are kept"
    return ""


def main(root: Path, step: int) -> dict[str, Any]:
    what = asked()
    for interface in ("blas", "openmp"):
        thread_pools._controller(interface)
    whole, answer = root / "whole", root / "places.json"
    assert forked(lambda: compare(what, whole).places, answer) == 0
    places: list[str] = json.loads(answer.read_text())
    wanted, failures = outcome(whole), {}
    chosen = range(0, len(places), step)
    for kill_at in chosen:
        folder = root / f"killed-{kill_at}"
        if result := problem(what, folder, kill_at, wanted):
            failures[f"{kill_at}: {places[kill_at]}"] = result
        shutil.rmtree(folder, ignore_errors=True)
    killed = [places[kill_at] for kill_at in chosen]
    return {"places": places, "killed": killed, "runs": len(what.jobs), "failures": failures}


if __name__ == "__main__":
    np.seterr(all="ignore")
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
