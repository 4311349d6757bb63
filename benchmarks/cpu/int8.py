"""Compares the throughput of int8 and float32 rule schedules of development layers on this CPU.

    python -m benchmarks.cpu.int8 --target cpu:threads=1      # a minute

Prints a table in 10^9 operations per second. A multiply-add of the operator's definition counts as
two operations, even where float32 uses Winograd's algorithm, which needs fewer.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.layers import CPU_DEVELOPMENT
from benchmarks.results import markdown_table
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Baseline, capability
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload, parse_workload

ROUNDS = 3
REQUANTISE = "bias, >> 8, min 127, max 0"


def main() -> None:
    """Measure the layers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="cpu")
    target = make_target(parser.parse_args().target)
    cells = []
    for name, (text, epilogue) in CPU_DEVELOPMENT.items():
        pair = (parse_workload(f"{text},dtype=float32", epilogue), parse_workload(text, REQUANTISE))
        floats, integers = rates(target, pair)
        ratio = f"{integers / floats:.1f}"
        cells.append((name, f"{floats:.0f}", f"{integers:.0f}", ratio))
    print(markdown_table(("layer", "float32", "int8", "×"), "lr", cells))


def rates(target: Target, workloads: tuple[Workload, ...]) -> list[float]:
    """Return the throughput of each workload's rule schedule in 10^9 operations per second.

    Each value is the median of several rounds.
    """
    baseline = capability(target, Baseline)
    assert baseline is not None
    lowered = [baseline.baseline(workload).lowered for workload in workloads]
    seconds = [[target.measure(batch).seconds[0] for batch in lowered] for _ in range(ROUNDS)]
    operations = [2 * workload.macs for workload in workloads]
    return [float(rate) for rate in operations / np.median(seconds, axis=0) / 1e9]


if __name__ == "__main__":
    main()
