"""Shows what `tilewright compare` found: progress, the leaderboard, the verdict, where the rest
is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import progress_bar, ruled_table, say
from tilewright.evaluation.compare.comparison import (
    COMPARISON,
    Comparison,
    Enumerated,
    Enumerating,
    RunFinished,
    TuningBegan,
)
from tilewright.evaluation.compare.leaderboard import LeaderboardRow
from tilewright.evaluation.compare.plan import GOAL, ComparisonPlan
from tilewright.evaluation.compare.summary import verdict
from tilewright.reports.compare.report import REPORT
from tilewright.reports.compare.verdict import spoken
from tilewright.reports.number_format import count, duration, percent, ranged
from tilewright.search.events import Event

WIDE = 100  # columns of a terminal that has room for all figures


class ComparisonBars:
    """A bar for the space that is enumerated, then one for the runs."""

    def __init__(self, console: Console, bars: Bars) -> None:
        self.console = console
        self.bars = bars
        self._bar = bars.add_task("", visible=False)

    def _next(self, text: str, total: int, completed: int = 0) -> None:
        self.bars.remove_task(self._bar)
        self._bar = self.bars.add_task(text, total=total, completed=completed)

    def __call__(self, event: Event) -> None:
        """Show how far the comparison is."""
        match event:
            case Enumerating():
                where = f"{event.place}/{event.spaces}"
                self._next(f"enumerating {where}: {event.workload}", event.size)
            case Enumerated():
                self.bars.advance(self._bar, event.configs)
            case TuningBegan():
                if 0 < event.kept < event.runs:
                    said = f"{event.kept:,} of {event.runs:,} runs are here already"
                    self.console.print(said, highlight=False)
                self._next("tuning", event.runs, event.kept)
            case RunFinished():
                what = f"{event.run.tuner} on {event.run.workload}"
                self.bars.update(self._bar, advance=1, description=what)


@contextmanager
def comparing(console: Console) -> Iterator[ComparisonBars]:
    """Progress of a comparison, shown within."""
    with progress_bar(console) as bars:
        yield ComparisonBars(console, bars)


@contextmanager
def recording(
    plan: ComparisonPlan, console: Console
) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Progress of what comes after a comparison, shown within: to be told how many runs were
    logged, and which workload's champion is learned."""
    # What MLflow says of its tables and checks is of no use on this terminal.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    with progress_bar(console) as bars:
        runs = len(plan.tuner_configs) * len(plan.seeds)
        logged = bars.add_task("logging to MLflow", total=runs)
        learned = bars.add_task(
            "learning the champions", total=len(plan.test_bed.workloads), visible=False
        )
        yield (
            lambda done: bars.advance(logged, done),
            lambda _: bars.update(learned, advance=1, visible=True),
        )


def leaderboard_table(rows: Sequence[LeaderboardRow], width: int = 80) -> Table:
    """A line a tuner, best first; more columns where there is room for them."""
    goal = percent(GOAL)
    columns: list[tuple[str, int, Callable[[LeaderboardRow], str | Text]]] = [
        ("regret", 0, lambda row: percent(row.regret.middle)),
        (f"within\n{goal}", 0, lambda row: percent(row.reached)),
        (f"trials\nto {goal}", 0, _trials),
        ("invalid\nuntil then", WIDE, lambda row: count(row.invalid.middle)),
        ("invalid\nshare", 0, lambda row: percent(row.invalid_share.middle)),
        (f"compiles\nto {goal}", 0, lambda row: count(row.compiled.middle)),
        ("failed\ncompiles", WIDE, lambda row: count(row.failed.middle)),
        ("time", 0, lambda row: duration(row.seconds.middle)),
        (f"time\nto {goal}", WIDE, lambda row: duration(row.seconds_to_goal.middle)),
        *_stack_columns(rows, goal),
        ("worst\nlayer", 0, lambda row: percent(row.worst[1])),
    ]
    columns = [column for column in columns if column[1] <= width]
    table = ruled_table(padding=(0, 1, 0, 0))
    table.add_column("tuner", no_wrap=True)
    for name, _, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = (form(row) for _, _, form in columns)
        table.add_row(Text(row.tuner), *cells, style="bold" if row is rows[0] else None)
    return table


def show(compared: Comparison, folder: Path, console: Console) -> None:
    """The table, the verdict, and where the rest is."""
    said = verdict(compared.results, compared.leaderboard)
    console.print(leaderboard_table(compared.leaderboard, console.width))
    console.print(f"{said.best.tuner} {spoken(said)}", markup=False, highlight=False)
    say(console, f"report in {folder / REPORT}, every run in {folder / COMPARISON}")


def show_left_out(left_out: Mapping[str, str], console: Console) -> None:
    """The workloads that cannot take part, each with the reason."""
    for text, reason in left_out.items():
        say(console, f"left out: {text}: {reason}")


def show_recorded(experiment: str, champions: int, console: Console) -> None:
    """Where the runs are in MLflow, and how many models were registered."""
    registered = f"; champions: {champions} models" if champions else ""
    say(console, f"MLflow experiment '{experiment}'{registered} ('tilewright ui' shows it)")


def _stack_columns(
    rows: Sequence[LeaderboardRow], goal: str
) -> list[tuple[str, int, Callable[[LeaderboardRow], str]]]:
    """Only where a table says what its stack took."""
    if not any(row.stack_to_goal.middle for row in rows):
        return []
    return [(f"real time\nto {goal}", 0, lambda row: duration(row.stack_to_goal.middle))]


def _trials(row: LeaderboardRow) -> str | Text:
    around = ranged(row.trials, count)
    text = ("" if row.reached == 1 else "≥") + count(row.trials.middle)
    return Text.assemble(text, " ", (around, "dim")) if around else text
