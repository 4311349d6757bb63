"""What `tilewright trials` shows."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.text import Text

from cli.views.latency import latency_text
from cli.views.terminal import ruled_table
from targets.capabilities import Latency


def show_trials(frame: pd.DataFrame, console: Console) -> None:
    """A line a trial, with its config, or the reason where it is not valid."""
    table = ruled_table()
    for name in ("workload", "trial", "round", "status", "latency", "config or reason"):
        right = name in ("trial", "round", "latency")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in frame.itertuples(index=False):
        valid = row.status == "valid"
        last = str(row.config) if valid else str(row.reason)
        cells = (row.workload, row.trial, row.round, row.status)
        table.add_row(
            *(Text(str(cell)) for cell in cells),
            latency_text(Latency(float(str(row.seconds)), int(str(row.cycles)))) if valid else "",
            Text(_printable(last)),
        )
    console.print(table)


def _printable(text: str) -> str:
    """Without control characters: a ledger may come from a stranger."""
    return "".join(c if c.isprintable() else "?" for c in text)
