"""Measures what a cluster gains: throughput by workers, overhead a batch, and what saturates first.

    .venv/bin/python -m benchmarks.scaling --json FILE            # some minutes
    .venv/bin/python -m benchmarks.scaling --json FILE --quick    # a minute

Workers that answer a call at a time are processes of this machine. Measured are

* rows a second of a target that takes a while for each and needs no processor, as a board does,
  by 1, 2 and 4 workers and by as many threads: that is what spreading itself loses;
* rows a second of the VTA's simulator on batches of ResNet-18's layers, likewise: that ends at the
  processors there are;
* what a batch of the simulator takes longer by a worker than here, the bytes that travel for it,
  and the processor seconds that a call costs the command;
* what a round costs the command itself: propose, veto, choose, learn.

From these figures follows, on paper, how long a call must take a worker so that N workers are at
work for 80 % of the time: `efficiency` says how.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.layers import RESNET18
from tilewright.core.files import Json, write_atomically
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets import make_target
from tilewright.targets.base import Configs, Target
from tilewright.targets.cluster.channel import ABOUT, CALL
from tilewright.targets.cluster.connection import connect
from tilewright.targets.cluster.keys import VARIABLE, make_keys
from tilewright.targets.cluster.target import ClusterTarget, recipe_of
from tilewright.targets.fault_injection import FaultyTarget
from tilewright.targets.fault_injection import make_target as make_faulty
from tilewright.targets.registry import ENTRY_POINTS, TargetKind
from tilewright.targets.workload import Workload, parse_workload

ROOT = Path(__file__).parents[1]
CONV = parse_workload("conv2d:n=1,c=16,h=28,w=28,o=32,k=3,s=1,p=1")
VTA = "vta-pynq"
LOWERED, MEASURED = 64, 16
"""Configs that a round lowers, and of which it measures."""
GOAL = 0.8
COUNTS = (1, 2, 4)
PAPER = (1, 2, 4, 16, 64, 256, 512)
LINK_BYTES = 1e9 / 8
"""Of a second: the network of the model on paper, 1 Gbit/s."""


@dataclass(frozen=True)
class Throughput:
    """Rows a second, and the share of `workers` times what one thread reaches."""

    what: str
    workers: int
    cluster: float
    threads: float


@dataclass(frozen=True)
class Overhead:
    """Of a call by a worker: seconds of wall clock here and there, processor seconds of the
    command, bytes of arguments and results."""

    call: str
    here: float
    cluster: float
    command_cpu: float
    bytes: int


@dataclass(frozen=True)
class Figures:
    """All that was measured; `calls` are how many empty ones a second the cluster takes at most,
    `round_seconds` what a round costs the command itself, by tuner."""

    processors: int
    throughputs: list[Throughput]
    overheads: list[Overhead]
    calls: float
    call_latency: float
    call_command_cpu: float
    round_seconds: dict[str, float]


def _waiting(specification: Mapping[str, Any], space: str) -> Target:
    return make_faulty(**specification)


WAITING = TargetKind("waiting", "waits for each row", lambda text, space: FaultyTarget({}),
                     rebuild=_waiting)  # fmt: skip
"""What workers here know beside the usual kinds."""


@contextmanager
def cluster_of(workers: int) -> Iterator[str]:
    """The address of so many workers, which end with the block."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        make_keys(folder / "keys")
        os.environ[VARIABLE] = str(folder / "keys")
        (plugin := folder / "waiting-1.dist-info").mkdir()
        (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: waiting\nVersion: 1\n")
        entry = f"[{ENTRY_POINTS}]\nwaiting = {__spec__.name}:WAITING\n"
        (plugin / "entry_points.txt").write_text(entry)
        yield ",".join(_worker(folder, stack) for _ in range(workers))


def _worker(folder: Path, stack: ExitStack) -> str:
    """The address of a worker."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tilewright", "cluster", "serve", "--port", "0"], text=True,
        cwd=folder, env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        stdout=subprocess.PIPE,
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().partition(" at a time at ")[2].partition(";")[0]


def main(
    result: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer rows.")] = False,
) -> None:
    """Measure, and print what was measured and what follows."""
    scale = 1 if quick else 4
    throughputs = []
    for count in COUNTS:
        with cluster_of(count) as address:
            throughputs.append(waiting(address, count, 0.1, 16 * scale))
            throughputs.append(simulating(address, count, scale))
    with cluster_of(2) as address:
        overheads = [overhead(address, call, 5 * scale) for call in ("lower", "measure")]
        empty = empty_calls(address, 200 * scale)
    rounds = {name: round_seconds(name, 4 * 16) for name in ("default", "ml2tuner", "random")}
    found = Figures(psutil.cpu_count() or 1, throughputs, overheads, *empty, rounds)
    show(found, Console(width=120))
    if result is not None:
        about = {**asdict(found), "needed": [needed(found, count) for count in PAPER]}
        write_atomically(result, json.dumps(about, indent=1).encode())


# -- measuring ----------------------------------------------------------------------------------


def waiting(address: str, count: int, seconds: float, rows: int) -> Throughput:
    """Of a target that waits so long for each row."""
    space = FaultyTarget({}).space(CONV)
    flats = range(rows)
    arguments: dict[str, Json] = {
        "faults": {str(flat): "late" for flat in flats}, "late_seconds": seconds
    }  # fmt: skip
    here = FaultyTarget(dict.fromkeys(flats, "late"), seconds)
    recipe: dict[str, Json] = {
        "kind": "waiting", "preset": "", "space": "", "specification": arguments, "isolate": 0,
    }  # fmt: skip
    away = ClusterTarget(here, recipe, address)
    configs = space.unravel(np.arange(rows))
    lowered = here.lower(CONV, configs)
    runnable = int(lowered.ok.sum())
    away.measure(lowered)  # workers load what they need
    cluster = runnable / timed(lambda: away.measure(lowered))
    parts = np.array_split(np.arange(rows), rows)

    def by_threads() -> None:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda part: here.measure(lowered.rows(part)), parts))

    return Throughput(f"waits {seconds:g} s a row", count, cluster, runnable / timed(by_threads))


def simulating(address: str, count: int, scale: int) -> Throughput:
    """Of the simulator, on a batch of each of ResNet-18's convolutions, several at a time."""
    here = make_target(VTA)
    away = ClusterTarget(here, recipe_of(here, VTA, "extended", 0), address)
    work = [workload for workload, _ in RESNET18.values()] * scale

    def batch(target: Target, workload: Workload) -> None:
        target.measure(target.lower(workload, drawn(target, workload, LOWERED)))

    def by(target: Target, at_a_time: int) -> float:
        with ThreadPoolExecutor(at_a_time) as pool:
            jobs = [target] * len(work)
            return len(work) * LOWERED / timed(lambda: list(pool.map(batch, jobs, work)))

    for target in (here, away):
        by(target, 2 * count)
    return Throughput("VTA simulator", count, by(away, 2 * count), by(here, count))


def overhead(address: str, call: str, repeats: int) -> Overhead:
    """Of the simulator's batches, a round's worth a call; medians over layers and repeats."""
    here = make_target(VTA)
    away = ClusterTarget(here, recipe_of(here, VTA, "extended", 0), address)
    walls: dict[bool, list[float]] = {False: [], True: []}
    sizes, command, calls = [], 0.0, 0
    for workload, _ in RESNET18.values():
        configs = drawn(here, workload, LOWERED)
        if call == "measure":
            configs = configs[np.flatnonzero(here.lower(workload, configs).ok)[:MEASURED]]
        _, results = away.ask(call, workload, configs)
        sizes.append(configs.nbytes + sum(array.nbytes for array in results.values()))
        for target in (here, away):
            lowered = target.lower(workload, configs)
            work: Callable[[], object] = (
                (lambda t=target, w=workload, c=configs: t.lower(w, c))  # type: ignore[misc]
                if call == "lower"
                else (lambda t=target, f=lowered: t.measure(f))  # type: ignore[misc]
            )
            work()
            before = cpu(psutil.Process())
            walls[target is away] += [timed(work) for _ in range(repeats)]
            if target is away:
                command += cpu(psutil.Process()) - before
                calls += repeats
    return Overhead(
        call, float(np.median(walls[False])), float(np.median(walls[True])), command / calls,
        int(np.median(sizes)),
    )  # fmt: skip


def empty_calls(address: str, calls: int) -> tuple[float, float, float]:
    """How many calls that do nothing two workers take a second, many at a time; what one takes
    alone; and processor seconds of the command for each."""
    cluster = connect(address)

    def ask(_: int = 0) -> object:
        return cluster.call({CALL: ABOUT}, {})

    alone = float(np.median([timed(ask) for _ in range(50)]))
    before = cpu(psutil.Process())
    with ThreadPoolExecutor(16) as pool:
        wall = timed(lambda: list(pool.map(ask, range(calls))))
    return calls / wall, alone, (cpu(psutil.Process()) - before) / calls


def round_seconds(tuner: str, trials: int) -> float:
    """Seconds that a round costs the command, without lowering and measuring; the mean
    over the rounds of two layers."""
    target, seconds, count = make_target(VTA), 0.0, 0
    for name in ("C5", "C9"):
        for done in tune(
            target, RESNET18[name][0], make_explorer(tuner, {}), trials=trials, batch=MEASURED
        ):
            stages = done.stage_seconds
            seconds += sum(v for k, v in stages.items() if k not in ("lower", "measure"))
            count += 1
    return seconds / count


def drawn(target: Target, workload: Workload, count: int) -> Configs:
    """So many configs at random, the same each time, (count, knobs)."""
    space = target.space(workload)
    return space.unravel(np.random.default_rng(0).integers(0, space.size, count))


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall clock."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def cpu(process: psutil.Process) -> float:
    """Processor seconds so far, of all threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


# -- on paper -----------------------------------------------------------------------------------


def limits(found: Figures, workers: int, tuner: str = "default") -> dict[str, float]:
    """Seconds that a call must take a worker for `GOAL` of `workers` to be at work, by what limits
    it.

    A worker that has one call at a time is idle for what a call takes beyond its work: e = T / (T
    + latency). What only one can do at a time, the command's processor seconds c a call, its share
    of a round, and the link's bytes, gives at most 1 / c calls a second: e = T / (c N). A round is
    two calls here, one that lowers and one that measures.
    """
    lower, measure = found.overheads
    latency = float(np.mean([max(0.0, each.cluster - each.here) for each in found.overheads]))
    shared = {
        "command: carrying": (lower.command_cpu + measure.command_cpu) / 2,
        f"command: tuner '{tuner}'": found.round_seconds[tuner] / 2,
        "link of 1 Gbit/s": (lower.bytes + measure.bytes) / 2 / LINK_BYTES,
    }
    share = GOAL / (1 - GOAL)
    return {"latency of a call": share * latency} | {
        name: GOAL * workers * seconds for name, seconds in shared.items()
    }


def needed(found: Figures, workers: int) -> dict[str, Json]:
    """The largest of `limits`, and whose it is; with a tuner that costs nothing beside it."""
    every = limits(found, workers)
    first = max(every, key=lambda name: every[name])
    others = {name: value for name, value in every.items() if "tuner" not in name}
    without = max(others, key=lambda name: others[name])
    return {
        "workers": workers, "seconds": every[first], "first": first,
        "seconds_without_tuner": others[without], "first_without_tuner": without,
    }  # fmt: skip


def show(found: Figures, console: Console) -> None:
    """All tables."""
    table = Table(title=f"rows a second, {found.processors} processors")
    for name in ("target", "workers", "cluster", "threads", "cluster to 1 worker"):
        table.add_column(name, justify="left" if name == "target" else "right")
    first = {each.what: each.cluster for each in found.throughputs if each.workers == 1}
    for each in sorted(found.throughputs, key=lambda each: each.what):
        table.add_row(
            each.what, str(each.workers), f"{each.cluster:,.1f}", f"{each.threads:,.1f}",
            f"{each.cluster / first[each.what]:.2f}×",
        )  # fmt: skip
    console.print(table)
    table = Table(title=f"a round's batch of ResNet-18's convolutions on {VTA}, milliseconds")
    for name in ("call", "here", "by a worker", "command CPU", "kB"):
        table.add_column(name, justify="right")
    for call in found.overheads:
        times = (call.here, call.cluster, call.command_cpu)
        table.add_row(call.call, *(f"{1e3 * s:.1f}" for s in times), f"{call.bytes / 1e3:,.0f}")
    console.print(table)
    console.print(
        f"an empty call: {1e3 * found.call_latency:.1f} ms alone; {found.calls:,.0f} a second, 16 "
        f"at a time, each {1e3 * found.call_command_cpu:.2f} ms of the command's processor"
    )
    for name, seconds in found.round_seconds.items():
        console.print(f"a round of tuner {name}: {1e3 * seconds:.0f} ms in the command")
    table = Table(title=f"on paper: seconds a call must take a worker for {GOAL:.0%}")
    for name in ("workers", "seconds", "what limits", "beside the tuner", "what limits then"):
        table.add_column(name, justify="right")
    for count in PAPER:
        row = needed(found, count)
        table.add_row(
            str(count), f"{row['seconds']:.3g}", str(row["first"]),
            f"{row['seconds_without_tuner']:.3g}", str(row["first_without_tuner"]),
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
