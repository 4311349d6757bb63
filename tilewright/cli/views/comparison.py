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

from tilewright.cli.views.terminal import (
    Bars,
    as_latency,
    columns_of,
    fitted_table,
    latency_text,
    say,
)
from tilewright.evaluation.compare.comparison import (
    COMPARISON,
    Comparison,
    Enumerated,
    Enumerating,
    RunFinished,
    TuningBegan,
)
from tilewright.evaluation.compare.leaderboard import LeaderboardRow
from tilewright.evaluation.compare.network_runs import RunBegan, RunTuned, SweepBegan, SweptRun
from tilewright.evaluation.compare.network_steps import SWEEP, Sweep
from tilewright.evaluation.compare.plan import GOAL, ComparisonPlan
from tilewright.evaluation.compare.summary import verdict
from tilewright.reports.comparison import REPORT, spoken
from tilewright.reports.markdown import Row
from tilewright.reports.network_comparison import leaderboard_rows as network_rows
from tilewright.reports.network_comparison import run_rows
from tilewright.reports.network_comparison import verdict as network_verdict
from tilewright.reports.number_format import count, counted, duration, percent, ranged, speedup
from tilewright.search.events import Event, Listener, Note, StageBegan
from tilewright.tuning.events import WorkloadTuned
from tilewright.tuning.gains import PUBLISHED


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


# -- whole runs of networks ----------------------------------------------------------------------


_STAGES = {
    "start_servers": "starting the local servers",
    "plan_sweep": "reading the models",
    "read_networks": "finding what there is to tune",
}
_NAMES = ("network", "target", "tuner")
_DROPPABLE = (
    "bound\nms", "baseline\nms", "bound\ncycles", "baseline\ncycles", "trials", "above\nbound",
    "tuned\ncycles", "median\ncycles", "fastest\non", "gain", "median\ngain",
)  # fmt: skip
"""Columns that a narrow terminal does without, the first first."""


@contextmanager
def sweeping(console: Console) -> Iterator[Listener]:
    """A bar of runs on a terminal; elsewhere a line a finished run, and now and then one of the run
    at work."""
    with Bars(console) as bars:
        bar = bars.add_task("starting", total=None)
        title, done, runs, workloads = "", 0, 0, 0

        def hear(event: Event) -> None:
            nonlocal title, done, runs, workloads
            match event:
                case StageBegan() if event.name in _STAGES:
                    bars.update(bar, description=_STAGES[event.name])
                case SweepBegan():
                    done, runs = event.kept, event.runs
                    bars.update(bar, total=runs, completed=done)
                    kept = f", {done:,} of them {'are' if done != 1 else 'is'} here already"
                    say(console, f"{counted(runs, 'run')}{kept * bool(done)}")
                case RunBegan():
                    title, workloads = event.title, 0
                    bars.update(bar, description=title)
                case WorkloadTuned():
                    workloads += 1
                    now = f"{title}: {counted(workloads, 'workload')} tuned"
                    bars.update(bar, description=now)
                case RunTuned():
                    done += 1
                    bars.update(bar, completed=done)
                    say(console, f"[{done}/{runs}] {run_line(event.run)}")
                case Note():
                    say(console, f"{title}: {event.text}" if title else event.text)

        yield hear


def run_line(run: SweptRun) -> str:
    """A finished run in a line."""
    tuned = latency_text(as_latency(run.tuned_seconds, run.tuned_cycles)) or "nothing valid"
    gain = f", gain {speedup(run.gain, 1.0)} over the {run.baseline}" if run.gain else ""
    return f"{run.title}: {tuned}{gain}; {duration(run.wall_seconds)}"


def show_sweep(swept: Sweep, folder: Path, links: Mapping[str, str], console: Console) -> None:
    """A line a run, a line a tuner on each network and target, who won, and where all is."""
    console.print(_table(run_rows(swept.runs), console.width))
    say(console, "")
    console.print(_table(network_rows(swept.leaderboards), console.width))
    for each in swept.leaderboards:
        say(console, network_verdict(each))
    if any(run.baseline != PUBLISHED for run in swept.runs):
        say(console, "~ is over the stock compiler's fallback, or a rule, where it publishes none")
    say(console, f"results in {folder}: {SWEEP}, and each run in NETWORK/TARGET/TUNER/seed-N")
    if links:
        say(console, "'tilewright ui' shows this sweep:")
    for name, address in links.items():
        console.print(f"{name:8} {address}", soft_wrap=True, highlight=False)


def _table(rows: Sequence[Row], width: int) -> Table:
    """Heads in two lines where they have a unit."""
    columns = {head.replace(" ", "\n", 1): cells for head, cells in columns_of(rows).items()}
    return fitted_table(columns, _DROPPABLE, width, left=(*_NAMES, ""))
