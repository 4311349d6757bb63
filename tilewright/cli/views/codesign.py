"""Shows the progress of a co-design run, and its front."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.terminal import progress_bar, ruled_table, say
from tilewright.hardware_search import folder
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.outputs import CodesignOutcome, CodesignSummary
from tilewright.hardware_search.progress import Prepared, SearchProgress
from tilewright.hardware_search.results import FrontRow
from tilewright.reports.number_format import duration, milliseconds, percent, plural
from tilewright.search.events import Event, Listener
from tilewright.tuning.events import Note, StageBegan

_QUIET_SECONDS = 30.0
_STAGES = {
    "pose_problem": "reading the networks",
    "start_servers": "starting the local servers",
    "search_designs": "searching",
    "prove_front": "measuring the front anew and verifying it",
}


@contextmanager
def searching(console: Console) -> Iterator[Listener]:
    """A bar of measurements on a terminal; elsewhere a line now and then."""
    with progress_bar(console) as bars:
        bar = bars.add_task(_STAGES["pose_problem"], total=None)
        spoke = time.monotonic()

        def hear(event: Event) -> None:
            nonlocal spoke
            match event:
                case StageBegan():
                    bars.update(bar, description=_STAGES.get(event.name, event.name))
                case Prepared():
                    bars.update(bar, total=event.trials, completed=0)
                    names = ", ".join(event.networks)
                    count = f"{event.machines:,} {plural(event.machines, 'machine')}"
                    say(console, f"{names}: {count} within bounds and budget")
                case Note():
                    say(console, event.text)
                case SearchProgress():
                    bars.update(bar, completed=event.trials, description=standing_text(event))
                    if not console.is_terminal and time.monotonic() - spoke > _QUIET_SECONDS:
                        spoke = time.monotonic()
                        trials = f"{event.trials:,} {plural(event.trials, 'trial')}"
                        say(console, f"… {trials}, {standing_text(event)}")

        yield hear


def standing_text(event: SearchProgress) -> str:
    """How a search stands, without the number of measurements."""
    seen = f"{event.machines:,} {plural(event.machines, 'machine')} seen"
    if math.isinf(event.latency):
        return f"{seen}, none of them whole yet"
    return f"{seen}, best {milliseconds(event.latency)} ms, front of {event.front}"


def show_front(
    options: CodesignOptions, outcome: CodesignOutcome, links: Mapping[str, str], console: Console
) -> None:
    """The front, where the files are, links to the run's pages by whose they are, and what to type
    next."""
    summary = outcome.summary
    if outcome.front:
        console.print(front_table(summary, outcome.front))
    say(console, _facts(summary))
    say(
        console,
        f"results in {options.folder}: {folder.PAGE}, {folder.FRONT}, {folder.SPECS}/, "
        f"{folder.TRIALS}, {folder.SUMMARY}",
    )
    for name, address in links.items():
        console.print(f"{name:8} {address}", soft_wrap=True, highlight=False)
    if summary["best"] is not None:
        spec = options.folder / folder.SPECS / f"{summary['best']['name']}.json"
        command = ["tilewright", "tune", options.networks[0], "--target", str(spec)]
        say(console, f"next: {shlex.join(command)}")


def front_table(summary: CodesignSummary, front: list[FrontRow]) -> Table:
    """A line a machine, by ascending area."""
    table = ruled_table()
    names = summary["networks"]
    heads = ("machine", "area", *(f"{name}\nms" for name in names), "bottleneck")
    for head in heads:
        table.add_column(head, justify="left" if head in ("machine", "bottleneck") else "right")
    for row in front:
        share = row["shares"].get(row["bottleneck"])
        most = row["bottleneck"] + (f" {percent(share)}" if share is not None else "")
        times = [milliseconds(row["milliseconds"][name] / 1e3) for name in names]
        table.add_row(row["name"], f"{row['area']:.3f}", *times, most)
    return table


def _facts(summary: CodesignSummary) -> str:
    seen, machines = summary["hardware"]["seen"], summary["hardware"]["machines"]
    proof = "measured anew, " * bool(summary["front"]) + (
        "verified bit for bit; " if summary["front"] and summary["verified"] else ""
    )
    return (
        f"{summary['measurements']:,} {plural(summary['measurements'], 'measurement')} of "
        f"{seen:,} of {machines:,} machines by {summary['method']}; {proof}"
        f"{duration(summary['wall_seconds'])}"
    )
