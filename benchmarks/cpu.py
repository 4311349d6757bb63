"""Measures tuning for this processor, for layers and for networks. Nothing is simulated.

Layers are compared with MetaSchedule and random search. Networks are compared with onnxruntime, TVM
without tuning and MetaSchedule's kernels.

    python -m benchmarks.cpu --json built/cpu.json --quick    # ten minutes: fewer layers and seeds
    python -m benchmarks.cpu --json built/cpu.json            # a night

Every tuner gets the same number of measurements of the same TensorIR functions by the same
instrument (`targets.cpu.measure`). Runs of different tuners alternate, so that a drift of the
machine meets all of them. When all tuners of a layer are done, their best programs are measured
again, in turns, so that none profits from its luckiest measurement (`final_seconds`). Networks are
timed in turns with their rivals, an inference each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import metaschedule
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets.base import Lowered, Ragged, Target
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.features import Features
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload, parse_workload

_RELU6 = "bias, relu, min 6"
LAYERS: Mapping[str, tuple[str, str]] = {
    "resnet18 3x3 64": ("conv2d:n=1,c=64,h=56,w=56,o=64,k=3,p=1", "bias, relu"),
    "resnet18 3x3 128": ("conv2d:n=1,c=128,h=28,w=28,o=128,k=3,p=1", "bias, residual 0, relu"),
    "resnet18 3x3 256": ("conv2d:n=1,c=256,h=14,w=14,o=256,k=3,p=1", "bias, relu"),
    "resnet18 3x3 512": ("conv2d:n=1,c=512,h=7,w=7,o=512,k=3,p=1", "bias, residual 0, relu"),
    "resnet18 7x7/2": ("conv2d:n=1,c=3,h=224,w=224,o=64,k=7,s=2,p=3", "bias, relu"),
    "resnet18 3x3/2 256": ("conv2d:n=1,c=128,h=28,w=28,o=256,k=3,s=2,p=1", "bias, relu"),
    "mobilenet_v2 1x1 16-96": ("conv2d:n=1,c=16,h=112,w=112,o=96,k=1", _RELU6),
    "mobilenet_v2 1x1 192-64": ("conv2d:n=1,c=192,h=14,w=14,o=64,k=1", "bias"),
    "mobilenet_v2 1x1 960-320": ("conv2d:n=1,c=960,h=7,w=7,o=320,k=1", "bias"),
    "mobilenet_v2 dw 144": ("conv2d:n=1,c=144,h=56,w=56,o=144,k=3,p=1,g=144", _RELU6),
    "mobilenet_v2 dw/2 96": ("conv2d:n=1,c=96,h=112,w=112,o=96,k=3,s=2,p=1,g=96", _RELU6),
    "vit_tiny qkv": ("dense:n=197,c=192,o=576", "bias"),
    "vit_tiny mlp": ("dense:n=197,c=768,o=192", "bias, residual 0"),
    "vit_tiny scores": ("batch_matmul:n=3,h=197,c=64,o=197", ""),
}  # fmt: skip
QUICK = ("resnet18 3x3 128", "mobilenet_v2 1x1 192-64", "mobilenet_v2 dw 144")
TUNERS = ("default", "random", "metaschedule")
NETWORKS = ("resnet18", "mobilenet_v2")
ENGINES = ("tilewright", "baseline", "onnxruntime", "metaschedule")
ROUNDS = 5


def main() -> None:
    """Measure, write the JSON file after every run, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--layers", default="", help="names, separated by commas")
    parser.add_argument("--tuners", default=",".join(TUNERS), help="names, separated by commas")
    parser.add_argument("--networks", default=None, help="names, separated by commas")
    parser.add_argument("--network-trials", type=int, default=0, help="a workload; 0: the baseline")
    options = parser.parse_args()
    trials = options.trials or (24 if options.quick else 200)
    seeds = options.seeds or (1 if options.quick else 5)
    names = options.layers.split(",") if options.layers else QUICK if options.quick else LAYERS
    found: dict[str, list[dict[str, Any]]] = {"layers": [], "networks": []}
    target = make_target(options.target)
    options.json.parent.mkdir(parents=True, exist_ok=True)

    def keep(kind: str, row: dict[str, Any]) -> None:
        found[kind].append(row)
        options.json.write_text(json.dumps(found, indent=1))

    tuners = options.tuners.split(",")
    for row in layers(target, list(names), tuners, trials, seeds, options.quick):
        keep("layers", row)
    print(summary(found["layers"]))
    if options.quick:
        print("(MetaSchedule with an eighth of its population and one generation)")
    for name in NETWORKS if options.networks is None else filter(None, options.networks.split(",")):
        row = network(target, name, options.network_trials, rival=not options.quick)
        keep("networks", row)
        print(network_line(row), flush=True)


def workload_of(layer: str) -> Workload:
    """One of `LAYERS` in float32."""
    text, epilogue = LAYERS[layer]
    return parse_workload(f"{text},dtype=float32", epilogue)


