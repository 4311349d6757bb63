"""Common elements of the display: tables, progress bars, plain lines and formatted latencies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, NoReturn

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

FIRST_WORD, QUIET = 2.0, 30.0
"""Seconds of silence before the first line about a step, and before later lines about it."""
GAP = 2
"""Number of blank columns between two cells of a `ruled_table`."""
TEXT = 24
"""Minimum width, in characters, of the text at the beginning of a line."""
LEAST_TEXT = 8
"""Minimum width, in characters, of the text at the beginning of a line if even the figures do not
fit."""
BREAK = " · "
"""Separator at which the text at the beginning of a line may be broken.

In a list of columns that a narrow terminal leaves out, it marks the point at which the text is
broken instead.
"""
PIPE_WIDTH = 1 << 16
"""Width in characters if the output is not a terminal. It takes precedence over the environment
variable COLUMNS."""


class Terminal(Console):
    """A console that prints text literally, without Rich's markup or emoji codes.

    Control characters are shown as escape sequences. If the output is not a terminal, lines are not
    wrapped and do not end in spaces.

    Args:
        stderr: print to standard error instead of standard output.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal:
            self.width = PIPE_WIDTH

    def print(self, *objects: Any, **more: Any) -> None:
        """Print like `Console.print`, with paths as the user typed them."""
        typed = [as_typed(object_) if isinstance(object_, str) else object_ for object_ in objects]
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
        """End the command, because no process reads its output any more.

        Rich's own method would redirect standard output to the null device, even if the broken
        stream is standard error. Other threads would then not notice that the reader has left.
        """
        raise SystemExit(1)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render like `Console.render`, but escape control characters."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text, keep="\n")
            yield segment if shown is segment.text else Segment(shown, segment.style)


def ruled_table(padding: Padding = (0, 1, 0, 1)) -> Table:
    """Return an empty table with a line below its heading.

    Args:
        padding: blank cells at the top, right, bottom and left of each cell.
    """
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=padding)


def bare_table(*, head: bool = True) -> Table:
    """Return an empty table without lines.

    Args:
        head: whether the table has a heading.
    """
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
    """Return a table that fits into a width, without cutting off numbers.

    Columns without any text are left out. If the table is still too wide, the columns in
    `droppable` are left out one by one until it fits.

    Args:
        columns: cells of each column, by heading. All columns have equally many cells.
        droppable: headings of columns to leave out if necessary, in this order. `BREAK` marks the
            point at which the text of the first column is broken into two lines instead.
        width: width of the terminal in characters.
        left: columns that are aligned to the left.
        folded: columns whose text may continue in a second line, besides the first column.
        numbered: whether the first column contains line numbers, which are aligned to the right.
        styles: style of each line.
        total: whether to set off the last line as a total.
    """
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
        needed = sum(least[item] + GAP for item in shown) - GAP + 1
        if head is None or needed <= width:
            break
        if head == BREAK:
            least[first] = min(whole[first], TEXT)
        shown.pop(head, None)
    room = width - needed + least[first]
    shown[first] = [_break_cell(cell, room) for cell in shown[first]]
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
    """Convert a list of rows to columns.

    Args:
        rows: cells by heading. All rows have the same headings.

    Returns:
        The cells of each column, by heading.
    """
    return {head: [row[head] for row in rows] for head in (rows[0] if rows else ())}


def _break_cell(cell: str | Text, room: int) -> str | Text:
    if isinstance(cell, Text) or cell_len(cell) <= room:
        return cell
    return cell.replace(BREAK, f"{BREAK.rstrip()}\n", 1)


def _width(head: str, cells: Sequence[str | Text]) -> int:
    return max(map(cell_len, [*head.split("\n"), *map(str, cells)]))


class Activity(NamedTuple):
    """Current activity of a command, which `Silence` prints.

    Attributes:
        step: text that identifies the step. The first line about a new step is printed sooner than
            the later lines about it.
        text: line to print: the step and its progress.
    """

    step: str
    text: str


