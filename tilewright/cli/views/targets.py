"""Shows the results of `tilewright targets` and `target show`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from tilewright.cli.views.terminal import columns_of, fitted_table, say
from tilewright.core.files import Json
from tilewright.targets.registry import Property, TargetKind

_TEXT = ("meaning",)
PROSE = 24  # characters from which on a value is a sentence, shown below the table


def show_kinds(kinds: Sequence[TargetKind], console: Console) -> None:
    """Each kind, with a line a preset."""
    for kind in kinds:
        console.print(Text.assemble((kind.name, "bold"), f": {kind.summary}"))
        presets = {preset: kind.describe(preset) for preset in kind.presets()}
        if presets:
            rows = [{"preset": preset, **figures} for preset, figures in presets.items()]
            figures = list(rows[0])[2:]
            console.print(fitted_table(columns_of(rows), figures[::-1], console.width))
        console.print()
    say(console, "'tilewright target show NAME' tells all about one, also about a file of yours")


def show_properties(
    name: str, kind: TargetKind, properties: Sequence[Property], console: Console
) -> None:
    """A table a section, and the sentences behind it."""
    console.print(Text.assemble((name, "bold"), f": {kind.summary}"))
    for section, rows in groupby(properties, key=lambda each: each.section):
        console.print()
        lines, sentences = [], []
        for each in rows:
            value = _value(each.value)
            if len(value) < PROSE:
                line = {section: each.name, "value": value, "unit": each.unit}
                lines.append(line | {"meaning": each.meaning})
            else:
                sentences.append(f"{each.name}: {value}")
        if lines:
            columns = columns_of(lines)
            table = fitted_table(columns, ("unit",), console.width, left=("unit",), folded=_TEXT)
            console.print(table)
        for sentence in sentences:
            console.print(sentence, markup=False, highlight=False)


def as_document(name: str, kind: TargetKind, properties: Sequence[Property]) -> dict[str, Json]:
    """The same for programs."""
    return {
        "name": name,
        "kind": kind.name,
        "properties": [
            {
                "section": each.section, "name": each.name, "value": each.value, "unit": each.unit,
                "meaning": each.meaning,
            }
            for each in properties
        ],
    }  # fmt: skip


def _value(value: int | float | str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
