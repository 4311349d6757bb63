"""Running a contest on all cores, and the record of it that programs read.

Every run is a function of (tuner, options, workload, table, seed, budget): neither the number of
processes nor the order in which they finish changes a result, only the seconds.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

from evaluation.compare.plan import GOAL, ComparisonPlan, Job
from search import tune
from targets.errors import TilewrightError
from targets.files import Json, write_atomically

COMPARISON = "comparison.json"
_NONE = np.iinfo(np.int64).max


class ComparisonError(TilewrightError):
    """A comparison that could not be finished."""


@dataclass(frozen=True)
class Run:
    """One tuner on one workload with one seed. Lists have an entry a trial: its status, the best
    cycles after it, and the seconds spent until its round was measured, models included."""

    tuner: str
    workload: str
    seed: int
    statuses: list[str]
    best_cycles: list[int | None]
    lowered: int
    failed_compiles: int
    wall_seconds: float
    elapsed_seconds: list[float] = field(default_factory=list)
    model_errors: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Json]:
        """The entry of `comparison.json`."""
        entry = asdict(self)
        del entry["elapsed_seconds"], entry["model_errors"]
        return entry


def run_job(plan: ComparisonPlan, job: Job) -> Run:
    """One tuning run."""
    target = plan.test_bed.open(job.workload)
    workload = dict(plan.test_bed.workloads)[job.workload]
    explorer = job.tuner_config.explorer
    statuses: list[str] = []
    cycles: list[int] = []
    elapsed: list[float] = []
    errors: dict[str, list[float]] = {}
    lowered = failed = 0
    goal = np.inf
    if plan.enough is not None:
        goal = plan.test_bed.table(job.workload).optimum_cycles * (1 + GOAL)
    start = time.perf_counter()
    for done in tune(
        target, workload, explorer, trials=plan.trials, batch=plan.batch, seed=job.seed
    ):
        statuses += done.measured.status.tolist()
        cycles += np.where(done.measured.valid, done.measured.cycles, _NONE).tolist()
        known = time.perf_counter() - start - done.stage_seconds.get("retrain", 0.0)
        elapsed += [round(known, 6)] * len(done.measured)
        lowered += done.lowered
        failed += done.failed_compiles
        for name, error in done.model_errors.items():
            errors.setdefault(name, []).append(error)
        if plan.enough is not None and len(cycles) >= plan.enough and min(cycles) <= goal:
            break
    seconds = time.perf_counter() - start
    best = np.minimum.accumulate(np.array(cycles, np.int64)).tolist()
    return Run(
        tuner=job.tuner_config.label,
        workload=job.workload,
        seed=job.seed,
        statuses=statuses,
        best_cycles=[None if cycles == _NONE else cycles for cycles in best],
        lowered=lowered,
        failed_compiles=failed,
        wall_seconds=round(seconds, 6),
        elapsed_seconds=elapsed,
        model_errors={name: float(np.mean(each)) for name, each in errors.items()},
    )


def run_jobs(plan: ComparisonPlan, jobs: Sequence[Job], processes: int) -> Iterator[Run]:
    """The runs, in the order in which they finish. Raises `ComparisonError` if a process dies."""
    if processes <= 1 or len(jobs) <= 1:
        yield from (run_job(plan, job) for job in jobs)
        return
    pool = ProcessPoolExecutor(
        min(processes, len(jobs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_enter,
        initargs=(plan,),
    )
    try:
        for done in as_completed([pool.submit(_run, job) for job in jobs]):
            yield done.result()
    except BrokenProcessPool:
        raise ComparisonError(
            "a process of this comparison died, perhaps for lack of memory; repeat the command "
            "with a smaller --jobs: finished runs are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def ordered(plan: ComparisonPlan, runs: Sequence[Run]) -> list[Run]:
    """By tuner as named, workload, seed: the same however the runs came in."""
    found = {(run.tuner, run.workload, run.seed): run for run in runs}
    return [
        found[tuner_config.label, name, seed]
        for tuner_config in plan.tuner_configs
        for name, _ in plan.test_bed.workloads
        for seed in plan.seeds
    ]


def optimum_of(plan: ComparisonPlan) -> dict[str, int]:
    """The best cycles of every workload's space."""
    test_bed = plan.test_bed
    return {name: test_bed.table(name).optimum_cycles for name, _ in test_bed.workloads}


def write_comparison(
    path: Path, plan: ComparisonPlan, optimum: dict[str, int], runs: Sequence[Run]
) -> None:
    """`comparison.json`; its keys are a contract."""
    document = {
        "target": plan.test_bed.target,
        "space": plan.test_bed.space,
        "trials": plan.trials,
        "optimum": optimum,
        "runs": [run.record() for run in runs],
    }
    write_atomically(path, json.dumps(document, ensure_ascii=False).encode())


def all_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- inside the processes ----------------------------------------------------------------------

_plan: ComparisonPlan | None = None


def _enter(plan: ComparisonPlan) -> None:
    global _plan
    _plan = plan
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears Ctrl-C and ends the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(job: Job) -> Run:
    assert _plan is not None
    return run_job(_plan, job)
