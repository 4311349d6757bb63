"""`tilewright trials`: what a ledger holds, of a run that is finished, still going, or dead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from targets.errors import TilewrightError

if TYPE_CHECKING:
    import pandas as pd


def register(app: typer.Typer) -> None:
    app.command("trials")(trials)


def trials(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output folder of a run.")],
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, with the columns of trials.parquet.")
    ] = False,
) -> None:
    """List the trials a run has recorded, also while it is going or after it died."""
    from search import read
    from tuning.ledgers import at_work as who_is_at_work
    from tuning.outputs import LEDGER, SUMMARY

    path = folder / LEDGER
    if not path.is_file():
        raise TilewrightError(
            f"there is no {LEDGER} in {folder}; give the folder named with --out, or tuned/<model>"
        )
    at_work = who_is_at_work(
        folder
    )  # asked before reading: what it adds meanwhile may be cut short
    contents = read(path)
    for problem in contents.problems:
        if not (at_work and "torn" in problem):
            typer.echo(f"note: {problem}", err=True)
    frame = contents.frame()
    if csv:
        sys.stdout.write(frame.to_csv(index=False, lineterminator="\n"))
        return
    _show(frame)
    ended = "the run is complete" if (folder / SUMMARY).is_file() else "the run was stopped"
    state = f"{at_work} is adding to it" if at_work else ended
    typer.echo(f"{len(frame)} trials of {frame['workload'].nunique()} workloads; {state}")


def _show(frame: pd.DataFrame) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("workload", "trial", "round", "status", "latency", "config or reason"):
        right = name in ("trial", "round", "latency")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        valid = row.status == "valid"
        last = str(row.config) if valid else str(row.reason)
        cells = (row.workload, row.trial, row.round, row.status)
        table.add_row(
            *(Text(str(cell)) for cell in cells),
            _latency(int(row.cycles), float(row.seconds)) if valid else "",
            Text(_printable(last)),
        )
    Console().print(table)


def _latency(cycles: int, seconds: float) -> str:
    """In cycles, or in microseconds on a target that counts none."""
    return f"{cycles:,}" if cycles > 0 else f"{seconds * 1e6:,.4g} µs"


def _printable(text: str) -> str:
    """Without control characters: a ledger may come from a stranger."""
    return "".join(c if c.isprintable() else "?" for c in text)
