"""Measures the cost of a nightly run in which nothing has changed since the run before.

    python -m benchmarks.operations.nightly [--network resnet18] [--trials 64] [--repeats 3]

Each night runs the flow of a deployment in a separate process with a separate server, as
`tilewright tune` does. The command prints the wall-clock time and the processor time of this
process in seconds, both for loading modules and for the run. On an idle machine, the sum of both
wall-clock times should stay below 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 10.0
NIGHT = """
import json, resource, sys, time

def now():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime

from tilewright.services.start_servers import embedded
with embedded():
    begin = now()
    from tilewright.flows.nightly import tune_network
    loaded = now()
    asked = {"model": sys.argv[1], "trials": int(sys.argv[2]), "out": "out"}
    state = tune_network(**asked, return_state=True)
    done = now()
print(json.dumps([state.message or "", *(b - a for a, b in zip(begin + loaded, loaded + done))]))
"""


def run_night(network: str, trials: int, folder: Path) -> tuple[str, list[float]]:
    """Run a night. Return its message and seconds.

    The seconds are those of loading (wall-clock, processor) and of the run (wall-clock, processor).
    """
    drop = ("PREFECT_", "MLFLOW_", "TILEWRIGHT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-P", "-c", NIGHT, network, str(trials)]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    message, *seconds = json.loads(done.stdout.splitlines()[-1])
    return message, seconds


def main() -> None:
    """Run a first night, then repetitions in which nothing changed, and print their median cost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run_night(given.network, given.trials, Path(name))
        nights = [run_night(given.network, given.trials, Path(name)) for _ in range(given.repeats)]
    print(nights[0][0])
    load, load_cpu, run, run_cpu = (
        statistics.median(item) for item in zip(*(seconds for _, seconds in nights), strict=True)
    )
    print(f"load  {load:5.1f} s, {load_cpu:5.1f} s of processor time")
    print(f"run   {run:5.1f} s, {run_cpu:5.1f} s of processor time")
    print("within the limit" if load + run <= LIMIT else f"above the limit of {LIMIT:.0f} s")


if __name__ == "__main__":
    main()
