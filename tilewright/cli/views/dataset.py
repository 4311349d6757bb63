"""Shows the progress of building a dataset, and the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tilewright.cli.views.terminal import progress_bar, say
from tilewright.evaluation.datasets.build import PlannedFile, RowsDone
from tilewright.evaluation.datasets.metadata import DatasetMetadata
from tilewright.reports.datasets import dataset_line
from tilewright.reports.number_format import counted
from tilewright.search.events import Event, Listener

_QUIET_SECONDS = 30.0


@contextmanager
def building(console: Console) -> Iterator[Listener]:
    """A bar of rows on a terminal; elsewhere a line now and then."""
    with progress_bar(console) as bars:
        bar = bars.add_task("planning", total=None)
        done, total, spoke = 0, 0, time.monotonic()

        def hear(event: Event) -> None:
            nonlocal done, total, spoke
            if isinstance(event, PlannedFile):
                done, total = event.kept, event.rows
                pieces = f"{counted(event.hardware, 'piece')} of hardware"
                what = f"{counted(event.workloads, 'workload')} on {pieces}"
                kept = f", {counted(event.kept, 'row')} kept" if event.kept else ""
                bars.update(bar, description=what, total=total, completed=done)
                say(console, f"{what}: {counted(total, 'row')}{kept}")
                return
            if not isinstance(event, RowsDone):
                return
            done += event.rows
            bars.advance(bar, event.rows)
            if not console.is_terminal and time.monotonic() - spoke > _QUIET_SECONDS:
                spoke = time.monotonic()
                say(console, f"… {done:,} of {total:,} rows")

        yield hear


def show_built(about: DatasetMetadata, out: Path, console: Console) -> None:
    """How large the dataset is, and its digest."""
    say(console, dataset_line(about, out))
