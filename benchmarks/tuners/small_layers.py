"""Tests whether the tuner `default` is ever worse than `random`, on small and unusual layers.

    python -m benchmarks.tuners.small_layers          # 36 layers, 10 seeds (half an hour of CPU)
    python -m benchmarks.tuners.small_layers --quick  # six layers, 3 seeds
    python -m benchmarks.tuners.small_layers --json found.json

The layers are drawn at random with a fixed seed: dense layers with one or several rows, and
convolutions with small images and odd channels, kernels and strides, on six machines. Every space
is enumerated, so the regret is relative to the true optimum. All tuners get the same space, seeds,
batch size of 8 and budget of 64 trials. On a layer, `default` counts as worse than `random` if the
95 % bootstrap interval of the mean difference of their regrets, paired by seed (10,000 resamples),
lies above zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.results import Jobs, Seeds, Tuners
from tilewright.cli.views.comparison import show_comparing
from tilewright.core.errors import WorkloadError
from tilewright.core.files import write_atomically
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed, name_workloads
from tilewright.evaluation.compare.leaderboard import Results
from tilewright.evaluation.compare.plan import parse_tuner_configs, plan
from tilewright.flows.comparison import run_comparison
from tilewright.search import LocalRunner
from tilewright.targets import make_target
from tilewright.targets.cluster.connection import local_cluster
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.workload import Workload, parse_workload

TUNERS = "default,default-blind,random"
JUDGED, CONTROL = "default", "random"
TRIALS, BATCH = 64, 8
MOST_CONFIGS = 60_000  # so that a space is enumerated in seconds
FEWEST_CONFIGS = 4 * TRIALS
MOST_REGRET = 10.0  # stands for a run that found nothing valid
RESAMPLES = 10_000
COVERAGE = (0.025, 0.975)

MACHINES: dict[str, dict[str, int]] = {
    "vta-pynq": {},
    "small": {},
    "huge": {},
    "narrow": {"LOG_BLOCK": 3, "LOG_INP_BUFF_SIZE": 13, "LOG_WGT_BUFF_SIZE": 15,
               "LOG_ACC_BUFF_SIZE": 14},
    "batched": {"LOG_BATCH": 1, "LOG_BLOCK_IN": 5, "LOG_BLOCK_OUT": 4, "bus_bits": 128},
    "slow-memory": {"LOG_BLOCK": 4, "memory_latency_cycles": 150, "max_burst_beats": 16,
                    "LOG_WGT_BUFF_SIZE": 16},
}  # fmt: skip
"""Keys of `vta_config.json` by name of the machine. Machines without keys are presets."""


@dataclass(frozen=True)
class Layer:
    """Results of one layer: the regrets of each tuner, and `default` compared with `random`."""

    machine: str
    workload: str
    configs: int
    valid: float  # share of the space
    regrets: dict[str, list[float]]
    difference: tuple[float, float, float]  # mean regret above `random`'s, with its interval

    def median(self, tuner: str) -> float:
        """Return the median regret of a tuner over seeds."""
        return float(np.median(self.regrets[tuner]))

    @property
    def is_worse(self) -> bool:
        """True if `default` is worse than `random` beyond noise."""
        return self.difference[1] > 0.0


def main(
    quick: Annotated[bool, typer.Option(help="Quick run: one layer per machine, 3 seeds.")] = False,
    layers: Annotated[int, typer.Option(help="Layers per machine.")] = 6,
    seeds: Seeds = 10,
    drawn: Annotated[int, typer.Option(help="Seed of the layers.")] = 0,
    tuners: Tuners = TUNERS,
    jobs: Jobs = 2,
    result: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    out: Path = Path("built/small_layers"),
    spaces: Path = Path("built/spaces"),
) -> None:
    """Run all tuners and print their regrets."""
    if quick:
        layers, seeds = 1, 3
    console = Console(width=140)
    results: list[Layer] = []
    for place, machine in enumerate(MACHINES):
        target = _target(machine, out / "machines")
        rng = np.random.default_rng([drawn, place])
        bed = EnumeratedTestBed(
            target, "extended", name_workloads(_layers(target, layers, rng)), spaces
        )
        what = plan(bed, parse_tuner_configs(tuners), range(seeds), TRIALS, BATCH)
        with show_comparing(console) as progress:
            done = run_comparison(LocalRunner(progress), what, out / machine, local_cluster(jobs))
        results += _judge_layers(machine, bed, done.results)
    console.print(_table(results))
    console.print(_summary(results))
    if result is not None:
        write_atomically(
            result, json.dumps([asdict(layer) for layer in results], indent=1).encode()
        )


def _target(machine: str, folder: Path) -> str:
    """Return a target's name: a preset, or the path of a specification written to `folder`."""
    if not MACHINES[machine]:
        return machine
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{machine}.json"
    spec = VtaSpec.from_mapping({"name": machine, **MACHINES[machine]})
    path.write_text(
        json.dumps(spec.model_dump(by_alias=True, exclude={"source"}, exclude_none=True))
    )
    return str(path)


