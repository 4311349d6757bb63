"""Measures how much faster tuning makes whole networks on this CPU than the rule schedules.

    python -m benchmarks.cpu.tuning --out built/cpu-tuning.parquet --networks keywords  # minutes
    python -m benchmarks.cpu.tuning --out FILE                                          # an hour
    python -m benchmarks.cpu.tuning --redraw benchmarks/rows/cpu-tuning.parquet

Each network is built once with the rule schedules, and once per tuner and number of trials per
workload. All libraries of a network run in turns in one process on one thread, and their processor
time is compared. A run with more trials continues the run with fewer trials.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

import tilewright
from benchmarks.cpu import models as cpu_models
from benchmarks.intervals import hierarchical, ratio_of_medians
from benchmarks.results import markdown_table, row_arguments, split_names
from tilewright.flows.build import build_artifact
from tilewright.flows.tuning import tune_network
from tilewright.networks import zoo
from tilewright.search import LocalRunner
from tilewright.tuning.build_options import BuildOptions
from tilewright.tuning.options import TuningOptions

NETWORKS = (
    "keywords", "audio", "digits_cnn", "dlrm_64", "bert_tiny", "lstm_2", "vit_tiny", "mixer_s16",
    "alexnet", "resnet18", "bert_6_128",
)  # fmt: skip
RULES = "rules"
TARGET = "cpu:threads=1"
ROUNDS, SECONDS = 12, 0.15


def main() -> None:
    """Tune, build and time the networks, and print the table.

    The file has one row per library and round.
    """
    parser = row_arguments(__doc__, "built/cpu-tuning.parquet")
    parser.add_argument(
        "--networks", default=",".join(NETWORKS), help="names of networks, separated by commas"
    )
    parser.add_argument(
        "--trials", default="16,32", help="trials per workload, separated by commas"
    )
    parser.add_argument("--tuners", default="default,random", help="tuners, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.redraw:
        print(table(pd.read_parquet(options.redraw)))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    trials = sorted(map(int, options.trials.split(",")))
    rows: list[dict[str, Any]] = []
    for name in split_names(options.networks):
        rows += measure_network(name, split_names(options.tuners), trials, options.seed)
        frame = pd.DataFrame(rows)
        frame.to_parquet(options.out, index=False)
        print(table(frame[frame.network == name]), flush=True)
    print(table(pd.DataFrame(rows)))


def measure_network(
    name: str, tuners: list[str], trials: list[int], seed: int
) -> list[dict[str, Any]]:
    """Return one row per library of a network and round."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = folder / f"{name}.onnx"
        onnx.save(zoo.build(name) if name in zoo.FAMILIES else cpu_models.build_model(name), model)
        built = {RULES: (_build_library(model, folder / RULES), 0.0, 0, 0)}
        for tuner in tuners:
            seconds = 0.0
            for count in trials:
                begin, tuned = time.perf_counter(), folder / f"tuned-{tuner}"
                done = tune_network(
                    LocalRunner(),
                    TuningOptions(
                        model=str(model), target=TARGET, tuner=tuner, trials=count, seed=seed,
                        out=str(tuned),
                    ),
                )  # fmt: skip
                seconds += time.perf_counter() - begin
                out = _build_library(model, folder / f"{tuner}-{count}", tuned)
                taken = sum(workload.trials for workload in done.workloads)
                invalid = sum(workload.invalid_trials for workload in done.workloads)
                built[f"{tuner} {count}"] = out, seconds, taken, invalid
        return time_in_turns(name, built)


def _build_library(model: Path, out: Path, schedules: Path | None = None) -> Path:
    build_artifact(
        LocalRunner(),
        BuildOptions(model=str(model), out=out, target=TARGET, schedules=schedules, trials=0),
    )
    return out


def time_in_turns(
    name: str, built: Mapping[str, tuple[Path, float, int, int]]
) -> list[dict[str, Any]]:
    """Run the libraries in turns, and return processor seconds per inference of each round."""
    calls = {setting: _inference(path) for setting, (path, *_) in built.items()}
    rows = []
    for round_ in range(ROUNDS):
        first = round_ % len(calls)
        order = [*calls][first:] + [*calls][:first]
        for setting in order:
            call = calls[setting]
            taken: list[float] = []
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end or len(taken) < 3:
                begin = time.thread_time()
                call()
                taken.append(time.thread_time() - begin)
            _, seconds, trials, invalid = built[setting]
            rows.append({
                "network": name, "setting": setting, "round": round_,
                "cpu": float(np.median(taken)), "tuned_seconds": seconds, "trials": trials,
                "invalid": invalid,
            })  # fmt: skip
    return rows


def _inference(path: Path) -> Callable[[], object]:
    session = tilewright.load(path, threads=1, allow_code=True)
    rng, inputs = np.random.default_rng(0), {}
    for input_ in session.get_inputs():
        inputs[input_.name] = session.empty(input_.name)
        real = inputs[input_.name].dtype.kind == "f"
        shape = inputs[input_.name].shape
        inputs[input_.name][...] = rng.standard_normal(shape) if real else 1
    return partial(session.run, None, inputs)


def table(rows: pd.DataFrame) -> str:
    """Return a Markdown table with one line per network, and geometric means with intervals.

    A line has the milliseconds of each setting, and the fraction that it saves compared with the
    rule schedules. The intervals resample networks and rounds.
    """
    settings = list(rows.setting.unique())
    head = ("network", *settings, "seconds of tuning", "invalid trials")
    cells: list[list[str]] = []
    times: dict[str, list[Any]] = {setting: [] for setting in settings}
    for network, group in rows.groupby("network", sort=False):
        by = {setting: group[group.setting == setting] for setting in settings}
        of = {setting: timed.cpu.to_numpy() for setting, timed in by.items()}
        base = np.median(of[RULES])
        shown = [
            f"{1e3 * np.median(cpu):.3g}"
            + (f" ({np.median(cpu) / base:.2f})" if setting != RULES else "")
            for setting, cpu in of.items()
        ]
        seconds = " / ".join(f"{by[s].tuned_seconds.iloc[0]:.0f}" for s in settings[1:])
        invalid = " / ".join(
            f"{by[s].invalid.iloc[0]} of {by[s].trials.iloc[0]}" for s in settings[1:]
        )
        cells.append([str(network), *shown, seconds, invalid])
        for setting, cpu in of.items():
            times[setting].append(cpu)
    lines = [markdown_table(head, "lr", cells)]
    whole = {setting: np.array(listed) for setting, listed in times.items()}
    for setting in settings[1:]:
        result = hierarchical(ratio_of_medians, whole[setting], whole[RULES], paired=True)
        lines.append(f"\n{setting}: {result.text(3)} of the rules' time.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
