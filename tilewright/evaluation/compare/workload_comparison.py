"""Executes a comparison on workloads, from its plan to its leaderboard and `comparison.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tilewright.core import formats
from tilewright.core.files import Json, write_atomically
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.job_runner import run_jobs
from tilewright.evaluation.compare.leaderboard import (
    Leaderboard,
    LeaderboardRow,
    Results,
    results_of,
    workload_leaderboard,
)
from tilewright.evaluation.compare.plan import GOAL, ComparisonBegan, ComparisonPlan
from tilewright.evaluation.compare.record import RECORD, to_json
from tilewright.evaluation.compare.workload_runs import KeptRuns, TunerRun, ordered
from tilewright.search.events import Event, Listener
from tilewright.targets.capabilities import Latency
from tilewright.targets.display_names import title
from tilewright.targets.replay import MeasurementTable
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class Comparison:
    """A finished comparison on workloads.

    Attributes:
        plan: the plan.
        runs: results of the runs, in the order of the plan.
        results: results of the runs as arrays.
        leaderboards: a tuple with the only leaderboard.
    """

    plan: ComparisonPlan
    runs: list[TunerRun]
    results: Results
    leaderboards: tuple[Leaderboard]

    @property
    def leaderboard(self) -> tuple[LeaderboardRow, ...]:
        """Rows of the leaderboard, best tuner first."""
        return self.leaderboards[0].tuners

    def to_json(self) -> dict[str, Json]:
        """Return the content of `comparison.json`. Other programs rely on its keys.

        Cycles are null if the target does not count cycles.
        """
        bed, optimum = self.plan.test_bed, optimum_of(self.plan)
        return {
            "version": formats.COMPARISON.written,
            "target": bed.target,
            "space": bed.space,
            "trials": self.plan.trials,
            "optimum": {
                name: best.cycles if best.cycles > 0 else None for name, best in optimum.items()
            },
            "optimum_seconds": {name: best.seconds for name, best in optimum.items()},
            "runs": [run.record() for run in self.runs],
            "leaderboards": to_json(self.leaderboards),
        }


@dataclass(frozen=True)
class Enumerating(Event):
    """Event that is emitted before a search space is measured completely.

    Attributes:
        workload: the workload.
        size: number of configs in the space.
        place: number of the space, counted from 1.
        spaces: number of spaces to measure.
    """

    workload: Workload
    size: int
    place: int
    spaces: int


@dataclass(frozen=True)
class Enumerated(Event):
    """Event that is emitted when further configs of a space were measured.

    Attributes:
        configs: number of configs since the last event.
    """

    configs: int


@dataclass(frozen=True)
class RunFinished(Event):
    """Event that is emitted when a run was finished and stored.

    Attributes:
        run: result of the run.
    """

    run: TunerRun


def enumerate_spaces(plan: ComparisonPlan, emit: Listener) -> None:
    """Measure and store all search spaces of a comparison whose measurements are not stored yet.

    Test beds that consist of recorded tables need no measurements.

    Args:
        plan: the comparison.
        emit: function that is called with `Enumerating` and `Enumerated` events.

    Raises:
        TilewrightError: a target fails.
    """
    if not isinstance(plan.test_bed, EnumeratedTestBed):
        return
    missing = plan.test_bed.unmeasured_workloads()
    for place, (workload, size) in enumerate(missing, 1):
        emit(Enumerating(workload, size, place, len(missing)))
        plan.test_bed.enumerate(workload, lambda configs: emit(Enumerated(configs)))


def run_tuners(
    plan: ComparisonPlan, folder: Path, cluster: str, fresh: bool, emit: Listener
) -> list[TunerRun]:
    """Execute the runs of a comparison that are not stored yet.

    Args:
        plan: the comparison.
        folder: folder in which finished runs are stored.
        cluster: address of the Dask cluster that executes the runs; "" for this process.
        fresh: delete stored runs first.
        emit: function that is called with `ComparisonBegan` and `RunFinished` events.

    Returns:
        The results of all runs, in the order of the plan.

    Raises:
        ClusterError: the cluster cannot be used.
        OSError: the folder cannot be written.
        TilewrightError: a tuner fails.
    """
    kept = KeptRuns(folder, plan, fresh)
    tuners = [(job, kept.find(job)) for job in plan.jobs]
    runs = [run for _, run in tuners if run is not None]
    missing = [job for job, run in tuners if run is None]
    emit(ComparisonBegan(len(runs), len(tuners)))
    for run in run_jobs(plan, missing, cluster):
        kept.add(run)
        runs.append(run)
        emit(RunFinished(run))
    return ordered(plan, runs)


def judge_runs(plan: ComparisonPlan, runs: list[TunerRun]) -> Comparison:
    """Compute the results and the leaderboard of a comparison on workloads.

    Args:
        plan: the comparison.
        runs: results of all runs, in the order of the plan.

    Returns:
        The finished comparison.
    """
    optimum = {name: best.cost for name, best in optimum_of(plan).items()}
    results = results_of(runs, optimum, plan.trials)
    return Comparison(plan, runs, results, (workload_leaderboard(results, plan.test_bed.target),))


def log_comparison(compared: Comparison, folder: Path) -> None:
    """Write the results of a comparison to `comparison.json`.

    Args:
        compared: the results.
        folder: output directory of the comparison.

    Raises:
        OSError: the file cannot be written.
    """
    document = json.dumps(compared.to_json(), ensure_ascii=False)
    write_atomically(folder / RECORD, document.encode())


def optimum_of(plan: ComparisonPlan) -> dict[str, Latency]:
    """Return the latency of the best config in each workload's space, by the workload's name."""
    test_bed = plan.test_bed
    return {name: test_bed.table(name).optimum for name, _ in test_bed.workloads}


# -- the ground truth ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SpaceFacts:
    """Facts about the search space of a workload.

    Attributes:
        title: name of the workload in tables.
        configs: number of configs.
        valid: number of valid configs.
        optimum: latency of the best config.
        near: number of configs within `GOAL` of the optimum.
    """

    title: str
    configs: int
    valid: int
    optimum: Latency
    near: int


def space_facts(name: str, table: MeasurementTable) -> SpaceFacts:
    """Return facts about the search space of a workload, for reports.

    Args:
        name: name of the workload.
        table: measurements of all configs of the space.

    Returns:
        The facts.
    """
    optimum = table.optimum
    near = table.latency <= optimum.cost * (1 + GOAL)
    valid = int(table.valid.sum())
    return SpaceFacts(title(name, table.workload), len(table), valid, optimum, int(near.sum()))