def _layers(target: str, count: int, rng: np.random.Generator) -> list[Workload]:
    """Draw dense layers and convolutions in turn. Their spaces are neither tiny nor large."""
    kinds: tuple[Iterator[Workload], Iterator[Workload]] = (_dense(rng), _convolutions(rng))
    hardware, chosen = make_target(target, "extended"), list[Workload]()
    while len(chosen) < count:
        workload = next(kinds[len(chosen) % 2])
        try:
            size = hardware.space(workload).size
        except WorkloadError:
            continue
        if FEWEST_CONFIGS <= size <= MOST_CONFIGS and workload not in chosen:
            chosen.append(workload)
    return chosen


def _dense(rng: np.random.Generator) -> Iterator[Workload]:
    while True:
        rows = int(rng.choice([1, 1, 2, 5, 12, 16]))
        c, o = (int(2 ** rng.uniform(low, 12.5)) for low in (5.0, 3.0))
        yield parse_workload(f"dense:n={rows},c={c},o={o}")


def _convolutions(rng: np.random.Generator) -> Iterator[Workload]:
    while True:
        h, w = (int(rng.integers(1, 15)) for _ in range(2))
        c, o = (int(2 ** rng.uniform(2.0, 9.0)) for _ in range(2))
        kernel, stride = int(rng.choice([1, 1, 3, 3, 5])), int(rng.choice([1, 1, 2]))
        pad = int(rng.choice([0, kernel // 2]))
        if min(h, w) + 2 * pad >= kernel:
            yield parse_workload(
                f"conv2d:n=1,c={c},h={h},w={w},o={o},k={kernel},s={stride},p={pad}"
            )


def _judge_layers(machine: str, bed: EnumeratedTestBed, results: Results) -> Iterator[Layer]:
    last = np.minimum(results.regret[..., -1], MOST_REGRET)
    judged, control = (results.tuners.index(name) for name in (JUDGED, CONTROL))
    for w, name in enumerate(results.workloads):
        table = bed.table(name)
        regrets = {
            tuner: [float(regret) for regret in last[k, w]]
            for k, tuner in enumerate(results.tuners)
        }
        difference = _mean_interval(last[judged, w] - last[control, w])
        valid = float(np.mean(table.status == "valid"))
        yield Layer(machine, name, len(table.flat), valid, regrets, difference)


def _mean_interval(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of differences, shape (seeds,), with its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.quantile(differences[drawn].mean(axis=1), COVERAGE)
    return float(differences.mean()), float(low), float(high)


def _table(layers: list[Layer]) -> Table:
    table = Table(title=f"regret after {TRIALS} trials: median over seeds (worst seed)")
    tuners = list(layers[0].regrets)
    for name in ("machine", "layer", "configs", "valid", *tuners, f"{JUDGED} - {CONTROL}"):
        table.add_column(name, justify="left" if name in ("machine", "layer") else "right")
    for layer in layers:
        cells = [f"{layer.median(t):.2%} ({max(layer.regrets[t]):.1%})" for t in tuners]
        mean, low, high = layer.difference
        mark = " worse" if layer.is_worse else ""
        table.add_row(
            layer.machine, layer.workload, f"{layer.configs:,}", f"{layer.valid:.0%}", *cells,
            f"{mean:+.1%} ({low:+.1%} {high:+.1%}){mark}",
        )  # fmt: skip
    return table


def _summary(layers: list[Layer]) -> str:
    lines = [
        f"{sum(layer.is_worse for layer in layers)} of {len(layers)} layers are worse than with "
        f"{CONTROL}"
    ]
    for tuner in layers[0].regrets:
        medians = [layer.median(tuner) for layer in layers]
        within = sum(median <= 0.01 for median in medians)
        lines.append(
            f"{tuner}: median of medians {np.median(medians):.2%}, worst {max(medians):.2%}, "
            f"within 1 % on {within} of {len(layers)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
