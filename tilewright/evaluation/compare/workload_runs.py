"""Executes the runs of a comparison on workloads and stores finished runs for resuming.

A run tunes one workload with one tuner and one seed. Its result is a function of the tuner, its
options, the workload, the table, the seed and the budget. Neither the number of processes nor their
order affects it; only durations vary. The key of a stored run covers all of these, and the source
code.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tilewright import models, search, targets
from tilewright.core.files import Json, canonical, digest
from tilewright.evaluation.compare.plan import GOAL, ComparisonJob, ComparisonPlan
from tilewright.evaluation.row_cache import RUNS, RowCache
from tilewright.flows.tuning import tune
from tilewright.search import Round
from tilewright.targets.base import Configs, Lowered, Measurements, Space, Target
from tilewright.targets.replay import MeasurementTable
from tilewright.targets.workload import Workload


@dataclass(frozen=True)
class TunerRun:
    """Result of a run, in which one tuner tunes one workload with one seed.

    Lists have one entry per trial.

    Attributes:
        tuner: label of the tuner.
        workload: name of the workload.
        seed: seed of the run.
        statuses: status of each trial.
        best_cycles: cycles of the best schedule so far; None before the first valid one; empty if
            the target does not count cycles.
        lowered: number of configs that were lowered besides the trials.
        failed_compiles: number of these configs that did not compile.
        wall_seconds: duration of the run.
        elapsed_seconds: seconds from the start until the trial's batch was measured, including the
            training of models.
        compiled: number of compiled configs, including trials, when the batch was measured.
        stack_seconds: seconds that the recorded compiler and board took to compile and measure all
            configs so far; 0 if unknown.
        model_errors: mean error of each model over the rounds.
        best_seconds: seconds of the best schedule so far; None before the first valid one.
    """

    tuner: str
    workload: str
    seed: int
    statuses: list[str]
    best_cycles: list[int | None]
    lowered: int
    failed_compiles: int
    wall_seconds: float
    elapsed_seconds: list[float]
    compiled: list[int]
    stack_seconds: list[float]
    model_errors: dict[str, float] = field(default_factory=dict)
    best_seconds: list[float | None] = field(default_factory=list)

    @property
    def best(self) -> list[float | None]:
        """Latency of the best schedule so far, in cycles, or in seconds without a cycle count."""
        return [*self.best_cycles] or self.best_seconds

    def record(self) -> dict[str, Json]:
        """Return the entry of the run in `comparison.json`."""
        entry = asdict(self)
        for curve in ("elapsed_seconds", "compiled", "stack_seconds", "model_errors"):
            del entry[curve]
        return entry | {"best_cycles": self.best_cycles or [None] * len(self.statuses)}


def run_job(plan: ComparisonPlan, job: ComparisonJob) -> TunerRun:
    """Execute a run of a comparison: a tuner tunes a workload.

    The run ends early if the plan sets `enough` and the goal is reached. Errors of the target or
    the tuner are passed on.

    Args:
        plan: the comparison.
        job: the run.
    """
    target = plan.test_bed.open(job.workload)
    workload = dict(plan.test_bed.workloads)[job.workload]
    explorer = job.tuner_config.explorer
    enough = _goal(plan, job)
    target = Metered(target, plan.test_bed.table(job.workload))
    notes = _Notes(target)
    for done in tune(
        target, workload, explorer, trials=plan.trials, batch=plan.batch, seed=job.seed
    ):
        notes.add(done)
        if plan.enough is not None and len(notes.latency) >= plan.enough and notes.best <= enough:
            break
    return notes.run_of(job)


def ordered(plan: ComparisonPlan, runs: Sequence[TunerRun]) -> list[TunerRun]:
    """Sort the runs of a comparison by tuner, workload and seed, in the order of the plan.

    Args:
        plan: the comparison.
        runs: results of all runs, in any order.

    Raises:
        KeyError: a run of the plan is missing.
    """
    result = {(run.tuner, run.workload, run.seed): run for run in runs}
    return [
        result[tuner_config.label, name, seed]
        for tuner_config in plan.tuner_configs
        for name, _ in plan.test_bed.workloads
        for seed in plan.seeds
    ]


def _goal(plan: ComparisonPlan, job: ComparisonJob) -> float:
    if plan.enough is None:
        return np.inf
    return plan.test_bed.table(job.workload).optimum.cost * (1 + GOAL)


@dataclass
class _Notes:
    """Collects the results of a run while it is going on. Time is measured from its creation.

    Attributes:
        meter: the target of the run, which counts compilations.
        statuses: status of each trial.
        latency: latency of each trial; infinite for invalid trials.
        cycles: cycles of each trial.
        seconds: seconds of each trial.
        elapsed: seconds from the start until each trial's batch was measured.
        errors: error of each model in each round.
        compiled: number of compiled configs when each trial's batch was measured.
        stack: seconds of the recorded compiler and board when each trial's batch was measured.
        lowered: number of configs that were lowered besides the trials.
        failed: number of these configs that did not compile.
        start: time at which the run started.
    """

    meter: Metered
    statuses: list[str] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    errors: dict[str, list[float]] = field(default_factory=dict)
    compiled: list[int] = field(default_factory=list)
    stack: list[float] = field(default_factory=list)
    lowered: int = 0
    failed: int = 0
    start: float = field(default_factory=time.perf_counter)

    @property
    def best(self) -> float:
        return min(self.latency)

    def add(self, done: Round) -> None:
        self.statuses += done.measured.status.tolist()
        self.latency += np.where(done.measured.valid, done.measured.latency, np.inf).tolist()
        self.cycles += done.measured.cycles.tolist()
        self.seconds += done.measured.seconds.tolist()
        known = time.perf_counter() - self.start  # learning from it belongs to the next round
        trials = len(done.measured)
        self.elapsed += [round(known, 6)] * trials
        self.compiled += [self.meter.compiled] * trials
        self.stack += [round(self.meter.seconds, 6)] * trials
        self.lowered += done.lowered
        self.failed += done.failed_compiles
        for name, error in done.model_errors.items():
            self.errors.setdefault(name, []).append(error)

    def run_of(self, job: ComparisonJob) -> TunerRun:
        seconds = time.perf_counter() - self.start
        best = _best_places(self.latency)
        counted = any(place is not None and self.cycles[place] > 0 for place in best)
        return TunerRun(
            tuner=job.tuner_config.label,
            workload=job.workload,
            seed=job.seed,
            statuses=self.statuses,
            best_cycles=[p if p is None else self.cycles[p] for p in best] if counted else [],
            lowered=self.lowered,
            failed_compiles=self.failed,
            wall_seconds=round(seconds, 6),
            elapsed_seconds=self.elapsed,
            compiled=self.compiled,
            stack_seconds=self.stack,
            model_errors={name: float(np.mean(error)) for name, error in self.errors.items()},
            best_seconds=[p if p is None else self.seconds[p] for p in best],
        )


def _best_places(latency: Sequence[float]) -> list[int | None]:
    """Return for each trial the index of the fastest trial so far.

    The index is None before the first valid trial.

    Args:
        latency: latency of each trial; infinite for invalid trials.
    """
    places: list[int | None] = []
    best, least = None, np.inf
    for place, item in enumerate(latency):
        if item < least:
            best, least = place, item
        places.append(best)
    return places


# -- configs that a run compiles -----------------------------------------------------------------


class Metered:
    """Wrapper of a target that counts compiled configs and adds up their recorded durations.

    All calls are passed on to the target.

    Args:
        target: the target that does the work.
        table: measurements of the workload's space, which may contain the recorded durations.

    Attributes:
        compiled: number of configs that were compiled so far.
        seconds: seconds that the recorded compiler and board took to compile and measure the
            configs so far; 0 if unknown.
    """

    def __init__(self, target: Target, table: MeasurementTable) -> None:
        self._target = target
        self._table = table
        self.name = target.name
        self.fingerprint = target.fingerprint
        self.deterministic = target.deterministic
        self.capabilities = target.capabilities
        self.compiled = 0
        self.seconds = 0.0

    def hardware_features(self) -> dict[str, float]:
        """Return the features of the wrapped target."""
        return self._target.hardware_features()

    def space(self, workload: Workload) -> Space:
        """Return the space of the wrapped target."""
        return self._target.space(workload)

    def lower(self, workload: Workload, configs: Configs) -> Lowered:
        """Lower configs, and count them and their compile seconds."""
        self.compiled += len(configs)
        if self._table.spent is not None:
            self.seconds += float(
                self._table.spent.compiling[self._table.rows_of_configs(configs)].sum()
            )
        return self._target.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure programs, and count the seconds that this took when the table was made."""
        if self._table.spent is not None:
            rows = self._table.rows_of_configs(lowered.configs)
            self.seconds += float(self._table.spent.measuring[rows].sum())
        return self._target.measure(lowered)


