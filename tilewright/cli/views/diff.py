"""Shows the result of `tilewright diff`: the verdict, what each layer takes, and what changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tilewright.cli.views.terminal import ruled_table, say
from tilewright.evaluation.diff.summary import DiffVerdict
from tilewright.reports.diff import figure_rows, headline, latency_rows, setting_rows
from tilewright.reports.run_table import Row


def show_diff(verdict: DiffVerdict, console: Console) -> None:
    """Tables of latencies and of what models and trials are like, what changed, and the verdict
    with its reasons last."""
    say(console, f"A  {verdict.a}\nB  {verdict.b}\n")
    console.print(_table(latency_rows(verdict), last=True))
    console.print(_table(figure_rows(verdict)))
    for head, settings in (("changed", verdict.changed), ("asked for", verdict.settings)):
        if settings:
            rows = [{head: row.pop("what")} | row for row in setting_rows(settings)]
            console.print(_table(rows))
    for reason in verdict.reasons:
        say(console, f"worse  {reason}")
    say(console, headline(verdict))


def _table(rows: Sequence[Row], *, last: bool = False) -> Table:
    """Figures stand on the right; the `last` row is set off."""
    table = ruled_table(padding=(0, 1, 0, 0))
    for place, head in enumerate(rows[0]):
        left = place == 0 or not head
        table.add_column(head, justify="left" if left else "right", no_wrap=bool(place))
    for row in rows[: -1 if last else len(rows)]:
        table.add_row(*row.values())
    if last:
        table.add_section()
        table.add_row(*rows[-1].values(), style="bold")
    return table