class Silence:
    """Prints the current activity if nothing else is printed for a while, for logs and pipes.

    Use the object as a context manager. If a step runs for `FIRST_WORD` seconds without output, one
    line is printed. Another line follows after every `QUIET` seconds of silence.

    Args:
        console: console to print to.
        activity: function that returns the current activity of the command.
    """

    def __init__(self, console: Console, activity: Callable[[], Activity]) -> None:
        self._console, self._activity = console, activity
        self._ended = threading.Event()
        self._last_line = time.monotonic()
        self._thread = threading.Thread(target=self._break, daemon=True)

    def __enter__(self) -> Silence:
        self._last_line = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()  # so that no line follows the results

    def restart(self) -> None:
        """Restart the waiting time, because something else was printed."""
        self._last_line = time.monotonic()

    def _break(self) -> None:
        step, began = "", self._last_line
        reported: str | None = None
        while not self._ended.wait(FIRST_WORD / 8):
            compiling = describe_compilation()
            activity = Activity(compiling, compiling) if compiling else self._activity()
            now = time.monotonic()
            if activity.step != step:
                step, began = activity.step, now
            is_due = step != reported and now - max(began, self._last_line) >= FIRST_WORD
            if is_due or now - self._last_line >= QUIET:
                try:
                    print_line(self._console, f"… {activity.text}")
                except OSError:
                    return  # e.g. a full disk: the command's own next line reports it
                reported, self._last_line = step, now


class _Description(TextColumn):
    """Column of a progress bar that shows the description of its task.

    While the task waits for the compilation of a kernel, the column shows the kernel instead.
    """

    def render(self, task: Task) -> Text:
        compiling = describe_compilation()
        return Text(compiling) if compiling else super().render(task)


class _Status:
    """Text beside a spinner. While a kernel is compiled, the text names that kernel instead."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich__(self) -> str:
        return describe_compilation() or self._text


class Bars(Progress):
    """Progress bars that disappear at the end.

    If the output is not a terminal, no bars are shown, and occasional lines are printed to standard
    error.

    Args:
        console: the terminal.
    """

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
        """Start the display, and the occasional lines if there is no terminal."""
        super().start()
        if self.disable:
            self._silence.__enter__()

    def stop(self) -> None:
        """Stop the display."""
        self._silence.__exit__()
        super().stop()

    def _under_way(self) -> Activity:
        task = next((task for task in reversed(self.tasks) if task.visible), None)
        if task is None:
            return Activity("beginning", "beginning")
        # The description of a task with a total may contain its progress, so use the task's ID.
        step = task.description if task.total is None else f"task {task.id}"
        of = "" if task.total is None else f", {task.completed:,.0f} of {task.total:,.0f}"
        return Activity(step, f"{task.description}{of}, for {task.elapsed or 0:.0f} s so far")


@contextmanager
def show_working(what: str) -> Iterator[None]:
    """Show within the context that work is in progress.

    A terminal shows a spinner. Other outputs get a line after some seconds.

    Args:
        what: description of the work.
    """
    console, began = Terminal(stderr=True), time.monotonic()
    if console.is_terminal:
        with console.status(_Status(what)):
            yield
        return

    def under_way() -> Activity:
        return Activity(what, f"{what}, for {time.monotonic() - began:.0f} s so far")

    with Silence(console, under_way):
        yield


def print_line(console: Console, text: str) -> None:
    """Print a line without colours or line breaks, so that it can be searched and copied."""
    console.print(as_typed(text), markup=False, highlight=False, soft_wrap=True)


def cost(latency: Latency | None) -> float | None:
    """Return a latency in cycles, or in seconds if the target does not count cycles.

    The result is None if the latency is unknown.
    """
    if latency is None:
        return None
    return float(latency.cycles) if latency.cycles >= 0 else latency.seconds


def cycles_text(latency: Latency | None) -> str:
    """Return cycles as text, such as `1,371`; empty if they are unknown."""
    return "" if latency is None or latency.cycles < 0 else f"{latency.cycles:,}"


def time_text(latency: Latency | None) -> str:
    """Return milliseconds as text, such as `0.0137`; empty if they are unknown."""
    return "" if latency is None else milliseconds(latency.seconds)


def latency_text(latency: Latency | None) -> str:
    """Return a latency as text, such as `1,371 cycles (0.0137 ms)`; empty if it is unknown."""
    if latency is None:
        return ""
    time, cycles = time_text(latency), cycles_text(latency)
    if not cycles:
        return f"{time} ms"
    return f"{cycles} cycles" + (f" ({time} ms)" if time else "")
