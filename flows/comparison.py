"""Pipeline that compares tuners, on workloads whose optimum is known or by tuning whole networks.

- On workloads: enumerate_spaces → run_tuners → judge_runs → write_report → log_comparison
- On networks: plan_networks → read_networks → tune_run and keep_run, once per run → judge_networks
  → log_networks
"""

from __future__ import annotations

from pathlib import Path

from tilewright.evaluation.compare.network_comparison import (
    NetworkComparison,
    judge_networks,
    keep_run,
    log_networks,
    log_networks_began,
    read_networks,
)
from tilewright.evaluation.compare.network_plan import NetworkJob, NetworksPlan, plan_networks
from tilewright.evaluation.compare.network_runs import KeptNetworkRuns, RunBegan
from tilewright.evaluation.compare.options import CompareOptions
from tilewright.evaluation.compare.plan import ComparisonPlan
from tilewright.evaluation.compare.workload_comparison import (
    Comparison,
    enumerate_spaces,
    judge_runs,
    log_comparison,
    run_tuners,
)
from tilewright.flows.tuning import tune_network
from tilewright.reports.comparison import write_report
from tilewright.reports.run_pictures import draw_run
from tilewright.search import LocalRunner
from tilewright.search.events import Listener
from tilewright.tuning.open_trials import own_folder
from tilewright.tuning.outputs import Summary


def compare_tuners(
    run: LocalRunner, plan: ComparisonPlan, folder: Path, cluster: str = "", fresh: bool = False
) -> Comparison:
    """Run every tuner of a plan on its workloads, and write `report.html` and `comparison.json`.

    Args:
        run: runner that executes the steps.
        plan: tuners, workloads and seeds to compare.
        folder: folder for finished runs and both files.
        cluster: address of the Dask cluster whose workers execute the runs, as in `--cluster`; ""
            for this process.
        fresh: whether to repeat runs that the folder already contains.

    Returns:
        The results of all runs, and the leaderboard.

    Raises the errors of `run_comparison`.
    """
    compared = run_comparison(run, plan, folder, cluster, fresh)
    run(write_report, compared, folder)
    run.call(log_comparison, compared, folder)
    return compared


def run_comparison(
    run: LocalRunner, plan: ComparisonPlan, folder: Path, cluster: str = "", fresh: bool = False
) -> Comparison:
    """Run every tuner of a plan on its workloads, and evaluate the runs.

    If the optimum of a workload is not known yet, every config of the workload is measured first.

    Args:
        run: runner that executes the steps.
        plan: tuners, workloads and seeds to compare.
        folder: folder in which finished runs are stored.
        cluster: address of the Dask cluster whose workers execute the runs, as in `--cluster`; ""
            for this process.
        fresh: whether to repeat runs that the folder already contains.

    Returns:
        The results of all runs, and the leaderboard.

    Raises:
        ClusterError: the cluster cannot be used.
        OSError: the folder cannot be written.
        TilewrightError: a target or a tuner fails.
    """
    run(enumerate_spaces, plan, run.emit)
    runs = run(run_tuners, plan, folder, cluster, fresh, run.emit)
    return run(judge_runs, plan, runs)


def compare_networks(
    run: LocalRunner, options: CompareOptions, plan: NetworksPlan | None = None
) -> NetworkComparison:
    """Tune every network with every tuner and seed. Each run has its own output directory.

    Finished runs are not repeated. A run that was stopped resumes from its trials.

    Args:
        run: runner that executes the steps.
        options: networks, target, tuners and seeds to compare.
        plan: result of `plan_networks`, if the caller already has it.

    Returns:
        The results of all runs, and one leaderboard per network and target.

    Raises:
        RunInUse: another command is working on the folder.
        TilewrightError: as `plan_networks` and `flows.tuning.tune_network`.
    """
    plan = plan or run(plan_networks, options)
    with own_folder(plan.folder):
        kept = KeptNetworkRuns(plan)
        missing = [job for job in plan.jobs if kept.find(job) is None]
        run(read_networks, missing)
        run.call(log_networks_began, plan, len(plan.jobs) - len(missing), run.emit)
        for job in missing:
            run.emit(RunBegan(job.title))
            summary = run(tune_run, job, run.emit)
            run.call(keep_run, kept, job, summary, run.emit)
        compared = run(judge_networks, plan, kept)
        run.call(log_networks, compared, plan.folder)
    return compared


def tune_run(job: NetworkJob, emit: Listener) -> Summary:
    """Tune one network with one tuner and seed, like `tilewright tune --bare`.

    Raises the errors of `tune_network`.

    Args:
        job: the network, tuner, seed and output directory of the run.
        emit: function that receives the events.

    Returns:
        The content of `summary.json`.
    """
    network = tune_network(LocalRunner(emit), job.options)
    draw_run(job.options.folder, network)
    return network.summary
