"""Executes the runs of a comparison on workloads, and stores finished runs for resuming.

In a run, one tuner tunes one workload with one seed. The result of a run depends only on the tuner
and its options, the workload, the target, the seed, the budget and the source code. The key under
which a run is stored covers all of these. The number of processes and the order of the runs affect
only durations.
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

    Lists have one entry per trial. A config that was lowered but not measured is not a trial.

    Attributes:
        tuner: label of the tuner.
        workload: name of the workload.
        seed: seed of the run.
        statuses: status of the trial.
        best_cycles: cycles of the best schedule so far; None before the first valid trial. The list
            is empty if the target does not count cycles.
        lowered: number of configs that were lowered but did not become trials.
        failed_compiles: number of the configs in `lowered` that did not compile.
        wall_seconds: duration of the run.
        elapsed_seconds: seconds from the start of the run until the trial's batch was measured,
            including the training of models.
        compiled: number of configs, including trials, that were compiled until the trial's batch
            was measured.
        stack_seconds: seconds that the recorded compiler and board took to compile and measure all
            configs until the trial's batch was measured; 0 if unknown.
        model_errors: error of each cost model, averaged over the rounds.
        best_seconds: seconds of the best schedule so far; None before the first valid trial.
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
        """Latency of the best schedule so far: in cycles if the target counts them, else in s."""
        return [*self.best_cycles] or self.best_seconds

    def record(self) -> dict[str, Json]:
        """Return the entry of the run in `comparison.json`."""
        entry = asdict(self)
        for curve in ("elapsed_seconds", "compiled", "stack_seconds", "model_errors"):
            del entry[curve]
        return entry | {"best_cycles": self.best_cycles or [None] * len(self.statuses)}


def run_job(plan: ComparisonPlan, job: ComparisonJob) -> TunerRun:
    """Execute a run of a comparison, in which a tuner tunes a workload.

    If `plan.enough` is set, the run ends early after the first round in which it has at least that
    number of trials and is within `GOAL` of the optimum. Errors of the target or the tuner
    propagate unchanged.

    Args:
        plan: the comparison.
        job: the run.

    Returns:
        The result of the run.
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
    """Sort the results of a comparison's runs by tuner, workload and seed, as in the plan.

    Args:
        plan: the comparison.
        runs: results of all runs, in any order.

    Returns:
        The sorted results.

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
    """Return the latency at which a run may stop early, before its budget is spent.

    It is `GOAL` above the latency of the best config; infinite if the plan sets no early stop.
    """
    if plan.enough is None:
        return np.inf
    return plan.test_bed.table(job.workload).optimum.cost * (1 + GOAL)


@dataclass
class _Notes:
    """Collects the results of a run while it is in progress.

    Time is measured from the creation of the object. Lists have one entry per trial unless stated
    otherwise.

    Attributes:
        meter: the target of the run, which counts compilations.
        statuses: status of the trial.
        latency: latency of the trial; infinite if it is invalid.
        cycles: cycles of the trial.
        seconds: seconds of the trial.
        elapsed: seconds from the start until the trial's batch was measured.
        errors: error of each model, by name, with one entry per round.
        compiled: number of configs that were compiled until the trial's batch was measured.
        stack: seconds that the recorded compiler and board took until the trial's batch was
            measured.
        lowered: number of configs that were lowered but did not become trials.
        failed: number of those configs that did not compile.
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
        known = time.perf_counter() - self.start  # training on this batch counts for the next round
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
    """Return, for each trial, the index of the fastest trial up to and including it.

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
    """Wrapper of a target that counts compiled configs and sums their recorded durations.

    All calls are forwarded to the wrapped target.

    Args:
        target: the wrapped target.
        table: measurements of all configs of the workload. A table that was recorded on hardware
            may also contain how long each config took to compile and to measure.

    Attributes:
        compiled: number of configs that were compiled so far.
        seconds: seconds that compiling and measuring the configs so far took when the table was
            recorded; 0 if unknown.
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
        """Lower configs with the wrapped target, and count them.

        If the table contains durations, the recorded seconds of compiling these configs are added.
        """
        self.compiled += len(configs)
        if self._table.spent is not None:
            self.seconds += float(
                self._table.spent.compiling[self._table.rows_of_configs(configs)].sum()
            )
        return self._target.lower(workload, configs)

    def measure(self, lowered: Lowered) -> Measurements:
        """Measure programs with the wrapped target.

        If the table contains durations, the recorded seconds of measuring these configs are added.
        """
        if self._table.spent is not None:
            rows = self._table.rows_of_configs(lowered.configs)
            self.seconds += float(self._table.spent.measuring[rows].sum())
        return self._target.measure(lowered)


# -- finished runs -------------------------------------------------------------------------------

_LIBRARIES = ("numpy", "scipy", "xgboost-cpu", "lightgbm", "scikit-learn")


class KeptRuns:
    """Results of finished runs that are stored in the output directory of a comparison.

    A stored result is used only if the settings of the run, the source code and the versions of
    numeric libraries have not changed.

    Args:
        folder: output directory of the comparison.
        plan: the plan.
        fresh: delete stored results first.
    """

    def __init__(self, folder: Path, plan: ComparisonPlan, fresh: bool = False) -> None:
        self.plan = plan
        self._rows = RowCache(folder / RUNS, TunerRun, fresh)

    def find(self, job: ComparisonJob) -> TunerRun | None:
        """Return the stored result of a run, or None if the run has to be executed.

        Args:
            job: the run: a tuner, a workload and a seed.
        """
        entry = self._rows.find(self._key(job))
        if entry is None:
            return None
        # The user may have written the same options differently or renamed the workload.
        return replace(entry, tuner=job.tuner_config.label, workload=job.workload)

    def add(self, run: TunerRun) -> None:
        """Append the result of a run to the file of finished runs. Raise `OSError` on failure.

        Args:
            run: result of a run of the plan.
        """
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
    """Return a digest of the source code and libraries that affect the results of runs.

    Stored results with another digest are not used again.

    Returns:
        16 hexadecimal digits.
    """
    hasher = hashlib.sha256(" ".join(map(version, _LIBRARIES)).encode())
    for package in (targets, search, models):
        for path in package.__path__:
            for file in sorted(Path(path).rglob("*.py")):
                hasher.update(file.name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()[:16]
