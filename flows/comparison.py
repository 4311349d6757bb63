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
    run: LocalRunner, plan: ComparisonPlan, folder: Path, processes: int = 1, fresh: bool = False
) -> Comparison:
    """Run every tuner of a plan, write the report and the record. Raises as `run_comparison`."""
    compared = run_comparison(run, plan, folder, processes, fresh)
    run(write_report, compared, folder)
    run.call(log_comparison, compared, folder)
    return compared


def run_comparison(
    run: LocalRunner, plan: ComparisonPlan, folder: Path, processes: int = 1, fresh: bool = False
) -> Comparison:
    """Measure spaces that are unknown, and run every tuner.

    Runs are kept in `folder` as they finish, and those that are there already are not repeated
    unless `fresh`. Raises `ComparisonError` if a process dies, `OSError` if the folder cannot be
    written, and what targets and tuners raise.
    """
    run(enumerate_spaces, plan, run.emit)
    runs = run(run_tuners, plan, folder, processes, fresh, run.emit)
    return run(judge_runs, plan, runs).value
