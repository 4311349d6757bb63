"""Shows the list of `tilewright zoo`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tilewright.cli.views.terminal import columns_of, fitted_table
from tilewright.networks.zoo.model_stats import NetworkFacts

_DROPPABLE = ("operators", "input")
"""Columns that a narrow terminal does without, the first first."""


def show_zoo(networks: Sequence[NetworkFacts], console: Console) -> None:
    """A line a network."""
    rows = [
        {
            "network": each.name,
            "input": "×".join(map(str, each.input_shape)),
            "operators": f"{each.operators:,}",
            "MMAC": f"{each.macs / 1e6:,.1f}",
            "parameters": f"{each.parameters:,}",
        }
        for each in networks
    ]
    console.print(fitted_table(columns_of(rows), _DROPPABLE, console.width, left=("input",)))
