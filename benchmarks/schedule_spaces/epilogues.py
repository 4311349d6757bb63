"""Measures the cost of epilogues for the convolutions of ResNet-18, in the extended space.

    python -m benchmarks.schedule_spaces.epilogues --target vta-pynq

The table compares a plain epilogue with these ones: a bias of any int32 value (`bias 32`); a bias
with which the accumulator is initialised instead of being reset; such a bias with a separate shift
per channel; and a residual, which passes through the GEMM core or, if it is int32 (`add`), is
loaded from memory. Schedules are ranked by their estimates, and the best `--timed` of a random
sample with a fixed seed are simulated.
"""

from __future__ import annotations

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.layers import RESNET18
from benchmarks.schedule_spaces.bound_distance import best_extended, vta_target
from tilewright.targets.vta.workload_bound import bound_cycles

CLIPS = "min 127, max 0"
REST = f">> 8, {CLIPS}"
EPILOGUES = {
    "plain": REST,
    "bias added": f"bias 32, {REST}",
    "bias first": f"bias, {REST}",
    "by channel": f"bias, >> channel 8, {CLIPS}",
    "residual 4": f"bias, residual 4, {REST}",
    "residual 8": f"bias, residual 8, {REST}",
    "int32 residual": f"bias, add, {REST}",
}


def main(target: str = "vta-pynq", sample: int = 4_000, timed: int = 600) -> None:
    """Print the table for one target."""
    extended = vta_target(target)
    table = Table(title=f"cycles on {target}, behind them {REST}")
    for column in ("layer", "×", *EPILOGUES):
        table.add_column(column, justify="left" if column == "layer" else "right")
    best, bounds = np.zeros((2, len(EPILOGUES)), np.int64)
    for name, (workload, count) in track(RESNET18.items(), console=Console(stderr=True)):
        row = [workload.with_epilogue(text) for text in EPILOGUES.values()]
        cycles = [best_extended(extended, w, sample, timed) for w in row]
        best += count * np.array(cycles)
        bounds += count * np.array([bound_cycles(w, extended.spec) for w in row])
        table.add_row(name, str(count), *(f"{v:,}" for v in cycles))
    table.add_section()
    table.add_row("total", "", *(f"{v:,}" for v in best))
    table.add_row("bound", "", *(f"{v:,}" for v in bounds))
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
