"""Display of the list of tuners."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tilewright.cli.views.terminal import bare_table
from tilewright.search import Registration


def show_tuners(tuners: Sequence[Registration], console: Console) -> None:
    """Show one line per tuner, and then the options of each tuner.

    Tuners with the same options are grouped.

    Args:
        tuners: the registered tuners.
        console: the terminal.
    """
    table = bare_table(head=False)
    table.add_column("", no_wrap=True, style="bold")
    table.add_column("")
    for tuner in tuners:
        needs = f" (needs {tuner.install_command})" if tuner.install_command else ""
        table.add_row(tuner.name, Text(tuner.summary + needs))
    console.print(table)
    by_options = sorted(tuners, key=lambda item: item.options.__name__)
    for _, group in groupby(by_options, key=lambda option: option.options.__name__):
        _show_options(list(group), console)
    console.print(Text("\nSet an option with --option NAME=VALUE", "dim"))


def _show_options(tuners: Sequence[Registration], console: Console) -> None:
    fields = tuners[0].options.model_fields
    if not fields:
        return
    names = ", ".join(item.name for item in tuners)
    console.print(Text.assemble("\noptions of ", (names, "bold")))
    table = bare_table(head=False)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for option, field in fields.items():
        table.add_row(Text(f"{option}={field.default}"), Text(field.description or ""))
    for tuner in tuners:
        if tuner.preset:
            preset = ", ".join(f"{name}={value}" for name, value in tuner.preset.items())
            table.add_row("", f"{tuner.name}: {preset}")
    console.print(Padding(table, (0, 0, 0, 4)))
