"""Kills a run that replaces a finished run in its folder, before its first trial is on disk.

`python -m tests.reliability.killed_replacement FOLDER` prints JSON. Every run is a fork of this
process, which starts no thread.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.reliability.boundaries import NEVER, Boundaries
from tests.reliability.killed_everywhere import forked
from tests.trial_tables import tables
from tests.tune_bare import tune_bare
from tilewright.models import make_explorer
from tilewright.targets import make_target
from tilewright.tuning.run_metadata import is_complete, read_run

RUN: dict[str, Any] = {
    "workload": "dense:n=1,c=64,o=64", "tuner": "random", "trials": 2, "batch": 2,
}  # fmt: skip
STRIDE = 2
"""Kill at every second boundary only, because those after a call and before the next one are
alike."""
CHANGES: dict[str, dict[str, Any]] = {
    "fresh": {"fresh": True},
    "another seed": {"seed": 1},
    "more trials": {"trials": 4},
}


def run(folder: Path, kill_at: int = NEVER, **change: Any) -> Boundaries:
    boundaries = Boundaries([folder], kill_at)
    boundaries.install()
    tune_bare(**RUN | change, out=str(folder))
    return boundaries


def claims_too_much(folder: Path, runs: dict[str, tuple[str, int]]) -> bool:
    """Return whether the folder claims to be complete without the results of its run.

    `runs` gives, by key, the ID of the run in the trial store and its number of trials.
    """
    if not is_complete(folder):
        return False
    held = read_run(folder)
    assert held is not None
    wanted, trials = runs[held["key"]]
    made = [row for row in tables(folder)["trials"] if row[2] == wanted]
    summary = json.loads((folder / "summary.json").read_text())
    return len(made) < trials or (summary["seed"], summary["trials"]) != (held["seed"], trials)


def main(root: Path) -> dict[str, Any]:
    make_target("vta-pynq")
    make_explorer("random", {})  # imports once for all children
    assert forked(lambda: run(root / "finished").count) == 0
    report: dict[str, Any] = {}
    for name, change in CHANGES.items():
        folder, answer = root / "taken over", root / "count.json"
        shutil.copytree(root / "finished", folder)
        assert forked(lambda f=folder, c=change: run(f, **c).count, answer) == 0
        runs = {}
        for item in (root / "finished", folder):
            held = read_run(item)
            assert held is not None
            assert is_complete(item)
            runs[held["key"]] = (tables(item)["trials"][-1][2], held["trials"])
        shutil.rmtree(folder)
        claims, count = [], json.loads(answer.read_text())
        for kill_at in range(6, count // 2, STRIDE):
            shutil.copytree(root / "finished", folder)
            forked(lambda f=folder, c=change, k=kill_at: run(f, k, **c))
            if claims_too_much(folder, runs):
                claims.append(kill_at)
            shutil.rmtree(folder)
        report[name] = {"boundaries": count, "claims": claims}
    return report


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
