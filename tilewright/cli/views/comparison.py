"""Display of `tilewright compare`: progress, leaderboard, verdict and files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.terminal import (
    Bars,
    columns_of,
    fitted_table,
    latency_text,
    print_line,
)
from tilewright.evaluation.compare.leaderboard import Leaderboard
from tilewright.evaluation.compare.network_comparison import NetworkComparison
from tilewright.evaluation.compare.network_runs import NetworkRun, RunBegan, RunTuned
from tilewright.evaluation.compare.plan import GOAL, ComparisonBegan, ComparisonPlan
from tilewright.evaluation.compare.record import RECORD
from tilewright.evaluation.compare.workload_comparison import (
    Comparison,
    Enumerated,
    Enumerating,
    RunFinished,
)
from tilewright.reports.comparison import REPORT
from tilewright.reports.comparison_note import run_rows
from tilewright.reports.leaderboard import BROKEN_HEADINGS, leaderboard_rows, verdict
from tilewright.reports.markdown import Row
from tilewright.reports.number_format import count_text, duration, percent, speedup
from tilewright.search.events import Event, Listener, Note, StageBegan
from tilewright.tuning.events import WorkloadTuned
from tilewright.tuning.gains import as_latency


class ComparisonBars:
    """Listener that shows progress bars of a comparison on workloads.

    There is one bar for each search space that is measured completely, then one for the runs.

    Args:
        console: the terminal.
        bars: the progress bars.
    """

    def __init__(self, console: Console, bars: Bars) -> None:
        self.console = console
        self.bars = bars
        self._bar = bars.add_task("", visible=False)

    def _next(self, text: str, total: int, completed: int = 0) -> None:
        self.bars.remove_task(self._bar)
        self._bar = self.bars.add_task(text, total=total, completed=completed)

    def __call__(self, event: Event) -> None:
        """Show the progress of the comparison."""
        match event:
            case Enumerating():
                where = f"{event.place}/{event.spaces}"
                self._next(f"enumerating {where}: {event.workload}", event.size)
            case Enumerated():
                self.bars.advance(self._bar, event.configs)
            case ComparisonBegan():
                if 0 < event.kept < event.runs:
                    be = "is" if event.kept == 1 else "are"
                    message = f"{event.kept:,} of {event.runs:,} runs {be} already finished"
                    self.console.print(message, highlight=False)
                self._next("tuning", event.runs, event.kept)
            case RunFinished():
                what = f"{event.run.tuner} on {event.run.workload}"
                self.bars.update(self._bar, advance=1, description=what)


@contextmanager
def show_comparing(console: Console) -> Iterator[ComparisonBars]:
    """Show the progress of a comparison on workloads during a `with` block.

    Args:
        console: the terminal.

    Yields:
        The progress bars, which are a listener for the events of the comparison.
    """
    with Bars(console) as bars:
        yield ComparisonBars(console, bars)


@contextmanager
def recording(
    plan: ComparisonPlan, console: Console
) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """Show two progress bars during a `with` block: logging to MLflow, and training the champions.

    Champions are the models of the best tuner, which are trained again in order to register them.

    Args:
        plan: the comparison.
        console: the terminal.

    Yields:
        Two functions. The first one is called with the number of newly logged runs, and the second
        one with each workload whose champion is being trained.
    """
    # MLflow's messages about its database do not help the user.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    with Bars(console) as bars:
        runs = len(plan.tuner_configs) * len(plan.seeds)
        logged = bars.add_task("logging to MLflow", total=runs)
        learned = bars.add_task(
            "training the champions", total=len(plan.test_bed.workloads), visible=False
        )
        yield (
            lambda done: bars.advance(logged, done),
            lambda _: bars.update(learned, advance=1, visible=True),
        )


_GOAL = percent(GOAL)
_LEFT = ("network", "target", "tuner", "")
_DROPPED_FIRST = (
    f"time\nto {_GOAL}", "failed\ncompiles", "first at\ntrial", "invalid\nuntil then",
    "fastest\non", "time", f"compiles\nto {_GOAL}", "worst\nworkload", "invalid\nshare", "cycles",
    "gain",
)  # fmt: skip
"""Columns of a leaderboard that are left out, in this order, until the table fits a narrow
terminal."""


def leaderboard_table(boards: Sequence[Leaderboard], width: int = 80) -> Table:
    """Return leaderboards as one table, best tuner first, with as many columns as fit.

    Args:
        boards: the leaderboards.
        width: width of the terminal in characters.
    """
    columns = columns_of(leaderboard_rows(boards))
    cells = {BROKEN_HEADINGS.get(head, head): texts for head, texts in columns.items()}
    return fitted_table(cells, _DROPPED_FIRST, width, left=_LEFT)


def show_leaderboards(boards: Sequence[Leaderboard], console: Console) -> None:
    """Show the leaderboards as a table, and the verdict for each subject and target."""
    console.print(leaderboard_table(boards, console.width))
    for board in boards:
        print_line(console, verdict(board))


def show_workloads(compared: Comparison, folder: Path, console: Console) -> None:
    """Show a finished comparison on workloads, and the paths of its files."""
    show_leaderboards(compared.leaderboards, console)
    print_line(console, f"report in {folder / REPORT}, results of every run in {folder / RECORD}")


def show_left_out(left_out: Mapping[str, str], console: Console) -> None:
    """Show the workloads that a comparison left out.

    Args:
        left_out: reason why a workload was left out, by its name.
        console: the terminal.
    """
    for text, reason in left_out.items():
        print_line(console, f"left out: {text}: {reason}")


def show_recorded(address: str, champions: int, console: Console) -> None:
    """Show the address of the comparison in MLflow, and the number of registered models.

    Args:
        address: address of the comparison's page in MLflow.
        champions: number of models of the best tuner that were registered.
        console: the terminal.
    """
    registered = f"; champions: {count_text(champions, 'model')}" if champions else ""
    print_line(console, f"MLflow: {address}{registered} ('tilewright ui' shows it)")


# -- whole runs of networks ----------------------------------------------------------------------


_STAGES = {
    "start_servers": "starting the local servers",
    "plan_networks": "reading the models",
    "read_networks": "collecting the workloads",
}
_RUN_COLUMNS_DROPPED_FIRST = (
    "fallback\nms", "bound\nms", "rule\nms", "fallback\ncycles", "bound\ncycles",
    "rule\ncycles", "trials", "above\nbound",
    "tuned\ncycles", "gain",
)  # fmt: skip
"""Columns of the table of network runs that are left out, in this order, until the table fits a
narrow terminal."""


@contextmanager
def comparing_networks(console: Console) -> Iterator[Listener]:
    """Show the progress of a comparison on networks during a `with` block.

    A terminal shows a progress bar. All outputs get one line per finished run.

    Args:
        console: the terminal.

    Yields:
        A listener for the events of the comparison.
    """
    with Bars(console) as bars:
        bar = bars.add_task("starting", total=None)
        title, done, runs, workloads = "", 0, 0, 0

        def hear(event: Event) -> None:
            nonlocal title, done, runs, workloads
            match event:
                case StageBegan() if event.name in _STAGES:
                    bars.update(bar, description=_STAGES[event.name])
                case ComparisonBegan():
                    done, runs = event.kept, event.runs
                    bars.update(bar, total=runs, completed=done)
                    kept = f", {done:,} of them {'are' if done != 1 else 'is'} already finished"
                    print_line(console, f"{count_text(runs, 'run')}{kept * bool(done)}")
                case RunBegan():
                    title, workloads = event.title, 0
                    bars.update(bar, description=title)
                case WorkloadTuned():
                    workloads += 1
                    now = f"{title}: {count_text(workloads, 'workload')} tuned"
                    bars.update(bar, description=now)
                case RunTuned():
                    done += 1
                    bars.update(bar, completed=done)
                    print_line(console, f"[{done}/{runs}] {run_line(event.run)}")
                case Note():
                    print_line(console, f"{title}: {event.text}" if title else event.text)

        yield hear


def run_line(run: NetworkRun) -> str:
    """Return one line about a finished run: its latency, speed-up over the rule, and duration."""
    tuned = latency_text(as_latency(run.tuned_seconds, run.tuned_cycles)) or "no valid schedule"
    gain = f", speedup {speedup(run.gain, 1.0)} over the rule schedule" if run.gain else ""
    return f"{run.title}: {tuned}{gain}; {duration(run.wall_seconds)}"


def show_networks(
    compared: NetworkComparison, folder: Path, links: Mapping[str, str], console: Console
) -> None:
    """Show a table with one line per run, the leaderboards, and the paths of the files.

    Args:
        compared: the finished comparison.
        folder: output directory of the comparison.
        links: addresses of the comparison's pages, by name.
        console: the terminal.
    """
    console.print(_run_table(run_rows(compared.runs), console.width))
    print_line(console, "")
    show_leaderboards(compared.leaderboards, console)
    print_line(
        console,
        f"results in {folder}: {RECORD}; the run directories are NETWORK/TARGET/TUNER/seed-N",
    )
    if links:
        print_line(console, "'tilewright ui' shows this comparison:")
    for name, address in links.items():
        console.print(f"{name:8} {address}", soft_wrap=True, highlight=False)


def _run_table(rows: Sequence[Row], width: int) -> Table:
    """Return the table of runs that fits into the terminal.

    Headings are broken into two lines at their first blank, before a unit.

    Args:
        rows: cells of each run, by heading.
        width: width of the terminal in characters.
    """
    columns = {head.replace(" ", "\n", 1): cells for head, cells in columns_of(rows).items()}
    return fitted_table(columns, _RUN_COLUMNS_DROPPED_FIRST, width, left=_LEFT)
