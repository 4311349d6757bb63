"""Runs a comparison from its plan to its leaderboard, and writes the record that programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tilewright.core import formats
from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.job_runner import run_jobs
from tilewright.evaluation.compare.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    Results,
    layer_leaderboard,
    leaderboard,
    results_of,
)
from tilewright.evaluation.compare.plan import ComparisonPlan
from tilewright.evaluation.compare.run_cache import KeptRuns
from tilewright.evaluation.compare.runs import TunerRun, ordered
from tilewright.search.events import Event, Listener
from tilewright.targets.capabilities import Latency
from tilewright.targets.workload import Workload

COMPARISON = "comparison.json"


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to: its runs in the order of the plan, the same as arrays, and a
    row for each tuner, best first."""

    plan: ComparisonPlan
    runs: list[TunerRun]
    results: Results
    leaderboard: list[LeaderboardRow]


@dataclass(frozen=True)
class Enumerating(Event):
    """The `place`-th of `spaces` unknown spaces, of `size` configs, is measured from now on."""

    workload: Workload
    size: int
    place: int
    spaces: int


@dataclass(frozen=True)
class Enumerated(Event):
    """So many more configs of that space are measured."""

    configs: int


@dataclass(frozen=True)
class TuningBegan(Event):
    """The runs begin; `kept` of them are there from an earlier call."""

    kept: int
    runs: int


@dataclass(frozen=True)
class RunFinished(Event):
    """One more run is done and on disk."""

    run: TunerRun


def enumerate_spaces(plan: ComparisonPlan, emit: Listener) -> None:
    """Measure the spaces of a plan that are unknown. Raises what targets raise."""
    if not isinstance(plan.test_bed, EnumeratedTestBed):
        return
    missing = plan.test_bed.missing()
    for place, (workload, size) in enumerate(missing, 1):
        emit(Enumerating(workload, size, place, len(missing)))
        plan.test_bed.enumerate(workload, lambda configs: emit(Enumerated(configs)))


def run_tuners(
    plan: ComparisonPlan, folder: Path, cluster: str, fresh: bool, emit: Listener
) -> list[TunerRun]:
    """Run every tuner on every workload with every seed.

    Args:
        plan: the comparison.
        folder: keeps runs as they finish.
        cluster: the Dask cluster whose workers make the runs, "" for this process.
        fresh: whether runs that the folder holds are made again.
        emit: hears which runs finish.

    Raises:
        ClusterError: the cluster cannot be used.
        OSError: the folder cannot be written.
        TilewrightError: an error of a tuner.
    """
    kept = KeptRuns(folder, plan, fresh)
    found = [(job, kept.find(job)) for job in plan.jobs]
    runs = [run for _, run in found if run is not None]
    missing = [job for job, run in found if run is None]
    emit(TuningBegan(len(runs), len(found)))
    for run in run_jobs(plan, missing, cluster):
        kept.add(run)
        runs.append(run)
        emit(RunFinished(run))
    return ordered(plan, runs)


def judge_runs(plan: ComparisonPlan, runs: list[TunerRun]) -> Comparison:
    """Compare runs with the best config of each space."""
    optimum = {name: best.cost for name, best in optimum_of(plan).items()}
    results = results_of(runs, optimum, plan.trials)
    return Comparison(plan, runs, results, leaderboard(results))


def log_comparison(compared: Comparison, folder: Path) -> None:
    """Write `comparison.json`. Raises `OSError`."""
    plan = compared.plan
    board = layer_leaderboard(compared.results, compared.leaderboard, plan.test_bed.target)
    write_comparison(folder / COMPARISON, plan, optimum_of(plan), compared.runs, board)


def optimum_of(plan: ComparisonPlan) -> dict[str, Latency]:
    """What the best config of each workload's whole space takes, by the workload's name."""
    test_bed = plan.test_bed
    return {name: test_bed.table(name).optimum for name, _ in test_bed.workloads}


def write_comparison(
    path: Path, plan: ComparisonPlan, optimum: Mapping[str, Latency],
    runs: Sequence[TunerRun], board: Leaderboard,
) -> None:  # fmt: skip
    """`comparison.json`; its keys are a contract. Cycles are null on a target that counts none.
    Raises `OSError`."""
    document = {
        "version": formats.COMPARISON.written,
        "target": plan.test_bed.target,
        "space": plan.test_bed.space,
        "trials": plan.trials,
        "optimum": {
            name: best.cycles if best.cycles > 0 else None for name, best in optimum.items()
        },
        "optimum_seconds": {name: best.seconds for name, best in optimum.items()},
        "runs": [run.record() for run in runs],
        "leaderboards": [asdict(board)],
    }
    write_atomically(path, json.dumps(document, ensure_ascii=False).encode())
