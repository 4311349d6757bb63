"""Display of a co-design run: its progress and its Pareto front."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.terminal import BREAK, Bars, columns_of, fitted_table, print_line
from tilewright.hardware_search import output_folder as folder
from tilewright.hardware_search.options import CodesignOptions
from tilewright.hardware_search.progress import Prepared, SearchProgress
from tilewright.hardware_search.results import CodesignOutcome, CodesignSummary, FrontRow
from tilewright.reports.number_format import count_text, duration, milliseconds, percent
from tilewright.search.events import Event, Listener
from tilewright.targets.registry import kind_of
from tilewright.tuning.events import Note, StageBegan

_STAGES = {
    "pose_problem": "reading the networks",
    "start_servers": "starting the local servers",
    "search_designs": "searching",
    "prove_front": "measuring the front again and verifying it",
}


@contextmanager
def show_search(console: Console) -> Iterator[Listener]:
    """Show a progress bar of measurements during a `with` block.

    Args:
        console: the terminal.

    Yields:
        A listener for the events of the run.
    """
    with Bars(console) as bars:
        bar = bars.add_task(_STAGES["pose_problem"], total=None)

        def hear(event: Event) -> None:
            match event:
                case StageBegan():
                    bars.update(bar, description=_STAGES.get(event.name, event.name))
                case Prepared():
                    bars.update(bar, total=event.trials, completed=0)
                    names = ", ".join(event.networks)
                    machines = count_text(event.machines, "machine")
                    print_line(console, f"{names}: {machines} within bounds and budget")
                case Note():
                    print_line(console, event.text)
                case SearchProgress():
                    bars.update(bar, completed=event.trials, description=standing_text(event))

        yield hear


def standing_text(event: SearchProgress) -> str:
    """Return the progress of a search as text.

    It contains the number of measured machines, the lowest latency and the number of machines on
    the Pareto front.
    """
    seen = f"{count_text(event.machines, 'machine')} seen"
    if math.isinf(event.latency):
        return f"{seen}, none evaluated completely yet"
    return f"{seen}, best {milliseconds(event.latency)} ms, {event.front} on the front"


def show_front(
    options: CodesignOptions, outcome: CodesignOutcome, links: Mapping[str, str], console: Console
) -> None:
    """Show the Pareto front, the files, links to the run's pages, and a command to run next.

    Args:
        options: options of the run.
        outcome: outcome of the run.
        links: addresses of the run's pages, by name.
        console: the terminal.
    """
    summary = outcome.summary
    if outcome.front:
        console.print(front_table(summary, outcome.front, console.width))
    print_line(console, _facts(summary))
    print_line(
        console,
        f"results in {options.folder}: {folder.PAGE}, {folder.FRONT}, {folder.SPECS}/, "
        f"{folder.TRIALS}, {folder.SUMMARY}",
    )
    for name, address in links.items():
        console.print(f"{name:8} {address}", soft_wrap=True, highlight=False)
    if summary["best"] is not None:
        spec = options.folder / folder.SPECS / f"{summary['best']['name']}.json"
        target = named_as(options.target, spec)
        command = ["tilewright", "tune", options.networks[0], "--target", target]
        print_line(console, f"next: {shlex.join(command)}")


def named_as(base: str, spec: Path) -> str:
    """Return the text with which `--target` selects the machine in a specification file.

    Args:
        base: name of a target of the same type.
        spec: the specification file.

    Returns:
        The path, preceded by `KIND:` if the file does not tell its type of target.
    """
    kind, _ = kind_of(base)
    return str(spec) if kind.reads(spec) else f"{kind.name}:{spec}"


def front_table(summary: CodesignSummary, front: list[FrontRow], width: int = 80) -> Table:
    """Return a table with one line per accelerator design, by ascending area.

    Args:
        summary: content of `summary.json`.
        front: the designs on the Pareto front.
        width: width of the terminal in characters.
    """
    names = summary["networks"]
    rows = [
        {
            "machine": row["name"],
            "area": f"{row['area']:.3f}",
            **{f"{name}\nms": milliseconds(row["milliseconds"][name] / 1e3) for name in names},
            "bottleneck": _bottleneck(row),
        }
        for row in front
    ]
    return fitted_table(columns_of(rows), ("bottleneck", BREAK), width, left=("bottleneck",))


def _bottleneck(row: FrontRow) -> str:
    share = row["shares"].get(row["bottleneck"])
    return row["bottleneck"] + (f" {percent(share)}" if share is not None else "")


def _facts(summary: CodesignSummary) -> str:
    seen, machines = summary["hardware"]["seen"], summary["hardware"]["machines"]
    proof = "measured again, " * bool(summary["front"]) + (
        "verified bit for bit; " if summary["front"] and summary["verified"] else ""
    )
    return (
        f"{count_text(summary['measurements'], 'measurement')} on {seen:,} of "
        f"{count_text(machines, 'machine')} by {summary['method']}; "
        f"{proof}{duration(summary['wall_seconds'])}"
    )
