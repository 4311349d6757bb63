"""Measures where the time of `tilewright tune` goes, with and without Prefect and MLflow.

    .venv/bin/python -m benchmarks.operations.orchestration [--network resnet18] [--trials 64]

Each command runs twice in the same folder. In the second run, all trials are recorded and all
stages are cached. A thread samples the stack of the main thread every few milliseconds. Each sample
is attributed to the innermost of these parts: imports, Prefect, MLflow, servers (`services/`, which
starts and stops them), cache and records (`tasks/` and `flows/`), and the engine (all other
packages).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).parents[2]
PARTS = ("imports", "engine", "cache and records", "Prefect", "MLflow", "servers", "rest")
SAMPLED = """
import collections, json, os, sys, threading, time

ROOT, OUT = sys.argv[1] + os.sep, sys.argv[2]
begin = time.perf_counter()
parts, main, over = collections.Counter(), threading.main_thread().ident, threading.Event()

def part_of(frame):
    names, found = [], None
    while frame is not None:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back
    if any(name.startswith("<frozen importlib") for name in names):
        return "imports"
    for name in names:
        inside = name.removeprefix(ROOT)
        if inside != name and not inside.startswith(".venv"):
            room = inside.split(os.sep)[0]
            if room in ("tasks", "flows"):
                return "cache and records"
            return "servers" if room == "services" else "engine"
        for package, part in (("prefect", "Prefect"), ("mlflow", "MLflow")):
            if f"{os.sep}site-packages{os.sep}{package}{os.sep}" in name:
                return part
    return "rest"

def look():
    before = begin
    while not over.wait(0.004):
        frame, now = sys._current_frames().get(main), time.perf_counter()
        parts[part_of(frame)] += now - before
        before = now

threading.Thread(target=look, daemon=True).start()
sys.argv = ["tilewright", *sys.argv[3:]]

def left():
    over.set()
    with open(OUT, "w") as file:
        json.dump({"wall": time.perf_counter() - begin, "parts": parts}, file)

from tilewright.cli import command
try:
    command()
finally:
    left()
"""


class Split(TypedDict):
    """Seconds of a command: in total, and in each part that took any time."""

    wall: float
    parts: dict[str, float]


def main() -> None:
    """Run all four commands and print a line per command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--trials", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = {}
        for mode in ("bare", "tracked"):
            command = ["tune", given.network, "--trials", str(given.trials), "--out", mode]
            command += ["--bare"] * (mode == "bare")
            for run in ("cold", "again"):
                rows[mode, run] = _split(Path(name), command)
    print(f"{'seconds':16}" + "".join(f"{part:>20}" for part in (*PARTS, "all")))
    for (mode, run), row in rows.items():
        part_seconds = [row["parts"].get(part, 0.0) for part in PARTS] + [row["wall"]]
        print(f"{mode + ', ' + run:16}" + "".join(f"{seconds:20.2f}" for seconds in part_seconds))
    for run in ("cold", "again"):
        ratio = rows["tracked", run]["wall"] / rows["bare", run]["wall"]
        print(f"{run}: the tracked run takes {ratio:.2f} times as long as the bare run")


def _split(folder: Path, command: list[str]) -> Split:
    out = folder / "split.json"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    subprocess.run(
        [sys.executable, "-P", "-c", SAMPLED, str(ROOT), str(out), *command],
        cwd=folder, check=True, stdout=subprocess.DEVNULL,
        env=kept | {"PYTHONPATH": str(ROOT), "TILEWRIGHT_HOME": str(folder / "home")},
    )  # fmt: skip
    document: Split = json.loads(out.read_text())
    return document


if __name__ == "__main__":
    main()
