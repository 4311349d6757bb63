"""Tunes networks on targets with several tuners and seeds, as consecutive steps.

plan_sweep → read_networks → tune_run, keep_run, a run after the other → judge_runs → log_sweep
"""

from __future__ import annotations

from tilewright.evaluation.sweep.options import SweepOptions
from tilewright.evaluation.sweep.plan import SweepJob, SweepPlan, plan_sweep
from tilewright.evaluation.sweep.runs import RunBegan, SweptRuns
from tilewright.evaluation.sweep.steps import (
    Sweep,
    judge_runs,
    keep_run,
    log_sweep,
    log_sweep_began,
    read_networks,
)
from tilewright.flows.tuning import tune_network
from tilewright.reports.run_pictures import draw_run
from tilewright.search import LocalRunner
from tilewright.search.events import Listener
from tilewright.tuning.open_trials import alone
from tilewright.tuning.outputs import Summary


def sweep(run: LocalRunner, options: SweepOptions, plan: SweepPlan | None = None) -> Sweep:
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
        swept = run(judge_runs, plan, kept)
        run.call(log_sweep, swept, plan.folder)
    return swept


def tune_run(job: SweepJob, emit: Listener) -> Summary:
    """Tune a network, as `tilewright tune --bare`. Raises as `tune_network`."""
    found = tune_network(LocalRunner(emit), job.options)
    draw_run(job.options.folder, found)
    return found.summary
