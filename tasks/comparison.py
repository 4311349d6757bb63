"""Performs the steps of a comparison of tuners as Prefect tasks.

Plans and comparisons hold tables of many runs: Prefect does not search them for futures.
"""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from tilewright.evaluation.compare.comparison import (
    COMPARISON,
    Comparison,
    RunFinished,
    TuningBegan,
    enumerate_spaces,
    log_comparison,
    run_tuners,
)
from tilewright.evaluation.compare.summary import verdict
from tilewright.reports.compare.leaderboard_table import leaderboard_columns
from tilewright.reports.compare.report import REPORT, write_report
from tilewright.reports.compare.verdict import spoken
from tilewright.reports.markdown import code, paragraphs, plain
from tilewright.reports.number_format import counted
from tilewright.reports.run_table import markdown_table
from tilewright.search.events import Event
from tilewright.tasks.log_comparison import log_runs
from tilewright.tasks.register_champion import register_champion
from tilewright.tasks.run_progress import Progress as Bar
from tilewright.tasks.tracked_runner import Step, TrackedRunner, as_task


class ComparisonRunner(TrackedRunner):
    """Performs the steps of a comparison as tasks, with a progress that moves."""

    def __init__(self, tuners: str) -> None:
        own: dict[Step, Step] = {
            enumerate_spaces: as_task(enumerate_spaces, "spaces of {plan.test_bed.target}"),
            run_tuners: as_task(
                run_tuners, lambda parameters: f"{len(parameters['plan'].jobs)} runs of {tuners}"
            ),
            write_report: as_task(write_report, "report in {folder}", _show_report),
            log_comparison: as_task(log_comparison, "runs to MLflow", _log_comparison),
        }
        super().__init__(self._show, own)
        self._bar: Bar | None = None
        self._done = 0

    def _show(self, event: Event) -> None:
        if isinstance(event, TuningBegan):
            self._bar = Bar("runs", event.runs, f"of {counted(event.runs, 'run')}")
            self._done = event.kept
        elif isinstance(event, RunFinished) and self._bar is not None:
            self._done += 1
            self._bar.show(self._done)


def _show_report(compared: Comparison, folder: Path) -> None:
    """Write the page with all that was found, and show the leaderboard in Prefect."""
    write_report(compared, folder)
    rows = leaderboard_rows(compared)
    said = verdict(compared.results, compared.leaderboard)
    tuner = said.best.tuner
    create_table_artifact(key="leaderboard", table=rows, description=plain(tuner))
    note = paragraphs(
        f"# {plain(tuner)}",
        f"{plain(tuner)} {plain(spoken(said))}",
        markdown_table(rows),
        f"The report is {code(REPORT)} in {code(str(folder))}.",
    )
    create_markdown_artifact(key="comparison", markdown=note, description=plain(tuner))


def _log_comparison(compared: Comparison, folder: Path) -> None:
    """Write the record, log all runs to MLflow, and register the best tuner's models."""
    log_comparison(compared, folder)
    files = [folder / REPORT, folder / COMPARISON]
    logged = log_runs(compared.plan, compared.results, compared.runs, files)
    register_champion(compared.plan, compared.results, compared.leaderboard, logged)


def leaderboard_rows(compared: Comparison) -> list[dict[str, str]]:
    """A row a tuner, best first."""
    columns = leaderboard_columns(compared.leaderboard)
    return [
        {"tuner": row.tuner}
        | {" ".join(column.heading): column.cells[place].text for column in columns}
        for place, row in enumerate(compared.leaderboard)
    ]
