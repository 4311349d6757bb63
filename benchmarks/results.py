"""Shared options of benchmarks, storage of their rows, and Markdown tables.

A benchmark writes one row per run to the file `--out`. `--redraw FILE` prints the tables of a file
without running anything. The rows behind the tables of the documentation are in `benchmarks/rows`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from tilewright.core.files import write_atomically

Tuners = Annotated[str, typer.Option(help="Tuners to compare, as for 'tilewright compare'.")]
Seeds = Annotated[int, typer.Option(help="Seeds per tuner and layer.")]
Trials = Annotated[int, typer.Option(help="Largest number of measurements per run.")]
Batch = Annotated[int, typer.Option(help="Measurements per round.")]
Jobs = Annotated[int, typer.Option(help="Number of processes.")]
LayerNames = Annotated[str, typer.Option(help="Only these layers, separated by commas.")]
Redraw = Annotated[Path | None, typer.Option(help="Only print the tables of these rows.")]


def row_arguments(doc: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks with rows have.

    Args:
        doc: docstring of the benchmark's module, whose first line describes the command.
        out: default of `--out`, the file of the rows.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(out), help="file for the rows")
    parser.add_argument("--redraw", type=Path, help="only print the tables of these rows")
    return parser


def split_names(text: str) -> list[str]:
    """Split the value of an option at commas into names."""
    return [name for name in text.split(",") if name]


def has_row(rows: pd.DataFrame, key: Mapping[str, object]) -> bool:
    """Return whether one of the rows has all values in `key`."""
    return bool(len(rows) and (rows[list(key)] == pd.Series(key)).all(axis=1).any())


class KeptRows:
    """Rows of a benchmark, by part of the benchmark, in a JSON file.

    The file is written after each row, so that a stopped benchmark can resume.
    """

    def __init__(self, path: Path, parts: Iterable[str]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
        if path.exists():
            self.rows |= json.loads(path.read_text())

    def keep(self, part: str, row: dict[str, Any]) -> None:
        """Add a row to a part, and write all rows."""
        self.rows[part].append(row)
        write_atomically(self.path, (json.dumps(self.rows, indent=1) + "\n").encode())

    def has(self, part: str, **key: object) -> bool:
        """Return whether a part has a row with these values."""
        return any(
            all(row.get(name) == value for name, value in key.items()) for row in self.rows[part]
        )


def replace_block(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- begin: NAME -->` and `<!-- end: NAME -->` in a page."""
    begin, end = (f"<!-- {mark}: {name} -->\n" for mark in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    write_atomically(page, (before + begin + text + end + after).encode())


def markdown_table(head: Sequence[str], align: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table.

    Args:
        head: titles of the columns.
        align: a letter per column, "l" (left) or "r" (right). The last letter holds for all columns
            after it.
        rows: cells of each line.
    """
    letters = align.ljust(len(head), align[-1])
    rule = "".join("---|" if letter == "l" else "---:|" for letter in letters)
    lines = [f"| {' | '.join(head)} |", f"|{rule}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)
