"""Defines the look of this program in a terminal: tables, progress, plain lines, and latencies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from tilewright.core.user_text import printable
from tilewright.core.working_folder import as_typed
from tilewright.reports.number_format import milliseconds
from tilewright.targets.capabilities import Latency
from tilewright.targets.kernel_compilation import describe_compilation

Padding = int | tuple[int, int, int, int]

FIRST_WORD, QUIET = 5.0, 30.0
"""Seconds of silence before the first line of what is under way, and before later ones."""
GAP = 2
"""Columns of a terminal between two cells of a `ruled_table`."""
TEXT = 24
"""Columns of a terminal that the text at the beginning of a line has at least."""
LEAST_TEXT = 8
"""Columns that it has where not even the figures fit."""
BREAK = " · "
"""Where a text at the beginning of a line goes on in the next, if it has to; among columns that a
narrow terminal does without, those before it go before a text is broken."""
PIPE_WIDTH = 1 << 16
"""Columns of what is no terminal, whatever COLUMNS says."""


class Terminal(Console):
    """A console that takes text as it is: no markup in brackets, no words for pictures, and what
    would move the cursor or change colours is shown as a code. Where it is no terminal, no line is
    wrapped, and none ends in spaces."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            self.width = PIPE_WIDTH

    def print(self, *objects: Any, **more: Any) -> None:
        """As `Console.print`; paths are shown as they were typed, before lines are wrapped."""
        typed = [as_typed(each) if isinstance(each, str) else each for each in objects]
        if self.is_terminal:
            super().print(*typed, **more)
            return
        with self.capture() as captured:
            super().print(*typed, **more)
        try:
            self.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
            self.file.flush()  # a pipe shows a line when it is printed, as a terminal does
        except BrokenPipeError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> NoReturn:
        """End the command, because nobody reads its output any more.

        Rich's own method also redirects standard output to the null device, even if standard error
        is the stream that is broken, and hides from other threads that the reader has left.
        """
        raise SystemExit(1)

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


def fitted_table(
    columns: Mapping[str, Sequence[str | Text]],
    droppable: Sequence[str],
    width: int,
    *,
    left: Sequence[str] = (),
    folded: Sequence[str] = (),
    numbered: bool = False,
    styles: Sequence[str | None] = (),
    total: bool = False,
) -> Table:
    """A table of cells by the head of their column that fits into `width`, so that no figure is
    cut: columns without a cell are left out, then those of `droppable`, the first first. The first
    column and those that are `folded` are text, which goes on in a second line where it has to.
    Those of `left` stand on the left, and so does the first, unless its lines are `numbered`.
    `styles` are those of lines; with a `total`, the last line is set off."""
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    if not shown:
        return ruled_table()
    first, *_ = shown
    texts = (first, *folded)
    whole = {head: _width(head, cells) for head, cells in shown.items()}
    least = {head: min(wide, TEXT) if head in texts else wide for head, wide in whole.items()}
    if BREAK in droppable:
        least[first] = whole[first]
    for head in (*droppable, None):
        needed = sum(least[each] + GAP for each in shown) - GAP + 1
        if head is None or needed <= width:
            break
        if head == BREAK:
            least[first] = min(whole[first], TEXT)
        shown.pop(head, None)
    room = width - needed + least[first]
    shown[first] = [_broken(cell, room) for cell in shown[first]]
    table = ruled_table(padding=(0, 1, 0, 0))
    for head in shown:
        if head in texts:
            wide = max(LEAST_TEXT, room) if head == first else LEAST_TEXT
            side: Literal["left", "right"] = "right" if numbered and head == first else "left"
            wide = min(wide, whole[head])
            table.add_column(head, overflow="fold", min_width=wide, justify=side)
        else:
            table.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    lines = list(zip(*shown.values(), strict=True))
    for place, line in enumerate(lines[: -1 if total else len(lines)]):
        table.add_row(*line, style=styles[place] if place < len(styles) else None)
    if total:
        table.add_section()
        table.add_row(*lines[-1], style="bold")
    return table


