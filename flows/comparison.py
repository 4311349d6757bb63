"""Compares tuners with the optimum of enumerated spaces, as consecutive steps.

enumerate_spaces → run_tuners → judge_runs → write_report → log_comparison
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
from tilewright.evaluation.compare.plan import ComparisonPlan
from tilewright.reports.compare.report import write_report
from tilewright.search import LocalRunner


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
