"""Compares tuners, as consecutive steps: on workloads whose optimum is known, or by whole runs of
networks.

workloads: enumerate_spaces → run_tuners → judge_runs → write_report → log_comparison
networks:  plan_sweep → read_networks → tune_run, keep_run, a run after the other → judge_networks
           → log_sweep
"""

from __future__ import annotations

from pathlib import Path

from tilewright.evaluation.compare.comparison import (
    Comparison,
    enumerate_spaces,
    judge_runs,
    log_comparison,
    run_tuners,
)
from tilewright.evaluation.compare.network_plan import SweepJob, SweepPlan, plan_sweep
from tilewright.evaluation.compare.network_runs import RunBegan, SweptRuns
from tilewright.evaluation.compare.network_steps import (
    Sweep,
    judge_networks,
    keep_run,
    log_sweep,
    log_sweep_began,
    read_networks,
)
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.evaluation.compare.plan import ComparisonPlan
from tilewright.flows.tuning import tune_network
from tilewright.reports.comparison import write_report
from tilewright.reports.run_pictures import draw_run
from tilewright.search import LocalRunner
from tilewright.search.events import Listener
from tilewright.tuning.open_trials import alone
from tilewright.tuning.outputs import Summary


def compare_tuners(
    run: LocalRunner, plan: ComparisonPlan, folder: Path, cluster: str = "", fresh: bool = False
) -> Comparison:
    """Run every tuner of a plan, write the report and the record. Raises as `run_comparison`."""
    compared = run_comparison(run, plan, folder, cluster, fresh)
    run(write_report, compared, folder)
    run.call(log_comparison, compared, folder)
    return compared


def run_comparison(
    run: LocalRunner, plan: ComparisonPlan, folder: Path, cluster: str = "", fresh: bool = False
) -> Comparison:
    """Measure spaces that are unknown, and run every tuner.

    Args:
        run: executes the steps.
        plan: the comparison.
        folder: keeps runs as they finish.
        cluster: the Dask cluster whose workers make the runs, as `--cluster` takes it; "" for this
            process.
        fresh: whether runs that the folder holds are made again.

    Raises:
        ClusterError: the cluster cannot be used.
        OSError: the folder cannot be written.
        TilewrightError: an error of a target or a tuner.
    """
    run(enumerate_spaces, plan, run.emit)
    runs = run(run_tuners, plan, folder, cluster, fresh, run.emit)
    return run(judge_runs, plan, runs)


def compare_networks(
    run: LocalRunner, options: CompareOptions, plan: SweepPlan | None = None
) -> Sweep:
    """Make every run of a sweep that is not finished yet, each in an output directory of its own.
    One that was stopped resumes from its trials. `plan` is what `plan_sweep` said, if it was asked
    already.

    Raises as `plan_sweep` and `flows.tuning.tune_network`, `RunInUse` if another command works on
    the folder.
    """
    plan = plan or run(plan_sweep, options)
    with alone(plan.folder):
        kept = SweptRuns(plan)
        missing = [job for job in plan.jobs if kept.find(job) is None]
        run(read_networks, missing)
        run.call(log_sweep_began, plan, len(plan.jobs) - len(missing), run.emit)
        for job in missing:
            run.emit(RunBegan(job.title))
            summary = run(tune_run, job, run.emit)
            run.call(keep_run, kept, job, summary, run.emit)
        swept = run(judge_networks, plan, kept)
        run.call(log_sweep, swept, plan.folder)
    return swept


def tune_run(job: SweepJob, emit: Listener) -> Summary:
    """Tune a network, as `tilewright tune --bare`. Raises as `tune_network`."""
    found = tune_network(LocalRunner(emit), job.options)
    draw_run(job.options.folder, found)
    return found.summary
