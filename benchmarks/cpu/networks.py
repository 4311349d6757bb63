"""Compares the latency of whole networks on this CPU with onnxruntime and OpenVINO.

    python -m benchmarks.cpu.networks --json built/networks.json --quick   # minutes: five networks
    python -m benchmarks.cpu.networks --json built/networks.json           # an hour or two
    python -m benchmarks.cpu.networks --json FILE --folder models          # ONNX files of your own
    python -m benchmarks.cpu.networks --redraw benchmarks/rows/cpu-networks-avx2.parquet

Without `--trials`, libraries are built with the rule schedules of the kernels, without tuning. Each
network runs on one thread, where processor time is compared, and on two threads, where wall-clock
time is compared. `tilewright.evaluation.engines.timing` defines how rounds are measured and which
rounds count. An engine that is not installed is left out; `pip install openvino` adds OpenVINO.
With `--precision f32`, the default, OpenVINO computes in float32; with any other value, it chooses
its precision itself.

The file has one row per network and number of threads, with medians over the quiet rounds. The
Parquet file beside it has all rounds; `--redraw` prints the table of docs/evidence/cpu.md from this
file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

from benchmarks.coverage.onnx_models import cases
from benchmarks.cpu import further_models as cpu_further_models
from benchmarks.cpu import models as cpu_models
from benchmarks.intervals import Floats, hierarchical, ratio_of_medians
from benchmarks.results import markdown_table, split_names
from tilewright.core.errors import TilewrightError
from tilewright.evaluation.engines.engine import OWN
from tilewright.evaluation.engines.options import BenchmarkOptions
from tilewright.evaluation.engines.timing import FEWEST
from tilewright.flows.benchmark import Benchmark, benchmark
from tilewright.networks import zoo
from tilewright.search import LocalRunner
from tilewright.targets.cpu.spec import PRECISIONS, this_machine

RIVALS = ("onnxruntime", "openvino")
LIGHT = ("densenet121", "inception_v1", "inception_v2", "shufflenet", "squeezenet", "zfnet512")
"""Names of published networks that the `onnx` package ships."""
QUICK = ("mobilenet_v2", "bert_tiny", "keywords", "squeezenet", "audio")
ROUNDS, QUICK_ROUNDS = 20, 5
SECONDS = 0.2


def main() -> None:
    """Time the networks, print a line per network and the means.

    The file is written after each network.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="file that the run writes")
    parser.add_argument("--redraw", type=Path, help="only print the table of a finished run's rows")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="ONNX files to time, instead of the built-in networks"
    )
    parser.add_argument("--networks", default="", help="names of networks, separated by commas")
    parser.add_argument("--threads", default="", help="numbers of threads, separated by commas")
    parser.add_argument("--trials", type=int, default=0, help="measurements per workload")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--precision", choices=[precision for precision in PRECISIONS if precision], default="f32"
    )
    options = parser.parse_args()
    if options.redraw:
        print(table(pd.read_parquet(options.redraw)))
        return
    if options.json is None:
        parser.error("--json needs a file name")
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    own = this_machine().threads
    threads = [int(item) for item in split_names(options.threads)] or sorted({1, min(2, own)})
    openvino = "openvino" if options.precision == "f32" else "openvino-default"
    rivals = tuple(name for name in ("onnxruntime", openvino) if find_spec(name.partition("-")[0]))
    result: dict[str, list[dict[str, Any]]] = {"networks": [], "failed": []}
    rows: list[dict[str, Any]] = []
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _models(options, Path(folder)):
            for count in threads:
                try:
                    asked = BenchmarkOptions(
                        model=str(path), against=rivals, trials=options.trials, threads=count,
                        rounds=rounds,
                        seconds=SECONDS, precision=options.precision,
                    )  # fmt: skip
                    made = benchmark(LocalRunner(), asked)
                except TilewrightError as error:
                    result["failed"].append({"network": name, "threads": count, "why": str(error)})
                    print(f"{name}, {count} threads: {error}", flush=True)
                    continue
                result["networks"].append(row(name, options.precision, made))
                rows += every_round(name, made)
                print(line(result["networks"][-1]), flush=True)
                options.json.write_text(json.dumps(result, indent=1))
                pd.DataFrame(rows).to_parquet(options.json.with_suffix(".parquet"), index=False)
    options.json.write_text(json.dumps(result, indent=1))
    print(summary(result["networks"]))


