"""Measures the throughput that pipelining successive images gives, beside the latency.

    python -m benchmarks.pipeline [--networks …] [--targets …] [--artifacts DIR] [--json FILE]
    python -m benchmarks.pipeline --layers  # a bound on overlap between layers

Networks are built with the schedules that have the best estimates (`--artifacts` keeps the folders
and uses existing ones). The time of the accelerator is simulated exactly. The time of the CPU is an
estimate for one Cortex-A9 core (`networks.offloading.cpu_costs`). Each row therefore also has the
gain for a CPU that is four times as fast, and for a CPU that is half as fast.

With `--layers`, nothing is built. Instead, the command bounds what overlapping the layers of a
stream could save. Today, a barrier separates two layers, and only the first weights of the next
layer can be loaded earlier (`benchmarks.fusion.stream_bound`). Without any barrier, the compute
unit and the two memory channels would still have to do the same work. So with any scratchpads, a
stream takes at least the largest of three sums over its layers: of compute, of reads and of writes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.fusion.stream_bound import needs, stream_bound
from benchmarks.fusion.tuned_pairs import TARGETS, make_problem
from tilewright.core.files import Json, write_atomically
from tilewright.networks.artifact import Artifact, load
from tilewright.networks.artifact.pipeline import (
    PipelinePlan,
    PipelineStage,
    choose_steady_state,
    steady_states,
)
from tilewright.targets.vta.target import VtaTarget
from tilewright.targets.vta.workload_bound import bounds

NETWORKS = ("vit_tiny", "inception_v3", "resnet18", "mobilenet_v2")
OTHER_CPUS = (0.25, 2.0)
"""Factors of the CPU's time for which the gain is also computed."""
RESOURCES = ("compute", "read", "write")


def main() -> None:
    """Print one row per network and target."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--artifacts", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", action="store_true")
    given = parser.parse_args()
    pairs = [(n, t) for n in given.networks.split(",") for t in given.targets.split(",")]
    if given.layers:
        for network, target in pairs:
            print(layers_row(network, target), flush=True)
        return
    heads = (
        "CPU ms", "packing ms", "accel. ms", "img/s", "overlapped", "bound", "gain", "busy CPU",
        "busy accel.", "in flight", "latency", "MiB more", "CPU/4", "CPU·2",
    )  # fmt: skip
    print(f"{'network':14}{'target':10}" + "".join(f"{head:>12}" for head in heads))
    rows: list[Json] = []
    with tempfile.TemporaryDirectory() as temporary:
        for network, target in pairs:
            folder = (given.artifacts or Path(temporary)) / f"{network}-{target}"
            planned = make_plan(network, target, folder)
            print(table_row(network, target, planned), flush=True)
            rows.append({"network": network, "target": target, **plan_figures(planned)})
    if given.json is not None:
        write_atomically(given.json, json.dumps(rows, indent=1).encode())


def make_plan(network: str, target: str, folder: Path) -> PipelinePlan:
    """Return the pipeline plan of successive images, after building the network if necessary."""
    if not (folder / "manifest.json").exists():
        from tilewright.flows.build import build_artifact
        from tilewright.search import LocalRunner
        from tilewright.tuning.build_options import BuildOptions

        build_artifact(
            LocalRunner(), BuildOptions(model=network, out=folder, target=target, trials=0)
        )
    artifact = load(folder, allow_code=True)
    assert isinstance(artifact, Artifact)
    image = {value.name: np.zeros(value.shape, value.dtype) for value in artifact.inputs}
    return artifact.plan_images(image)


def plan_figures(planned: PipelinePlan) -> dict[str, Json]:
    """Return figures of a plan: milliseconds, images per second, fractions and bytes, by name."""
    steady = planned.taken.steady
    figures: dict[str, Json] = {
        "cpu_milliseconds": 1e3 * planned.busy("cpu"),
        "packing_milliseconds": 1e3 * planned.cpu.packing,
        "accelerator_milliseconds": 1e3 * planned.busy("accelerator"),
        "images_per_second": 1 / planned.latency,
        "overlapped_images_per_second": 1 / planned.interval,
        "bound_images_per_second": 1 / planned.bound,
        "in_flight": steady.in_flight,
        "overlapped_latency_milliseconds": 1e3 * steady.latency,
        "more_dram_bytes": planned.more_bytes,
    }
    return figures | {f"gain_cpu_times_{times:g}": gain(planned, times) for times in OTHER_CPUS}


def gain(planned: PipelinePlan, times: float) -> float:
    """Return the relative increase of images/s by pipelining, if the CPU takes `times` as long."""
    stages = [_with_cpu(stage, times) for stage in planned.stages]
    alone = sum(stage.nanoseconds for stage in stages) / 1e9
    return alone / choose_steady_state(steady_states(stages)).interval - 1


def _with_cpu(stage: PipelineStage, times: float) -> PipelineStage:
    if stage.resource != "cpu":
        return stage
    return replace(stage, nanoseconds=max(1, round(times * stage.nanoseconds)))


def table_row(network: str, target: str, planned: PipelinePlan) -> str:
    """Return a row of the table."""
    cpu, accelerator = planned.busy("cpu"), planned.busy("accelerator")
    steady, interval = planned.taken.steady, planned.interval
    cells = [
        f"{1e3 * cpu:.2f}", f"{1e3 * planned.cpu.packing:.2f}", f"{1e3 * accelerator:.2f}",
        f"{1 / planned.latency:.2f}", f"{1 / interval:.2f}", f"{1 / planned.bound:.2f}",
        f"{planned.latency / interval - 1:+.1%}", f"{cpu / interval:.1%}",
        f"{accelerator / interval:.1%}", str(steady.in_flight), f"{1e3 * steady.latency:.1f}",
        f"{planned.more_bytes / (1 << 20):.2f}",
        *(f"{gain(planned, times):+.1%}" for times in OTHER_CPUS),
    ]  # fmt: skip
    return f"{network:14}{target:10}" + "".join(f"{cell:>12}" for cell in cells)


def layers_row(network: str, target: str) -> str:
    """Return the bounds of streams with and without barriers, with everything fused."""
    problem = make_problem(network, target)
    assert isinstance(problem.target, VtaTarget), "only a VTA's streams are known"
    spec, labels = problem.target.spec, problem.all
    workloads = problem.workloads(labels)
    begin, barred, free = 0, 0, 0
    largest: list[str] = []
    for run in problem.labelled(labels).segments():
        own = workloads[begin : begin + len(run)]
        begin += len(run)
        barred += stream_bound([needs(workload, spec) for workload in own])
        sums = sum_cycles([bounds(workload, spec) for workload in own])
        free += max(sums.values())
        largest.append(max(sums, key=lambda resource: sums[resource]))
    limits = " and ".join(sorted(set(largest)))
    return (
        f"{network} on {target}: at least {barred:,} cycles with barriers, {free:,} without "
        f"(−{1 - free / barred:.2%}); {limits} limits the latter"
    )


def sum_cycles(cycle_counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the cycles of each resource, summed over layers."""
    return {name: sum(layer[name] for layer in cycle_counts) for name in RESOURCES}


if __name__ == "__main__":
    main()
