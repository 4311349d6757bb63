"""Measures the fraction of a core's peak throughput that rule schedules of layers reach.

    python -m benchmarks.cpu.peak --out built/cpu-peak.parquet --networks resnet18   # a minute
    python -m benchmarks.cpu.peak --out FILE                                         # minutes
    python -m benchmarks.cpu.peak --out FILE --precision bf16    # tiles of AMX
    python -m benchmarks.cpu.peak --redraw benchmarks/rows/cpu-peak.parquet

Each layer runs alone on one thread, with different weights at each call, so that they are not in
the cache, as in a network. The rate counts the multiplications of the layer's definition, so
Winograd's algorithm may exceed 100 %. The peak is the highest rate of the reference kernel in the
whole run; the reference kernel is measured again beside every layer. The peak of AMX tiles is 16
times as high: 512 bfloat16 multiplications per cycle instead of 32 in float32. For slow layers, the
table has possible causes: the fraction of the time that the layer's bytes take at the measured
memory bandwidth, and the fractions of the estimated cycles that are spent on copies and on idle
multipliers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

from benchmarks.cpu import models as cpu_models
from benchmarks.results import markdown_table, row_arguments, split_names
from tilewright import networks
from tilewright.networks import zoo
from tilewright.networks.compiled.layers import activated_layers
from tilewright.targets.cpu.estimates.cost_model import COLUMNS
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

NETWORKS = (
    "resnet18", "resnet50", "vgg11", "inception_v3", "convnext_t", "unet", "mobilenet_v1",
    "vit_tiny", "mixer_s16", "bert_6_128",
)  # fmt: skip
LARGE = 50e6
"""Minimum number of multiply-adds of layers that are measured."""
LOW = 0.7
"""Fraction of the peak below which the table shows possible causes."""
TURNS = 3
OF_TILES = 16
"""Multiplications per cycle of AMX tiles, relative to vector instructions."""


def main() -> None:
    """Measure the layers, write one row per layer, and print the table."""
    parser = row_arguments(__doc__, "built/cpu-peak.parquet")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="names of networks, separated by commas"
    )
    options = parser.parse_args()
    if options.redraw:
        print(table(pd.read_parquet(options.redraw)))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    target = make_target(f"cpu:threads=1,precision={options.precision}")
    assert isinstance(target, CpuTarget)
    rows = list(measure_layers(target, split_names(options.networks)))
    pd.DataFrame(rows).to_parquet(options.out, index=False)
    print(table(pd.DataFrame(rows)))


def measure_layers(target: CpuTarget, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per distinct large layer, with the first network that contains it."""
    seen: set[Workload] = set()
    bandwidth = target.hardware_features()["memory_gbytes_per_second"] * 1e9
    faster = OF_TILES if target.traits.float_type == "bfloat16" else 1
    for name in names:
        for workload in _workloads(name, target):
            if workload in seen or workload.macs < LARGE:
                continue
            seen.add(workload)
            rule = target.rule(workload)
            lowered = target.lower(workload, np.array([rule], np.int32))
            turns = [
                (float(target.measure(lowered).seconds[0]), target.runner.peak())
                for _ in range(TURNS)
            ]
            seconds, peak = min(turns)[0], max(peak for _, peak in turns)
            said = target.estimate(workload, np.array([rule], np.int32)).matrix[0]
            values = target.space(workload).describe(rule)
            columns = {f"estimate_{c.name}": float(v) for c, v in zip(COLUMNS, said, strict=True)}
            yield {
                "network": name, "layer": str(workload), "macs": workload.macs,
                "winograd": values.get("algorithm", 0) > 0, "seconds": seconds,
                "peak_gflops": peak * faster / 1e9, "bandwidth": bandwidth,
                "a_cycle": 2 * target.spec.lanes * faster,
                **columns,
            }  # fmt: skip


def _workloads(name: str, target: CpuTarget) -> list[Workload]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(zoo.build(name) if name in zoo.FAMILIES else cpu_models.build_model(name), path)
        whole = networks.load(str(path)).whole
    layers = activated_layers(whole.flat, target.space, target.traits.float_type)
    return [layer.workload for layer in layers]


def table(rows: pd.DataFrame) -> str:
    """Return a Markdown table of the layers, slowest first, and the number that reach `LOW`."""
    peak = rows.peak_gflops.max()
    rows = rows.assign(share=2e-9 * rows.macs / rows.seconds / peak)
    cells = [
        (
            row.layer, row.network, f"{row.macs / 1e6:.0f}",
            "Winograd" if row.winograd else "direct", f"{1e3 * row.seconds:.2f}",
            f"{row.share:.0%}", *_causes(row),
        )
        for _, row in rows.sort_values("share").iterrows()
    ]  # fmt: skip
    head = (
        "layer", "network", "MMAC", "algorithm", "ms", "share of the peak",
        "memory", "copies and epilogue", "idle multipliers",
    )  # fmt: skip
    high = int((rows.share >= LOW).sum())
    return (
        f"{markdown_table(head, 'llrlrrrrr', cells)}\n\n"
        f"{high} of {len(rows)} layers reach {LOW:.0%} of the peak of {peak:.0f} GFLOP/s."
    )


def _causes(row: Any) -> tuple[str, str, str]:
    """Return estimates of why a layer is slow; empty cells if its share is at least `LOW`.

    They are the time to move its bytes from memory, relative to the measured time, and two
    fractions of the estimated cycles: copies with the epilogue, and idle multipliers.
    """
    if row.share >= LOW:
        return "", "", ""
    clock = row.estimate_multiply_cycles + row.estimate_other_cycles
    ideal = row.macs / row.get("a_cycle", 16)  # rows of before are of AVX2
    memory = row.estimate_far_bytes / row.bandwidth / row.seconds
    return (
        f"{memory:.0%} ({row.estimate_far_bytes / 1e6:.1f} MB)",
        f"{row.estimate_other_cycles / clock:.0%}",
        f"{1 - ideal / row.estimate_multiply_cycles:.0%}",
    )


if __name__ == "__main__":
    main()
