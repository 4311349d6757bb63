"""A comparison as a command: enumerate what is unknown, run every tuner, report."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from evaluation.compare.kept_runs import KeptRuns
from evaluation.compare.plan import GOAL, ComparisonPlan
from evaluation.compare.runs import (
    COMPARISON,
    Run,
    optimum_of,
    ordered,
    run_jobs,
    write_comparison,
)
from evaluation.compare.standings import Results, Standing, results_of, standings
from evaluation.compare.test_bed import OracleTestBed
from reports.compare.report import REPORT, ground, report, verdict
from reports.figures import count, duration, percent, ranged
from targets.files import write_atomically
from tuning.folders import check_folder


@dataclass(frozen=True)
class Compared:
    """What a comparison came to."""

    plan: ComparisonPlan
    runs: list[Run]
    results: Results
    standings: list[Standing]


def run_comparison(
    plan: ComparisonPlan, folder: Path, console: Console, *, processes: int, fresh: bool = False
) -> Compared:
    """Run a contest and write `comparison.json` and `report.html`. Runs that are already in the
    folder are not repeated. Raises `TilewrightError`."""
    check_folder(folder)
    if isinstance(plan.test_bed, OracleTestBed):
        _enumerate(plan.test_bed, console)
    optimum = optimum_of(plan)
    runs = _run(plan, KeptRuns(folder, plan, fresh), console, processes)
    results = results_of(runs, optimum, plan.trials)
    rows = standings(results)
    test_bed = plan.test_bed
    grounds = [ground(name, test_bed.table(name)) for name, _ in test_bed.workloads]
    live = isinstance(test_bed, OracleTestBed) and test_bed.live
    write_comparison(folder / COMPARISON, plan, optimum, runs)
    write_atomically(folder / REPORT, report(plan, results, rows, grounds, live))
    return Compared(plan, runs, results, rows)


def record(compared: Compared, folder: Path, console: Console) -> None:
    """Log a comparison to MLflow and register its champion. Imports MLflow: `use_home` first."""
    from tasks.comparison_records import log_comparison
    from tasks.crowning import crown

    # What MLflow says of its tables and checks is of no use on this terminal.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    plan, results = compared.plan, compared.results
    with _progress(console) as progress:
        total = len(plan.tuner_configs) * len(plan.seeds)
        bar = progress.add_task("logging to MLflow", total=total)
        logged = log_comparison(
            plan, results, compared.runs, [folder / REPORT, folder / COMPARISON],
            lambda done: progress.advance(bar, done),
        )  # fmt: skip
        bar = progress.add_task("learning the champions", total=len(plan.test_bed.workloads))
        crowned = crown(
            plan, results, compared.standings, logged, lambda _: progress.advance(bar, 1)
        )
    champions = f"; champions: {len(crowned)} models" if crowned else ""
    console.print(
        f"MLflow experiment '{logged.name}'{champions} ('tilewright ui' shows it)",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def standings_table(rows: Sequence[Standing], width: int = 80) -> Table:
    """A line a tuner, best first; more columns where there is room for them."""
    goal = percent(GOAL)
    columns: list[tuple[str, int, Callable[[Standing], str]]] = [
        ("regret", 0, lambda row: percent(row.regret.middle)),
        (f"within\n{goal}", 0, lambda row: percent(row.reached)),
        (f"trials\nto {goal}", 0, _trials),
        ("invalid\nuntil then", 100, lambda row: count(row.invalid.middle)),
        ("invalid\nshare", 0, lambda row: percent(row.invalid_share.middle)),
        ("lowered\nbeyond", 0, lambda row: count(row.lowered.middle)),
        ("failed\ncompiles", 100, lambda row: count(row.failed.middle)),
        ("time", 0, lambda row: duration(row.seconds.middle)),
        (f"time\nto {goal}", 100, lambda row: duration(row.seconds_to_goal.middle)),
        ("worst\nlayer", 0, lambda row: percent(row.worst[1])),
    ]
    columns = [column for column in columns if column[1] <= width]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("tuner", no_wrap=True)
    for name, _, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = (form(row) for _, _, form in columns)
        table.add_row(row.tuner, *cells, style="bold" if row is rows[0] else None)
    return table


def _trials(row: Standing) -> str:
    around = ranged(row.trials, count)
    text = ("" if row.reached == 1 else "≥") + count(row.trials.middle)
    return f"{text} [dim]{around}[/]" if around else text


def show(compared: Compared, folder: Path, console: Console) -> None:
    """The table, the verdict, and where the rest is."""
    console.print(standings_table(compared.standings, console.width))
    text = re.sub(r"<[^>]*>", "", verdict(compared.results, compared.standings))
    console.print(text, markup=False, highlight=False)
    console.print(
        f"report in {folder / REPORT}, every run in {folder / COMPARISON}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


# -- the two long stages -------------------------------------------------------------------------


def _enumerate(test_bed: OracleTestBed, console: Console) -> None:
    missing = test_bed.missing()
    with _progress(console) as progress:
        for place, (workload, size) in enumerate(missing, 1):
            bar = progress.add_task(f"enumerating {place}/{len(missing)}: {workload}", total=size)
            test_bed.enumerate(workload, lambda done, bar=bar: progress.advance(bar, done))  # type: ignore[misc]
            progress.remove_task(bar)


def _run(plan: ComparisonPlan, kept: KeptRuns, console: Console, processes: int) -> list[Run]:
    found = [(job, kept.find(job)) for job in plan.jobs]
    runs = [run for _, run in found if run is not None]
    missing = [job for job, run in found if run is None]
    if runs and missing:
        console.print(f"{len(runs):,} of {len(found):,} runs are here already", highlight=False)
    with _progress(console) as progress:
        bar = progress.add_task("tuning", total=len(found), completed=len(runs))
        for run in run_jobs(plan, missing, processes):
            kept.add(run)
            runs.append(run)
            progress.update(bar, advance=1, description=f"{run.tuner} on {run.workload}")
    return ordered(plan, runs)


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
