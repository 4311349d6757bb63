"""Performs the steps of a comparison of tuners as Prefect tasks.

Plans and comparisons hold tables of many runs: Prefect does not search them for futures.
"""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from tilewright.evaluation.compare import comparison
from tilewright.evaluation.compare.comparison import (
    COMPARISON,
    Comparison,
    RunFinished,
    TuningBegan,
)
from tilewright.evaluation.compare.plan import ComparisonPlan
from tilewright.evaluation.compare.runs import TunerRun
from tilewright.evaluation.compare.summary import verdict
from tilewright.reports.compare.leaderboard_table import leaderboard_columns
from tilewright.reports.compare.report import REPORT, write_report
from tilewright.reports.compare.verdict import spoken
from tilewright.reports.markdown import code, plain
from tilewright.reports.number_format import counted
from tilewright.reports.run_description import paragraphs
from tilewright.reports.run_table import markdown_table
from tilewright.search.events import Event, Listener
from tilewright.tasks.cached_task import step, unsearched
from tilewright.tasks.log_comparison import log_comparison
from tilewright.tasks.progress import Progress as Bar
from tilewright.tasks.register_champion import register_champion
from tilewright.tasks.tracked_runner import Step, TrackedRunner


class ComparisonRunner(TrackedRunner):
    """Performs the steps of a comparison as tasks, with a progress that moves."""

    def __init__(self, tuners: str) -> None:
        own: dict[Step, Step] = {
            comparison.enumerate_spaces: self._enumerate_spaces,
            comparison.run_tuners: self._run_tuners,
            write_report: lambda compared, folder: _write_report(str(folder), unsearched(compared)),
            comparison.log_comparison: self._log_comparison,
        }
        super().__init__(self._show, own)
        self.tuners = tuners
        self._bar: Bar | None = None
        self._done = 0

    def _enumerate_spaces(self, plan: ComparisonPlan, emit: Listener) -> None:
        _enumerate_spaces(plan.test_bed.target, unsearched(plan), unsearched(emit))

    def _run_tuners(
        self, plan: ComparisonPlan, folder: Path, processes: int, fresh: bool, emit: Listener
    ) -> list[TunerRun]:
        return _run_tuners(
            len(plan.jobs), self.tuners, unsearched(plan), str(folder), processes, fresh,
            unsearched(emit),
        )  # fmt: skip

    def _log_comparison(self, compared: Comparison, folder: Path, emit: Listener) -> None:
        _log_comparison(len(compared.runs), str(folder), unsearched(compared))

    def _show(self, event: Event) -> None:
        if isinstance(event, TuningBegan):
            self._bar = Bar("runs", event.runs, f"of {counted(event.runs, 'run')}")
            self._done = event.kept
        elif isinstance(event, RunFinished) and self._bar is not None:
            self._done += 1
            self._bar.show(self._done)


@step("spaces of {target}")
def _enumerate_spaces(target: str, plan: ComparisonPlan, emit: Listener) -> None:
    """Measure spaces that are unknown."""
    comparison.enumerate_spaces(plan, emit)


@step("{runs} runs of {tuners}")
def _run_tuners(
    runs: int, tuners: str, plan: ComparisonPlan, place: str, processes: int, fresh: bool,
    emit: Listener,
) -> list[TunerRun]:  # fmt: skip
    """Run every tuner."""
    return comparison.run_tuners(plan, Path(place), processes, fresh, emit)


@step("report in {place}")
def _write_report(place: str, compared: Comparison) -> None:
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
def _log_comparison(runs: int, place: str, compared: Comparison) -> int:
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