def names() -> list[str]:
    """Return the names of all networks: the built-in ones and those of this folder."""
    return [*zoo.names(), *LIGHT, *cpu_models.MODELS, *cpu_further_models.NAMES]


def _models(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    if options.folder is not None:
        yield from ((path.stem, path) for path in sorted(options.folder.glob("*.onnx")))
        return
    chosen = (
        split_names(options.networks) if options.networks else QUICK if options.quick else names()
    )
    light = {case.name.removeprefix("light_"): case.path for case in cases(("light",), folder)}
    for name in chosen:
        path = folder / f"{name}.onnx"
        if name in light and name not in zoo.FAMILIES:
            path = light[name]
        else:
            onnx.save(_build_network(name), path)
        yield name, path
        if path.parent == folder:
            path.unlink()


def _build_network(name: str) -> onnx.ModelProto:
    if name in cpu_further_models.NAMES:
        return cpu_further_models.build_model(name)
    return zoo.build(name) if name in zoo.FAMILIES else cpu_models.build_model(name)


def row(network: str, precision: str, made: Benchmark) -> dict[str, Any]:
    """Return the figures of a network. A figure is None for an engine that is not installed."""
    timed = made.timed
    openvino = "openvino-default" if "openvino-default" in timed.engines else "openvino"

    def milliseconds(engine: str) -> float | None:
        return timed.milliseconds(engine) if engine in timed.engines else None

    def cpu_ratio(rival: str) -> float | None:
        return timed.ratio(OWN, rival, cpu=True).median if rival in timed.engines else None

    def peak(engine: str) -> float | None:
        return timed.engines[engine].peak_bytes / 1e6 if engine in timed.engines else None

    errors = [engine.difference for name, engine in timed.engines.items() if name != OWN]
    return {
        "network": network, "precision": precision, "threads": made.threads,
        "tilewright_ms": milliseconds(OWN),
        "onnxruntime_ms": milliseconds("onnxruntime"),
        "openvino_ms": milliseconds(openvino),
        "cpu_ratio_onnxruntime": cpu_ratio("onnxruntime"),
        "cpu_ratio_openvino": cpu_ratio(openvino),
        "max_error": errors[0] if errors else None,
        "quiet_rounds": int(timed.quiet.sum()),
        "peak_mb": peak(OWN), "onnxruntime_peak_mb": peak("onnxruntime"),
        "openvino_peak_mb": peak(openvino),
    }  # fmt: skip


def every_round(network: str, made: Benchmark) -> list[dict[str, Any]]:
    """Return one row per engine and round, with wall-clock and processor seconds per inference.

    OpenVINO has the same name for every precision.
    """
    timed = made.timed
    return [
        {
            "network": network, "threads": made.threads, "load": timed.load,
            "engine": name.partition("-")[0], "round": place,
            "quiet": bool(timed.quiet[place]), "wall": float(engine.wall[place]),
            "cpu": float(engine.cpu[place]), "peak_mb": engine.peak_bytes / 1e6,
        }
        for name, engine in timed.engines.items()
        for place in range(len(timed.quiet))
    ]  # fmt: skip


def table(rows: pd.DataFrame) -> str:
    """Return a Markdown table per number of threads."""
    counts = sorted(rows["threads"].unique())
    tables = [_table(rows[rows["threads"] == count], count == 1) for count in counts]
    if len(counts) == 1:
        return tables[0]
    titled = zip(counts, tables, strict=True)
    return "\n\n".join(f"Threads: {count}\n\n{made}" for count, made in titled)


def _table(rows: pd.DataFrame, processor_time: bool) -> str:
    """Return a table with one line per network, and geometric means with intervals.

    The figures use quiet rounds, or all rounds if fewer than `FEWEST` are quiet. The intervals
    resample networks and rounds. Ratios compare processor time if `processor_time` is set,
    otherwise wall-clock time.
    """
    head = (
        "network", "onnxruntime, ms", "OpenVINO, ms", "Tilewright, ms",
        "Tilewright / onnxruntime", "Tilewright / OpenVINO", "quiet rounds",
        "peak MB: onnxruntime / OpenVINO / Tilewright",
    )  # fmt: skip
    cells: list[list[str]] = []
    times: dict[str, list[Floats]] = {name: [] for name in (OWN, *RIVALS)}
    for network, group in rows.groupby("network"):
        quiet = group[group["quiet"]]
        counted = quiet if quiet["round"].nunique() >= FEWEST else group
        kind = "cpu" if processor_time else "wall"
        taken = {name: of[kind].to_numpy() for name, of in counted.groupby("engine")}
        wall = counted.groupby("engine")["wall"].median() * 1e3
        ratios = [f"{float(np.median(taken[OWN] / taken[name])):.2f}" for name in RIVALS]
        shown = [f"{wall[name]:.3g}" for name in (*RIVALS, OWN)]
        peaks = counted.groupby("engine")["peak_mb"].max()
        held = " / ".join(f"{peaks[name]:.0f}" for name in (*RIVALS, OWN))
        counted_rounds = str(quiet["round"].nunique())
        cells.append([str(network), *shown, *ratios, counted_rounds, held])
        for name, seconds in taken.items():
            times[str(name)].append(seconds)
    lines = [markdown_table(head, "lr", cells)]
    fewest = min(len(seconds) for seconds in times[OWN])
    whole = {name: np.array([s[:fewest] for s in listed]) for name, listed in times.items()}
    counted_time = "processor" if processor_time else "wall-clock"
    for name in RIVALS:
        result = hierarchical(ratio_of_medians, whole[OWN], whole[name], paired=True)
        lines.append(
            f"\nOver {len(whole[OWN])} networks: {result.text(3)} of {name}'s {counted_time} time."
        )
    return "\n".join(lines)


def line(result: Mapping[str, Any]) -> str:
    """Return a line with the figures of one network."""
    parts = [f"{result['network']}, {result['threads']} threads: {result['tilewright_ms']:.3f} ms"]
    for rival in RIVALS:
        if result[f"{rival}_ms"]:
            ratio = _ratio(result, rival)
            parts.append(f"{rival} {result[f'{rival}_ms']:.3f} ({ratio:.2f} x)")
    error, quiet = result["max_error"], result["quiet_rounds"]
    return ", ".join([*parts, f"{quiet} quiet rounds"]) + (
        f", differs {error:.0e}" if error else ""
    )


def _ratio(result: Mapping[str, Any], rival: str) -> float:
    """Return our time relative to a rival's.

    Processor times are compared on one thread, and wall-clock times on more threads.
    """
    if result["threads"] == 1:
        return float(result[f"cpu_ratio_{rival}"])
    return float(result["tilewright_ms"] / result[f"{rival}_ms"])


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the geometric means per rival and number of threads, and the slower networks."""
    lines = []
    for rival in RIVALS:
        for threads in sorted({row["threads"] for row in rows}):
            ratios = {
                row["network"]: _ratio(row, rival)
                for row in rows
                if row["threads"] == threads and row[f"{rival}_ms"]
            }
            if not ratios:
                continue
            mean = np.exp(np.mean(np.log(list(ratios.values()))))
            slower = {name: ratio for name, ratio in ratios.items() if ratio > 1.05}
            message = ", ".join(f"{name} {ratio:.2f}" for name, ratio in sorted(
                slower.items(), key=lambda item: -item[1]))  # fmt: skip
            lines.append(
                f"{rival}, {threads} threads: {mean:.3f} x over {len(ratios)} networks; "
                f"{len(slower)} above 1.05{': ' if message else ''}{message}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
