"""Measures how close the best schedules of each VTA space are to the bound, layer by layer.

    python -m benchmarks.schedule_spaces.bound_distance --target vta-pynq
    python -m benchmarks.schedule_spaces.bound_distance --target large

For each convolution of ResNet-18, the table has the cycles of the stock compiler's schedule, of the
best schedule in the template space with and without the stock compiler's restrictions (by
enumeration), of the best schedule found in the extended space, and of the bound max(compute,
compulsory read beats, write beats) that no schedule beats. It also names the term that determines
the bound. Compute includes the GEMM, the reset of the accumulator and the epilogue, which all run
on one module.

Schedules of the extended space are ranked by their estimates, and the best `--timed` are simulated.
The result is the cycle count of an existing schedule, so it is an upper bound of the optimum.
"""

from __future__ import annotations

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.layers import RESNET18
from tilewright.targets import make_target
from tilewright.targets.vta.measure import time_rows
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bounds
from tilewright.targets.workload import Workload


def vta_target(name: str, space: str = "") -> VtaTarget:
    """Return a VTA target by name. See `make_target`."""
    target = make_target(name, space)
    assert isinstance(target, VtaTarget), f"{name} is not a VTA"
    return target


def best_extended(target: VtaTarget, workload: Workload, sample: int, timed: int) -> int:
    """Return the cycles of the best schedule in a random sample of the extended space.

    Of the `sample` configs, those `timed` with the best estimates are simulated.
    """
    space = target.space(workload)
    flat = np.random.default_rng(0).permutation(space.size)[:sample]
    configs = space.unravel(flat)
    codes, _ = target.lowering(workload).counts(space.values(configs))  # keeps no program
    estimated = target.estimate(workload, configs).of_meaning("latency")[:, 0]
    best = np.argsort(np.where(codes == 0, estimated, np.inf))[:timed]
    _, _, cycles = time_rows(target.lowering(workload), space.values(configs[best]))
    return int(cycles[cycles > 0].min())


def best_template(target: VtaTarget, workload: Workload) -> int:
    """Return the cycles of the best schedule of the template space, by enumeration."""
    _, measured = target.enumerate(workload)
    return int(measured.cycles[measured.valid].min())


def main(target: str = "vta-pynq", sample: int = 100_000, timed: int = 20_000) -> None:
    """Print the table for one target."""
    extended = vta_target(target)
    stock, free = (vta_target(target, space) for space in ("stock", "template"))
    table = Table(title=f"cycles on {target}, epilogue >> 8, min 127, max 0")
    for column in ("layer", "×", "baseline", "stock template", "free template", "extended", "bound",
                   "binds", "above"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("layer", "binds") else "right")
    totals = np.zeros(5, np.int64)
    for name, (workload, count) in track(RESNET18.items(), console=Console(stderr=True)):
        limits = bounds(workload, extended.spec)
        binds = max(limits, key=lambda key: limits[key])
        row = [
            extended.baseline(workload).latency.cycles,
            best_template(stock, workload),
            best_template(free, workload),
            best_extended(extended, workload, sample, timed),
            limits[binds],
        ]
        totals += np.array(row) * count
        above = f"{row[3] / row[4] - 1:.1%}"
        table.add_row(name, str(count), *(f"{v:,}" for v in row), binds, above)
    table.add_section()
    table.add_row("total", "", *(f"{v:,}" for v in totals), "", f"{totals[3] / totals[4] - 1:.1%}")
    Console(width=110).print(table)
    print(
        f"extended / baseline {totals[3] / totals[0]:.3f}, "
        f"extended / best stock template {totals[3] / totals[1]:.3f}, "
        f"bound / best stock template {totals[4] / totals[1]:.3f}"
    )


if __name__ == "__main__":
    typer.run(main)
