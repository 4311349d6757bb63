"""Performs the steps of a sweep beside its runs: before the first, after each, and at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.core import formats
from tilewright.core.errors import TilewrightError
from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.leaderboard import Leaderboard, network_leaderboards
from tilewright.evaluation.compare.network_plan import SweepJob, SweepPlan
from tilewright.evaluation.compare.network_runs import RunTuned, SweepBegan, SweptRun, SweptRuns
from tilewright.flows.tuning import import_network
from tilewright.search import LocalRunner
from tilewright.search.events import Listener
from tilewright.tuning.outputs import Summary
from tilewright.tuning.tuning_task import target_of

SWEEP = "sweep.json"


class SweepError(TilewrightError):
    """A sweep that lacks a run."""


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: its runs in the order of the plan, and who won on each network and
    target."""

    plan: SweepPlan
    runs: tuple[SweptRun, ...]
    leaderboards: tuple[Leaderboard, ...]

    def to_json(self) -> dict[str, Any]:
        """What `sweep.json` holds; its keys are a contract."""
        return {
            "version": formats.SWEEP.written,
            "trials": self.plan.options.trials,
            "runs": [asdict(run) for run in self.runs],
            "leaderboards": [asdict(each) for each in self.leaderboards],
        }


def read_networks(jobs: Sequence[SweepJob]) -> None:
    """Find what there is to tune in each network on each target, so that nothing is measured in
    vain. Raises as `flows.tuning.import_network`."""
    for job in {(each.network, each.target): each for each in jobs}.values():
        import_network(LocalRunner(), job.options, target_of(job.options))


def log_sweep_began(plan: SweepPlan, kept: int, emit: Listener) -> None:
    """Say how many runs there are, and how many of them are finished."""
    emit(SweepBegan(kept, len(plan.jobs)))


def keep_run(kept: SweptRuns, job: SweepJob, summary: Summary, emit: Listener) -> None:
    """Keep a finished run. Raises `OSError`."""
    emit(RunTuned(kept.add(job, summary)))


def judge_networks(plan: SweepPlan, kept: SweptRuns) -> Sweep:
    """Say which tuner won where. Raises `SweepError` for a run whose output directory is gone."""
    found = []
    for job in plan.jobs:
        run = kept.find(job)
        if run is None:
            raise SweepError(
                f"the results of {job.title} are gone from {job.options.folder}, or another run "
                "is there; repeat the command, which makes that run again"
            )
        found.append(run)
    return Sweep(plan, tuple(found), network_leaderboards(found))


def log_sweep(swept: Sweep, folder: Path) -> None:
    """Write `sweep.json`. Raises `OSError`."""
    text = json.dumps(swept.to_json(), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / SWEEP, text.encode())
