"""Counts the kinds of failures in each VTA schedule space.

    python -m benchmarks.schedule_spaces.failures              # ResNet-18's spaces on vta-pynq
    python -m benchmarks.schedule_spaces.failures --unchecked  # ML²Tuner's on evta-zcu102: minutes

For each layer, the table has the fraction of configs that are valid, and the fraction in each
failure class, such as a scratchpad that is too small. Large spaces are sampled with a fixed seed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.layers import RESNET18
from tilewright.targets import Lowered, Measurements, make_target
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.workload import Workload

BATCH = 1024


def outcomes(target: VtaTarget, workload: Workload, sample: int) -> Counter[str]:
    """Count the configs in each failure class or status."""
    space = target.space(workload)
    if sample >= space.size:
        lowered, measured = target.enumerate(workload)
    else:
        flat = np.random.default_rng(0).permutation(space.size)[:sample]
        return sum(
            (
                _count_failures(
                    lowered := target.lower(workload, space.unravel(part)), target.measure(lowered)
                )
                for part in np.array_split(flat, -(-len(flat) // BATCH))  # so few programs are kept
            ),
            Counter[str](),
        )
    return _count_failures(lowered, measured)


def _count_failures(lowered: Lowered, measured: Measurements) -> Counter[str]:
    return Counter(
        failure or status for failure, status in zip(lowered.failures, measured.status, strict=True)
    )


def main(unchecked: bool = False, sample: int = 20_000) -> None:
    """Print a table per space. Large spaces are sampled with a fixed seed."""
    spaces = (
        [("evta-zcu102", "unchecked")]
        if unchecked
        else [("vta-pynq", "stock"), ("vta-pynq", "template"), ("vta-pynq", "extended")]
    )
    for preset, space in spaces:
        target = make_target(preset, space)
        assert isinstance(target, VtaTarget)
        result = {
            name: outcomes(target, workload, sample if space != "unchecked" else 1 << 62)
            for name, (workload, _) in track(RESNET18.items(), console=Console(stderr=True))
        }
        classes = sorted({key for counter in result.values() for key in counter} - {"valid"})
        table = Table(title=f"{space} on {preset}")
        for column in ("layer", "configs", "valid", *classes):
            table.add_column(column, justify="left" if column == "layer" else "right")
        for name, counter in result.items():
            total = counter.total()
            shares = [f"{counter[key] / total:.1%}" for key in ("valid", *classes)]
            table.add_row(name, f"{total:,}", *shares)
        Console().print(table)


if __name__ == "__main__":
    typer.run(main)
