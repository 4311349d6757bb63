"""Measures what Prefect and MLflow cost: `tilewright tune` against the same run with `--bare`.

    .venv/bin/python -m benchmarks.orchestration [--network resnet18] [--trials 64] [--repeats 3]

Both run as processes of their own, from nothing, by turns; compared is wall time from start to end,
imports and servers included. The bare call does the same work: import, subgraphs, stock
schedules, the tuning loop with its trial store, the bit-exact proof. The limit is 15 %.
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
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.15


@dataclass(frozen=True)
class Cost:
    """Seconds of one process and its children."""

    wall: float
    cpu: float


def timed(command: list[str], folder: Path) -> Cost:
    """Seconds of a command in a folder, with no settings of a server in its environment."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    drop = ("PREFECT_", "MLFLOW_", "TILEWRIGHT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu)


def main() -> None:
    """Run both in turns and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--target", default="vta-pynq")
    parser.add_argument("--tuner", default="default")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    program = str(Path(sys.executable).with_name("tilewright"))
    what = ["--target", given.target, "--tuner", given.tuner, "--trials", str(given.trials)]
    flow: list[Cost] = []
    bare: list[Cost] = []
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = [program, "tune", given.network, *what]
            bare.append(timed([*command, "--out", "bare", "--bare"], folder))
            flow.append(timed([*command, "--out", "out"], folder))
            print(f"bare {bare[-1].wall:6.1f} s   tune {flow[-1].wall:6.1f} s", flush=True)
    report(flow, bare)


def report(flow: list[Cost], bare: list[Cost]) -> None:
    """Print medians, and the share of the command's time that the bare call does not take."""
    walls = [statistics.median(c.wall for c in costs) for costs in (flow, bare)]
    cpus = [statistics.median(c.cpu for c in costs) for costs in (flow, bare)]
    share = 1 - walls[1] / walls[0]
    print(f"wall  tune {walls[0]:.1f} s, bare {walls[1]:.1f} s: orchestration {share:.1%}")
    print(f"cpu   tune {cpus[0]:.1f} s, bare {cpus[1]:.1f} s: {cpus[0] - cpus[1]:+.1f} s")
    print("within the limit" if share <= LIMIT else f"above the limit of {LIMIT:.0%}")


if __name__ == "__main__":
    main()
