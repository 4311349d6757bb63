"""Display of hardware: types of targets, specifications, cluster boards and enumerated spaces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tilewright.cli.views.terminal import Bars, columns_of, fitted_table, latency_text, print_line
from tilewright.core.files import Json
from tilewright.evaluation.enumeration import EnumeratedSpace
from tilewright.reports.number_format import count_text
from tilewright.targets.registry import Property, TargetKind

_TEXT = ("meaning",)
PROSE = 24  # values of at least this many characters are shown below the table


def show_kinds(kinds: Sequence[TargetKind], console: Console) -> None:
    """Show each type of target, with one line per preset."""
    for kind in kinds:
        console.print(Text.assemble((kind.name, "bold"), f": {kind.summary}"))
        presets = {preset: kind.describe(preset) for preset in kind.presets()}
        if presets:
            rows = [{"preset": preset, **figures} for preset, figures in presets.items()]
            figures = list(rows[0])[2:]
            console.print(fitted_table(columns_of(rows), figures[::-1], console.width))
        console.print()
    print_line(
        console,
        "'tilewright target show NAME' shows the details of a target or a file",
    )


def show_properties(
    name: str, kind: TargetKind, properties: Sequence[Property], console: Console
) -> None:
    """Show one table per section of a target's properties. Longer texts follow below their table.

    Args:
        name: name of the target.
        kind: type of the target.
        properties: properties of the target.
        console: the terminal.
    """
    console.print(Text.assemble((name, "bold"), f": {kind.summary}"))
    for section, rows in groupby(properties, key=lambda item: item.section):
        console.print()
        lines, sentences = [], []
        for row in rows:
            value = _value(row.value)
            if len(value) < PROSE:
                line = {section: row.name, "value": value, "unit": row.unit}
                lines.append(line | {"meaning": row.meaning})
            else:
                sentences.append(f"{row.name}: {value}")
        if lines:
            columns = columns_of(lines)
            table = fitted_table(columns, ("unit",), console.width, left=("unit",), folded=_TEXT)
            console.print(table)
        for sentence in sentences:
            console.print(sentence, markup=False, highlight=False)


def as_document(name: str, kind: TargetKind, properties: Sequence[Property]) -> dict[str, Json]:
    """Return the properties of a target for `tilewright target show --json`.

    Args:
        name: name of the target.
        kind: type of the target.
        properties: properties of the target.
    """
    return {
        "name": name,
        "kind": kind.name,
        "properties": [
            {
                "section": item.section, "name": item.name, "value": item.value, "unit": item.unit,
                "meaning": item.meaning,
            }
            for item in properties
        ],
    }  # fmt: skip


def _value(value: int | float | str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


_COLUMNS = ("machine", "programs", "wrong", "time_outs", "failures", "resets")


def boards_text(boards: Mapping[str, Mapping[str, Json]], as_json: bool) -> str:
    """Return a text with one line per board of a cluster, or JSON.

    Args:
        boards: properties and counters of each board, by name of the board.
        as_json: whether to return JSON.
    """
    if as_json:
        return json.dumps({name: dict(about) for name, about in boards.items()}, indent=1) + "\n"
    if not boards:
        return "no boards are connected: start 'tilewright board serve' on the machine of a board\n"
    rows = [["board", *(name.replace("_", "-") for name in _COLUMNS)]]
    for board, about in sorted(boards.items()):
        rows.append([f"board:{board}", *(str(about[name]) for name in _COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def enumerating(text: str, size: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Show the progress of enumerating a schedule space during a `with` block.

    Yields a function that is called with the number of newly finished configs.

    Args:
        text: description of the space.
        size: number of configs.
        console: the terminal.
    """
    with Bars(console) as bars:
        bar = bars.add_task(text, total=size)
        yield lambda configs: bars.advance(bar, configs)


def show_enumerated(space: EnumeratedSpace, out: Path, console: Console) -> None:
    """Show the number of schedules in a space, how many of them are valid, and the best one."""
    total = len(space.table)
    best = "" if space.best is None else f"; best {latency_text(space.best)}"
    print_line(
        console,
        f"wrote {out}: {count_text(total, 'schedule')}, {space.valid:,} valid "
        f"({space.valid / total:.1%}){best}; {total / space.seconds:,.0f} per second",
    )