# -- finished runs -------------------------------------------------------------------------------

_LIBRARIES = ("numpy", "scipy", "xgboost-cpu", "lightgbm", "scikit-learn")


class KeptRuns:
    """Results of finished runs that are stored in the folder of a comparison.

    A stored result is used only if the run's settings and the code are the same as now.

    Args:
        folder: folder of the comparison.
        plan: the plan.
        fresh: ignore stored results.
    """

    def __init__(self, folder: Path, plan: ComparisonPlan, fresh: bool = False) -> None:
        self.plan = plan
        self._rows = RowCache(folder / RUNS, TunerRun, fresh)

    def find(self, job: ComparisonJob) -> TunerRun | None:
        """Return the stored result of a run, or None if the run has to be executed."""
        entry = self._rows.find(self._key(job))
        if entry is None:
            return None
        # Settings can be written in more than one way, workloads named anew.
        return replace(entry, tuner=job.tuner_config.label, workload=job.workload)

    def add(self, run: TunerRun) -> None:
        """Store the result of a run on the disk. Raise `OSError` if that fails."""
        label = {tuner_config.label: tuner_config for tuner_config in self.plan.tuner_configs}
        job = ComparisonJob(label[run.tuner], run.workload, run.seed)
        self._rows.add(self._key(job), run)

    def _key(self, job: ComparisonJob) -> str:
        plan, test_bed = self.plan, self.plan.test_bed
        about: dict[str, Json] = {
            "tuner": job.tuner_config.tuner,
            "options": job.tuner_config.explorer.options.model_dump(mode="json"),
            "workload": dict(test_bed.workloads)[job.workload].id,
            "target": test_bed.open(job.workload).fingerprint,
            "seed": job.seed,
            "trials": plan.trials,
            "batch": plan.batch,
            "enough": plan.enough,
            "code": code_digest(),
        }
        return digest(canonical(about))[:32]


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a digest of the source code and libraries that affect results, 16 hex digits."""
    hasher = hashlib.sha256(" ".join(map(version, _LIBRARIES)).encode())
    for package in (targets, search, models):
        for path in package.__path__:
            for file in sorted(Path(path).rglob("*.py")):
                hasher.update(file.name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()[:16]
