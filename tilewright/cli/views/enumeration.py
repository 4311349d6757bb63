"""Shows the result of `tilewright enumerate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tilewright.cli.views.latency import latency_text
from tilewright.cli.views.terminal import Bars, say
from tilewright.evaluation.enumeration import EnumeratedSpace
from tilewright.reports.number_format import counted


@contextmanager
def enumerating(text: str, size: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Progress through a space of `size` configs, to be told how many more are done."""
    with Bars(console) as bars:
        bar = bars.add_task(text, total=size)
        yield lambda configs: bars.advance(bar, configs)


def show_enumerated(space: EnumeratedSpace, out: Path, console: Console) -> None:
    """How many schedules there are, how many are valid, and the best."""
    total = len(space.table)
    best = "" if space.best is None else f"; best {latency_text(space.best)}"
    say(
        console,
        f"{out}: {counted(total, 'schedule')}, {space.valid:,} valid "
        f"({space.valid / total:.1%}){best}; "
        f"{total / space.seconds:,.0f} a second",
    )
