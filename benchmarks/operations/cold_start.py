"""Measures the cost of a first run: `make setup`, and `tune` with an empty and with a full cache.

    .venv/bin/python -m benchmarks.operations.cold_start [--against ANOTHER_CHECKOUT] [--rounds 1]

Each command runs in a separate process. Its cache of compiled kernels is empty at first. The main
figure is the processor time (user and system) of the command and its child processes in seconds,
because it depends less on other load than the wall-clock time, which is printed beside it. With
`--against`, the same commands of another checkout run in turns with the commands of this checkout.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
START = "import sys; from tilewright.cli import command; sys.argv[0] = 'tilewright'; command()"
TUNE = ("tune", "digits_cnn", "--trials", "16", "--bare", "--out")
CASES = ("tune, empty cache", "tune, full cache", "set-up's kernels, empty cache")


class Cost(NamedTuple):
    """Cost of a command: processor time and wall-clock time, in seconds."""

    processor_s: float
    wall_s: float


def main() -> None:
    """Run all commands in turns and print the median costs of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-set-up", action="store_true", help="leave out set-up's kernels")
    given = parser.parse_args()
    checkouts = [ROOT, *([given.against.resolve()] if given.against else [])]
    costs: dict[tuple[Path, str], list[Cost]] = {}
    for _ in range(given.rounds):
        for checkout in checkouts:
            for case, cost in measure(checkout, set_up=not given.no_set_up).items():
                costs.setdefault((checkout, case), []).append(cost)
    print(f"{'':32}{'processor s':>14}{'wall s':>10}  checkout")
    for (checkout, case), found in sorted(costs.items(), key=lambda row: CASES.index(row[0][1])):
        processor = statistics.median(cost.processor_s for cost in found)
        wall = statistics.median(cost.wall_s for cost in found)
        print(f"{case:32}{processor:14.1f}{wall:10.1f}  {checkout}")


def measure(checkout: Path, set_up: bool) -> dict[str, Cost]:
    """Return the costs of the commands of one checkout.

    Args:
        checkout: root of the checkout.
        set_up: whether to measure also the compilation during `make setup`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        costs = {
            case: run(checkout, (*TUNE, str(folder / f"out{number}")), folder)
            for number, case in enumerate(CASES[:2])
        }
    if set_up:
        with tempfile.TemporaryDirectory() as name:
            costs[CASES[2]] = run(checkout, ("warm-up",), Path(name))
    return costs


def run(checkout: Path, arguments: tuple[str, ...], folder: Path) -> Cost:
    """Run a command of a checkout and return its cost.

    Args:
        checkout: root of the checkout.
        arguments: arguments of `tilewright`.
        folder: folder with the cache of compiled kernels and the workspace.
    """
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "NUMBA_CACHE_DIR": str(folder / "kernels"),
        "TILEWRIGHT_HOME": str(folder / "home"),
    }
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-c", START, *arguments],
        cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Cost(processor, wall)


if __name__ == "__main__":
    main()
