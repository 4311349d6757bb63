"""Shows the progress of `tilewright sweep`, and what came out: a line a run, and who won where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.latency import as_latency, latency_text
from tilewright.cli.views.terminal import Bars, columns_of, fitted_table, say
from tilewright.evaluation.sweep.runs import RunBegan, RunTuned, SweepBegan, SweptRun
from tilewright.evaluation.sweep.steps import SWEEP, Sweep
from tilewright.reports.markdown import Row
from tilewright.reports.number_format import counted, duration, speedup
from tilewright.reports.sweep import leaderboard_rows, run_rows, verdict
from tilewright.search.events import Event, Listener, Note, StageBegan
from tilewright.tuning.events import WorkloadTuned
from tilewright.tuning.gains import PUBLISHED

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
    console.print(_table(leaderboard_rows(swept.leaderboards), console.width))
    for each in swept.leaderboards:
        say(console, verdict(each))
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
