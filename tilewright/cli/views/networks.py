"""Shows the list of `tilewright zoo`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tilewright.cli.views.terminal import ruled_table
from tilewright.networks.zoo.model_stats import NetworkFacts


def show_zoo(networks: Sequence[NetworkFacts], console: Console) -> None:
    """A line a network."""
    table = ruled_table()
    for name in ("network", "input", "operators", "MMAC", "parameters"):
        left = name in ("network", "input")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for each in networks:
        table.add_row(
            each.name, "×".join(map(str, each.input_shape)), f"{each.operators:,}",
            f"{each.macs / 1e6:,.1f}", f"{each.parameters:,}",
        )  # fmt: skip
    console.print(table)