def columns_of(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The cells of rows with equal headings by column."""
    return {head: [row[head] for row in rows] for head in (rows[0] if rows else ())}


def _broken(cell: str | Text, room: int) -> str | Text:
    if isinstance(cell, Text) or cell_len(cell) <= room:
        return cell
    return cell.replace(BREAK, f"{BREAK.rstrip()}\n", 1)


def _width(head: str, cells: Sequence[str | Text]) -> int:
    return max(map(cell_len, [*head.split("\n"), *map(str, cells)]))


class Silence:
    """Says every so often what is under way, where nothing else is said: a context, for logs and
    pipes. `words` gives that; the first line comes after `FIRST_WORD` seconds of silence, later
    ones after `QUIET` seconds. `broken()` tells that something was said."""

    def __init__(self, console: Console, words: Callable[[], str]) -> None:
        self._console, self._words = console, words
        self._spoke, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._break, daemon=True)

    def __enter__(self) -> Silence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._spoke.set()
        if self._thread.is_alive():
            self._thread.join()  # no line comes behind the results, or while the process ends

    def broken(self) -> None:
        """Something was said."""
        self._spoke.set()

    def _break(self) -> None:
        wait = FIRST_WORD
        while not self._ended.is_set():
            if self._spoke.wait(wait):
                self._spoke.clear()
            elif not self._ended.is_set():
                try:
                    say(self._console, f"… {describe_compilation() or self._words()}")
                except OSError:
                    return  # a full disk, say: the command meets it when it prints its next line
                wait = QUIET


class _Description(TextColumn):
    """What a task does, or the kernel that it waits for."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        compiling = describe_compilation()
        return Text(compiling) if compiling else super().render(task)


class _Status:
    """A text that gives way to the kernel that is being compiled."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich__(self) -> str:
        return describe_compilation() or self._text


class Bars(Progress):
    """Bars that vanish when they are done; where there is no terminal, a line now and then of the
    last one, on the error stream."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            _Description(
                "{task.description}", markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=console, transient=True, disable=not console.is_terminal, expand=True,
        )  # fmt: skip
        self._silence = Silence(Terminal(stderr=True), self._under_way)

    def start(self) -> None:
        """As `Progress.start`."""
        super().start()
        if self.disable:
            self._silence.__enter__()

    def stop(self) -> None:
        """As `Progress.stop`."""
        self._silence.__exit__()
        super().stop()

    def _under_way(self) -> str:
        task = next((each for each in reversed(self.tasks) if each.visible), None)
        if task is None:
            return "beginning"
        of = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f}"
        return f"{task.description}{of}, for {task.elapsed or 0:.0f} s now"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on the terminal's error stream that `what` is under way; elsewhere a line after
    `FIRST_WORD` seconds."""
    console, began = Terminal(stderr=True), time.monotonic()
    if console.is_terminal:
        with console.status(_Status(what)):
            yield
        return
    with Silence(console, lambda: f"{what}, for {time.monotonic() - began:.0f} s now"):
        yield


def say(console: Console, text: str) -> None:
    """A line as it is: neither coloured nor broken, so that it can be searched and copied."""
    console.print(as_typed(text), markup=False, highlight=False, soft_wrap=True)


def cost(latency: Latency | None) -> float | None:
    """In cycles, or in seconds where none are counted."""
    if latency is None:
        return None
    return float(latency.cycles) if latency.cycles >= 0 else latency.seconds


def cycles_text(latency: Latency | None) -> str:
    """`1,371`; empty for what is not known or not counted."""
    return "" if latency is None or latency.cycles < 0 else f"{latency.cycles:,}"


def time_text(latency: Latency | None) -> str:
    """`0.0137` milliseconds; empty for what is not known."""
    return "" if latency is None else milliseconds(latency.seconds)


def latency_text(latency: Latency | None) -> str:
    """`1,371 cycles (0.0137 ms)`, or the time alone; empty for what is not known."""
    if latency is None:
        return ""
    time, cycles = time_text(latency), cycles_text(latency)
    if not cycles:
        return f"{time} ms"
    return f"{cycles} cycles" + (f" ({time} ms)" if time else "")
