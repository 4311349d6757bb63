"""Shows the result of `tilewright diff`: the verdict, what each layer takes, and what changed."""

from __future__ import annotations

from rich.console import Console

from tilewright.cli.views.terminal import columns_of, fitted_table, say
from tilewright.evaluation.diff import DiffVerdict
from tilewright.reports.diff import figure_rows, headline, latency_rows, setting_rows


def show_diff(verdict: DiffVerdict, console: Console) -> None:
    """Tables of latencies and of what models and trials are like, what changed, and the verdict
    with its reasons last."""
    say(console, f"A  {verdict.a}\nB  {verdict.b}\n")
    for rows, total in ((latency_rows(verdict), True), (figure_rows(verdict), False)):
        console.print(fitted_table(columns_of(rows), (), console.width, left=("",), total=total))
    for head, settings in (("changed", verdict.changed), ("asked for", verdict.settings)):
        if settings:
            rows = [{head: row.pop("what")} | row for row in setting_rows(settings)]
            table = fitted_table(columns_of(rows), (), console.width, folded=("A", "B"))
            console.print(table)
    for reason in verdict.reasons:
        say(console, f"worse  {reason}")
    say(console, headline(verdict))
