"""Performs the steps of a comparison of tuners as Prefect tasks.

Plans and comparisons hold tables of many runs: give them `unsearched`.
"""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from tilewright.evaluation.compare.comparison import (
    COMPARISON,
    Comparison,
    ComparisonProgress,
    run_comparison,
)
from tilewright.evaluation.compare.plan import ComparisonPlan
from tilewright.evaluation.compare.runs import TunerRun
from tilewright.evaluation.compare.summary import verdict
from tilewright.reports.compare.leaderboard_table import leaderboard_columns
from tilewright.reports.compare.report import REPORT, write_report
from tilewright.reports.compare.verdict import spoken
from tilewright.reports.markdown import code, plain
from tilewright.reports.run_description import paragraphs
from tilewright.reports.run_table import markdown_table
from tilewright.tasks.cached_task import step
from tilewright.tasks.log_comparison import log_comparison
from tilewright.tasks.progress import Progress as Bar
from tilewright.tasks.register_champion import register_champion


class ProgressArtifact(ComparisonProgress):
    """Moves a progress artifact."""

    def __init__(self, runs: int) -> None:
        self._bar, self._done = Bar("runs", runs, f"of {runs} runs"), 0

    def tuning(self, kept: int, runs: int) -> None:
        self._done = kept

    def finished(self, run: TunerRun) -> None:
        self._done += 1
        self._bar.show(self._done)

    def end(self) -> None:
        """All runs are done."""
        self._bar.end()


@step("{runs} runs of {tuners}")
def compare_all(
    runs: int, tuners: str, plan: ComparisonPlan, place: str, processes: int, fresh: bool
) -> Comparison:
    """Measure spaces that are unknown, and run every tuner."""
    shown = ProgressArtifact(runs)
    compared = run_comparison(plan, Path(place), processes=processes, fresh=fresh, progress=shown)
    shown.end()
    return compared


@step("report in {place}")
def report_all(place: str, compared: Comparison) -> None:
    """The page with all that was found, and the leaderboard in Prefect."""
    write_report(compared, Path(place))
    rows = leaderboard_rows(compared)
    said = verdict(compared.results, compared.leaderboard)
    tuner = said.best.tuner
    create_table_artifact(key="leaderboard", table=rows, description=plain(tuner))
    note = paragraphs(
        f"# {plain(tuner)}",
        f"{plain(tuner)} {plain(spoken(said))}",
        markdown_table(rows),
        f"The report is {code(REPORT)} in {code(place)}.",
    )
    create_markdown_artifact(key="comparison", markdown=note, description=plain(tuner))


@step("{runs} runs to MLflow")
def record_all(runs: int, place: str, compared: Comparison) -> int:
    """All runs in MLflow, and the best tuner's models among the registered ones; says how many."""
    folder = Path(place)
    files = [folder / REPORT, folder / COMPARISON]
    logged = log_comparison(compared.plan, compared.results, compared.runs, files)
    return len(register_champion(compared.plan, compared.results, compared.leaderboard, logged))


def leaderboard_rows(compared: Comparison) -> list[dict[str, str]]:
    """A row a tuner, best first."""
    columns = leaderboard_columns(compared.leaderboard)
    return [
        {"tuner": row.tuner}
        | {" ".join(column.heading): column.cells[place].text for column in columns}
        for place, row in enumerate(compared.leaderboard)
    ]
