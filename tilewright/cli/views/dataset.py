"""Shows the progress of building a dataset, and the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tilewright.cli.views.terminal import Bars, say
from tilewright.evaluation.datasets.build import PlannedFile, RowsDone
from tilewright.evaluation.datasets.folder import DatasetMetadata
from tilewright.reports.datasets import dataset_line
from tilewright.reports.number_format import counted
from tilewright.search.events import Event, Listener


@contextmanager
def building(console: Console) -> Iterator[Listener]:
    """A bar of rows on a terminal; elsewhere a line now and then."""
    with Bars(console) as bars:
        bar = bars.add_task("planning", total=None)

        def hear(event: Event) -> None:
            if isinstance(event, PlannedFile):
                pieces = f"{counted(event.hardware, 'piece')} of hardware"
                what = f"{counted(event.workloads, 'workload')} on {pieces}"
                kept = f", {counted(event.kept, 'row')} kept" if event.kept else ""
                bars.update(bar, description=what, total=event.rows, completed=event.kept)
                say(console, f"{what}: {counted(event.rows, 'row')}{kept}")
            elif isinstance(event, RowsDone):
                bars.advance(bar, event.rows)

        yield hear


def show_built(about: DatasetMetadata, out: Path, console: Console) -> None:
    """How large the dataset is, and its digest."""
    say(console, dataset_line(about, out))