def layers(
    target: Target,
    names: Sequence[str],
    tuners: Sequence[str],
    trials: int,
    seeds: int,
    quick: bool,
) -> Iterator[dict[str, Any]]:
    """A row a layer, seed and tuner; tuners in another order with every seed."""
    for seed in range(seeds):
        for name in names:
            order = [*tuners[seed % len(tuners) :], *tuners[: seed % len(tuners)]]
            workload = workload_of(name)
            runs = {tuner: run(target, workload, tuner, trials, seed, quick) for tuner in order}
            fresh = again(target, workload, [runs[tuner].pop("best") for tuner in order])
            for tuner, seconds in zip(order, fresh, strict=True):
                yield {
                    "layer": name, "tuner": tuner, "seed": seed, "final_seconds": seconds,
                    **runs[tuner],
                }  # fmt: skip


def run(
    target: Target, workload: Workload, tuner: str, trials: int, seed: int, quick: bool
) -> dict[str, Any]:
    """One tuner's run: its trace, and under `best` its fastest program as a batch of one."""
    if tuner == "metaschedule":
        done = metaschedule.tune(target, workload, trials, seed, quick=quick)
        return _row(done.seconds, done.elapsed) | {"best": done.best}
    begin = time.perf_counter()
    seconds: list[float] = []
    elapsed: list[float] = []
    best = None
    for found in tune(target, workload, make_explorer(tuner, {}), trials=trials, seed=seed):
        seconds += list(map(float, found.measured.seconds))
        elapsed += [time.perf_counter() - begin] * len(found.configs)
        best = found.best_config
    assert best is not None
    return _row(seconds, elapsed) | {"best": target.lower(workload, best[None])}


def again(target: Target, workload: Workload, best: Sequence[Lowered]) -> list[float]:
    """The seconds of some programs, measured in turns: medians of three."""
    joined = Lowered(
        workload,
        np.concatenate([each.configs for each in best]),
        np.concatenate([each.failures for each in best]),
        np.concatenate([each.reasons for each in best]),
        Features.none(len(best)),
        {"library": Ragged.of([each.programs["library"][0] for each in best])},
    )
    rounds = [target.measure(joined).seconds for _ in range(3)]
    return [float(seconds) for seconds in np.median(rounds, axis=0)]


def network(target: Target, name: str, trials: int, *, rival: bool) -> dict[str, Any]:
    """A whole network, batch 1, by each engine in turns, a process each: medians of rounds of
    medians. `rival` builds one of MetaSchedule's kernels, too, of as many trials a layer."""
    from tilewright.flows.build import build_artifact
    from tilewright.search import LocalRunner
    from tilewright.tuning.build_options import BuildOptions

    threads = CpuSpec.parse(target.name.partition(":")[2]).threads
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "tilewright"
        build_artifact(
            LocalRunner(), BuildOptions(model=name, out=ours, target=target.name, trials=trials)
        )
        engines = {"tilewright": ("tilewright", str(ours)), "onnxruntime": ("onnxruntime", name)}
        if rival and trials:
            theirs = Path(folder) / "metaschedule"
            metaschedule.build_network(target, name, theirs, trials)
            engines["metaschedule"] = ("tilewright", str(theirs))
        rounds: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(ROUNDS):
            for engine, call in engines.items():
                rounds[engine].append(_timed(*call, threads))
    rounds["baseline"] = [_timed("baseline", name, threads)]
    found = {engine: float(np.median(seconds)) for engine, seconds in rounds.items()}
    return {
        "network": name, "threads": threads, "trials": trials,
        **{f"{engine}_seconds": found.get(engine) for engine in ENGINES},
        "rounds": rounds,
    }  # fmt: skip


def network_line(row: Mapping[str, Any]) -> str:
    """One network's figures, each beside onnxruntime's."""
    base = row["onnxruntime_seconds"]
    told = ", ".join(
        f"{engine} {seconds * 1e3:.2f} ms ({seconds / base:.2f} x)"
        for engine in ENGINES
        if (seconds := row[f"{engine}_seconds"]) is not None
    )
    return f"{row['network']}, {row['threads']} threads, {row['trials']} trials a workload: {told}"


def _timed(engine: str, network: str, threads: int) -> float:
    """The median of one process's inferences."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.timed_network", engine, network, "--threads",
         str(threads)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(np.median(json.loads(done.stdout)))


def _row(seconds: Sequence[float], elapsed: Sequence[float]) -> dict[str, Any]:
    so_far = np.fmin.accumulate(np.asarray(seconds))
    return {
        "best_seconds": [None if np.isnan(best) else float(best) for best in so_far],
        "elapsed": [float(at) for at in elapsed],
        "measurements": len(seconds),
        "invalid": int(np.isnan(seconds).sum()),
        "wall_seconds": float(elapsed[-1]),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a tuner: geometric means over layers of the final seconds relative to MetaSchedule's
    with the same seed, and the share of its measurements after which a run was as good."""
    by = {(row["layer"], row["seed"], row["tuner"]): row for row in rows}
    lines = []
    for tuner in dict.fromkeys(row["tuner"] for row in rows):
        ratios, shares = [], []
        for (layer, seed, who), row in by.items():
            rival = by.get((layer, seed, "metaschedule"))
            if who != tuner or rival is None:
                continue
            ratios.append(row["final_seconds"] / rival["final_seconds"])
            goal = rival["best_seconds"][-1]
            reached = [k for k, best in enumerate(row["best_seconds"]) if best and best <= goal]
            shares.append((reached[0] + 1) / rival["measurements"] if reached else np.inf)
        lines.append(
            f"{tuner:14} {np.exp(np.mean(np.log(ratios))):.3f} x MetaSchedule's latency, "
            f"its best after {np.median(shares):.0%} of its measurements (median)"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
