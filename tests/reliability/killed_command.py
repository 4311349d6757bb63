"""Runs `tilewright …` and kills it at a chosen write to its output directory or cache.

`python -m tests.reliability.killed_command KILL_AT NOTES OUT CACHE -- ARGUMENTS`. The file NOTES
gets one line per measured config. Its last line is the number of write boundaries that were passed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.reliability.boundaries import Boundaries, report_unwatched_writers
from tilewright.cli import command
from tilewright.targets.base import Lowered, Measurements
from tilewright.targets.capabilities import BaselineSchedule
from tilewright.targets.vta.target import VtaTarget


def note_measured(notes: int) -> None:
    measure, baseline = VtaTarget.measure, VtaTarget._baseline
    no_trial: list[bool] = []

    def unnoted(self: VtaTarget, *arguments: Any) -> BaselineSchedule:
        no_trial.append(True)
        try:
            return baseline(self, *arguments)
        finally:
            no_trial.pop()

    def noting(self: VtaTarget, lowered: Lowered) -> Measurements:
        if no_trial:
            return measure(self, lowered)
        flat = self.space(lowered.workload).ravel(lowered.configs)
        os.write(notes, "".join(f"{lowered.workload.id} {i}\n" for i in flat).encode())
        return measure(self, lowered)

    VtaTarget.measure, VtaTarget._baseline = noting, unnoted  # type: ignore[method-assign]


if __name__ == "__main__":
    kill_at, path, out, cache = sys.argv[1:5]
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    note_measured(notes)
    folders = [Path(out), Path(cache)]
    unwatched = report_unwatched_writers(folders)
    boundaries = Boundaries(folders, int(kill_at))
    boundaries.install()
    sys.argv = ["tilewright", *sys.argv[6:]]
    try:
        command()
    finally:
        text = f"boundaries {boundaries.count} unwatched {len(unwatched)} {unwatched[:3]}\n"
        os.write(notes, text.encode())
