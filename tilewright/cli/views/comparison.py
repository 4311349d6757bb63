"""Shows what `tilewright compare` found: progress, the leaderboard, the verdict, where the rest
is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.cli.views.terminal import Bars, fitted_table, say
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
from tilewright.reports.comparison import REPORT, spoken
from tilewright.reports.number_format import count, counted, duration, percent, ranged
from tilewright.search.events import Event


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
                    be = "is" if event.kept == 1 else "are"
                    said = f"{event.kept:,} of {event.runs:,} runs {be} here already"
                    self.console.print(said, highlight=False)
                self._next("tuning", event.runs, event.kept)
            case RunFinished():
                what = f"{event.run.tuner} on {event.run.workload}"
                self.bars.update(self._bar, advance=1, description=what)


@contextmanager
def comparing(console: Console) -> Iterator[ComparisonBars]:
    """Progress of a comparison, shown within."""
    with Bars(console) as bars:
        yield ComparisonBars(console, bars)


@contextmanager
def recording(
    plan: ComparisonPlan, console: Console
) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Progress of what comes after a comparison, shown within: to be told how many runs were
    logged, and which workload's champion is learned."""
    # What MLflow says of its tables and checks is of no use on this terminal.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    with Bars(console) as bars:
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
    """A line a tuner, best first; as many columns as there is room for."""
    goal = percent(GOAL)
    columns: dict[str, Callable[[LeaderboardRow], str | Text]] = {
        "tuner": lambda row: Text(row.tuner),
        "regret": lambda row: percent(row.regret.middle),
        f"within\n{goal}": lambda row: percent(row.reached),
        f"trials\nto {goal}": _trials,
        "invalid\nuntil then": lambda row: count(row.invalid.middle),
        "invalid\nshare": lambda row: percent(row.invalid_share.middle),
        f"compiles\nto {goal}": lambda row: count(row.compiled.middle),
        "failed\ncompiles": lambda row: count(row.failed.middle),
        "time": lambda row: duration(row.seconds.middle),
        f"time\nto {goal}": lambda row: duration(row.seconds_to_goal.middle),
        **_stack_columns(rows, goal),
        "worst\nlayer": lambda row: percent(row.worst[1]),
    }
    cells = {head: [form(row) for row in rows] for head, form in columns.items()}
    droppable = (
        f"time\nto {goal}", "failed\ncompiles", "invalid\nuntil then", "time",
        f"compiles\nto {goal}", "worst\nlayer", "invalid\nshare",
    )  # fmt: skip
    return fitted_table(cells, droppable, width, styles=("bold",))


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
    registered = f"; champions: {counted(champions, 'model')}" if champions else ""
    say(console, f"MLflow experiment '{experiment}'{registered} ('tilewright ui' shows it)")


def _stack_columns(
    rows: Sequence[LeaderboardRow], goal: str
) -> dict[str, Callable[[LeaderboardRow], str | Text]]:
    """Only where a table says what its stack took."""
    if not any(row.stack_to_goal.middle for row in rows):
        return {}
    return {f"real time\nto {goal}": lambda row: duration(row.stack_to_goal.middle)}


def _trials(row: LeaderboardRow) -> str | Text:
    around = ranged(row.trials, count)
    text = ("" if row.reached == 1 else "≥") + count(row.trials.middle)
    return Text.assemble(text, " ", (around, "dim")) if around else text
