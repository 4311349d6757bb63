"""Compares tuned Gemmini schedules with the vendor's tiling rule, with three memory settings.

    python -m benchmarks.gemmini.vendor_rule [--trials N] [--kind convolutions] [--out FILE]
    python -m benchmarks.gemmini.vendor_rule --redraw benchmarks/rows/gemmini-products.json

For each layer, the table has the cycles of the vendor's rule, of the best of N trials of the
default tuner, and of the bound, and the form of the best schedule. The rule runs on three layouts
of tensors: rows that are aligned to memory requests, as trials use them, and rows that end at a
whole block or at the last channel, as programs that use the vendor's library have them. The fewest
cycles of the rule over these layouts are the baseline. The command prints a table, and the
geometric mean of the saved cycles per memory setting. If the tuner finds no faster schedule, the
rule's schedule counts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.layers import JUDGED
from benchmarks.results import markdown_table, row_arguments
from tilewright.core.files import Json, as_object
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets.gemmini.lowering.batch import program_of, stream_from
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, aligned_row, round_up
from tilewright.targets.gemmini.lowering.schedule_space import LOOP
from tilewright.targets.gemmini.spec import GemminiSpec
from tilewright.targets.gemmini.target import GemminiTarget
from tilewright.targets.gemmini.timing import time_stream
from tilewright.targets.workload import parse_workload

EPILOGUE = "bias, >> even 8, min 127, max 0"
SETTINGS = ((20, 1), (60, 1), (100, 2))
"""Memory latency in cycles, and cycles per beat, of each memory setting."""
PRODUCTS = {
    "resnet50 64→256 @56": "conv2d:n=1,c=64,h=56,w=56,o=256,k=1,s=1,p=0",
    "resnet50 256→64 @56": "conv2d:n=1,c=256,h=56,w=56,o=64,k=1,s=1,p=0",
    "resnet50 1024→256 @14": "conv2d:n=1,c=1024,h=14,w=14,o=256,k=1,s=1,p=0",
    "resnet50 512→2048 @7": "conv2d:n=1,c=512,h=7,w=7,o=2048,k=1,s=1,p=0",
    "resnet18 fc": "dense:n=1,c=512,o=1000",
    "mobilenet_v2 24→144 @56": "conv2d:n=1,c=24,h=56,w=56,o=144,k=1,s=1,p=0",
    "mobilenet_v2 384→64 @14": "conv2d:n=1,c=384,h=14,w=14,o=64,k=1,s=1,p=0",
    "mobilenet_v2 96→576 @14": str(JUDGED["mobilenet_v2"]),
    "mobilenet_v2 160→960 @7": "conv2d:n=1,c=160,h=7,w=7,o=960,k=1,s=1,p=0",
    "bert_tiny projection": "dense:n=128,c=128,o=128",
    "bert_tiny feed-forward 1": "dense:n=128,c=128,o=512",
    "bert_tiny feed-forward 2": "dense:n=128,c=512,o=128",
    "attention scores": "dense:n=128,c=64,o=128",
    "attention values": "dense:n=128,c=128,o=64",
}
CONVOLUTIONS = {
    "resnet18 3×3 64→64 @28": "conv2d:n=1,c=64,h=28,w=28,o=64,k=3,s=1,p=1",
    "resnet18 3×3/2 128→256 @28": "conv2d:n=1,c=128,h=28,w=28,o=256,k=3,s=2,p=1",
    "resnet18 3×3 512→512 @7": "conv2d:n=1,c=512,h=7,w=7,o=512,k=3,s=1,p=1",
    "resnet18 1×1/2 256→512 @14": "conv2d:n=1,c=256,h=14,w=14,o=512,k=1,s=2,p=0",
    "mobilenet_v2 3×3 dw 96 @14": "conv2d:n=1,c=96,h=14,w=14,o=96,k=3,s=1,p=1,g=96",
}
ROWS: dict[str, Callable[[int], int]] = {
    "aligned": aligned_row, "blocks": round_up, "packed": lambda channels: channels,
}  # fmt: skip
"""Layouts: functions from the number of channels of a row to the bytes from one row to the next."""
Row = dict[str, Json]
KINDS = {"products": PRODUCTS, "convolutions": CONVOLUTIONS}


def measure(name: str, text: str, setting: tuple[int, int], trials: int) -> Row:
    """Return the row of a layer with a memory setting."""
    latency, beat = setting
    spec = GemminiSpec.from_mapping(
        {"name": f"L{latency}", "memory_latency_cycles": latency, "cycles_per_beat": beat}
    )
    target, workload = GemminiTarget(spec), parse_workload(text, EPILOGUE)
    begun, (name_of_rule, schedule) = time.perf_counter(), target.lowering(workload).vendor
    rules = {
        layout: time_stream(
            stream_from(
                program_of(BlockGeometry.for_workload(workload, row), spec.machine, schedule)
            ),
            spec,
        ).total
        for layout, row in ROWS.items()
    }
    assert rules["aligned"] == target.baseline(workload).latency.cycles
    rounds = list(tune(target, workload, make_explorer("default"), trials=trials, batch=16))
    last = rounds[-1]
    assert last.best is not None, "no schedule of the trials runs"
    assert last.best_config is not None
    return {
        "layer": name, "workload": text, "latency": latency, "cycles_per_beat": beat,
        "vendor": min(rules.values()),
        **{f"vendor_{layout}": cycles for layout, cycles in rules.items()},
        "trials_best": last.best.cycles, "tuned": min(rules["aligned"], last.best.cycles),
        "bound": target.bound(workload).cycles, "rule": name_of_rule,
        "knobs": target.space(workload).describe(last.best_config.tolist()),
        "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def saved_fraction(rows: Sequence[Row], rule: str = "vendor") -> float:
    """Return the fraction of cycles saved, by the geometric mean of tuned over rule cycles."""
    ratios = [math.log(int(str(row["tuned"])) / int(str(row[rule]))) for row in rows]
    return 1 - math.exp(sum(ratios) / len(ratios))


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of vendor's and tuned cycles per layer and setting, with the mean."""
    layers = list(dict.fromkeys(str(row["layer"]) for row in rows))
    titles = [f"latency {latency}, {beat} per beat" for latency, beat in SETTINGS]
    lines: list[list[str]] = []
    by = {(row["layer"], row["latency"]): row for row in rows}
    for layer in layers:
        cells = []
        for latency, _ in SETTINGS:
            row = by.get((layer, latency))
            cells.append("" if row is None else _cell(row))
        lines.append([layer, *cells])
    for title, rule in (
        ("geometric mean saved", "vendor"),
        ("of the rule on aligned rows", "vendor_aligned"),
        ("of the rule on packed rows", "vendor_packed"),
    ):
        means = [
            f"{saved_fraction(matching, rule):.1%}"
            if (matching := [r for r in rows if r["latency"] == at])
            else ""
            for at, _ in SETTINGS
        ]
        lines.append([title, *means])
    return markdown_table(["layer", *titles], "lr", lines)


