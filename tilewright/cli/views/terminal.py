"""Defines the look of this program in a terminal: tables, progress, and plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tilewright.core.sanitize import printable
from tilewright.core.working_folder import as_typed

Padding = int | tuple[int, int, int, int]

GAP = 2
"""Columns of a terminal between two cells of a `ruled_table`."""
TEXT = 24
"""Columns of a terminal that the text at the beginning of a line has at least."""


class Terminal(Console):
    """A console that takes text as it is: no markup in brackets, no words for pictures, and what
    would move the cursor or change colours is shown as a code."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **more: Any) -> None:
        """As `Console.print`; paths are shown as they were typed, before lines are wrapped."""
        super().print(
            *(as_typed(each) if isinstance(each, str) else each for each in objects), **more
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As `Console.render`."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text, keep="\n")
            yield segment if shown is segment.text else Segment(shown, segment.style)


def ruled_table(padding: Padding = (0, 1, 0, 1)) -> Table:
    """A table with a line below its head. `padding` of a cell: top, right, bottom, left."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding)


def bare_table(*, head: bool = True) -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=head)


def fitting(
    columns: Mapping[str, Sequence[str | Text]], droppable: Sequence[str], width: int
) -> dict[str, Sequence[str | Text]]:
    """The columns that fit, so that no figure is cut: those without a cell are left out, then those
    of `droppable`, the first first. The first column is text, and may be cut to `TEXT` letters."""
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    text, *_ = shown
    for head in (*droppable, None):
        figures = sum(_width(each, shown[each]) + GAP for each in shown if each != text)
        if head is None or figures + min(_width(text, shown[text]), TEXT) + 1 <= width:
            break
        shown.pop(head, None)
    return shown


def _width(head: str, cells: Sequence[str | Text]) -> int:
    return max(map(cell_len, [*head.split("\n"), *map(str, cells)]))


def progress_bar(console: Console) -> Progress:
    """Bars that vanish when they are done; nothing where there is no terminal."""
    return Progress(
        BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def say(console: Console, text: str) -> None:
    """A line as it is: neither coloured nor broken, so that it can be searched and copied."""
    console.print(as_typed(text), markup=False, highlight=False, soft_wrap=True)