def _cell(row: Row) -> str:
    form = "loop" if as_object(row["knobs"])["form"] == LOOP else "nest"
    kept = form if row["tuned"] == row["trials_best"] else "rule"
    return f"{row['vendor']:,} → {row['tuned']:,} ({saved_fraction([row]):.0%}, {kept})"


def tuning_arguments(doc: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser with the options of benchmarks that tune layers.

    `doc` is the docstring of the benchmark's module.
    """
    parser = row_arguments(doc, out)
    parser.add_argument("--trials", type=int, default=64)
    return parser


def fill(
    table: Callable[[Sequence[Row]], str],
    measure: Callable[[str, str, tuple[int, int], int], Row],
    layers: Mapping[str, str],
    options: argparse.Namespace,
) -> None:
    """Measure each layer with each memory setting, write the rows and print the table."""
    rows: list[Row] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.redraw is not None:
        rows, layers = json.loads(options.redraw.read_text()), {}
    for name, text in layers.items():
        for setting in SETTINGS:
            rows.append(measure(name, text, setting, options.trials))
            print(json.dumps(rows[-1]), flush=True)
            options.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))


def main() -> None:
    """Measure the layers, print the table and write the rows."""
    parser = tuning_arguments(__doc__, "built/gemmini-products.json")
    parser.add_argument("--kind", choices=[*KINDS], default="products")
    options = parser.parse_args()
    fill(table, measure, KINDS[options.kind], options)


if __name__ == "__main__":
    main()
