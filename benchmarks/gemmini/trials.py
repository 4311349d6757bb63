"""Measures how many trials tuners need for Gemmini to reach the optimum of an enumerated space.

    python -m benchmarks.gemmini.trials [--seeds N] [--trials N] [--out FOLDER]
    python -m benchmarks.gemmini.trials --redraw benchmarks/rows/gemmini-trials.parquet

The spaces of `benchmarks.layers.GEMMINI_JUDGED` have 2,688 to 7,680 schedules each. All schedules
are measured once and stored below `--spaces`. The tuners then take their measurements from these
tables, with the same batch size, budget and seeds. A run ends when it is within 1 % of the fastest
schedule, or when the budget is spent. If it ended before 64 trials, its regret at 64 trials is the
regret at its end. The figures, medians and intervals are those of
`benchmarks.tuners.sample_efficiency`. A first table compares the fastest schedule of each layer
with the schedules that are used without a trial.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from benchmarks.layers import GEMMINI_JUDGED
from benchmarks.results import (
    Batch,
    Jobs,
    LayerNames,
    Redraw,
    Seeds,
    Trials,
    Tuners,
    markdown_table,
    split_names,
)
from benchmarks.tuners.sample_efficiency import (
    QUICK_RIVAL,
    RIVAL,
    by_layer,
    relative_table,
    rows_of,
)
from tilewright.cli.views.comparison import show_comparing
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.plan import parse_tuner_configs, plan
from tilewright.flows.comparison import run_comparison
from tilewright.search import LocalRunner
from tilewright.targets.capabilities import Baseline, Estimates, capability
from tilewright.targets.cluster.connection import local_cluster
from tilewright.targets.registry import make_target

TUNERS = (
    "default,estimate,ml2tuner,ml2tuner:estimates=true,ml2tuner-published,"
    f"{RIVAL},{QUICK_RIVAL},random"
)
"""The tuners to compare. `estimate` ranks schedules by a closed formula and learns nothing. A tuner
that needs fewer trials than `estimate` owes this to learning."""


def main(
    tuners: Tuners = TUNERS,
    seeds: Seeds = 10,
    trials: Trials = 256,
    batch: Batch = 8,
    names: LayerNames = "",
    jobs: Jobs = 1,
    out: Path = Path("built/gemmini_trials"),
    spaces: Path = Path("built/spaces"),
    redraw: Redraw = None,
) -> None:
    """Run all tuners and print how many trials they needed."""
    console = Console(width=190)
    if redraw is None:
        layers = {
            name: workload
            for name, workload in GEMMINI_JUDGED.items()
            if not names or name in split_names(names)
        }
        test_bed = EnumeratedTestBed("gemmini", "", tuple(layers.items()), spaces)
        what = plan(
            test_bed, parse_tuner_configs(tuners), range(seeds), trials, batch, enough=batch
        )
        with show_comparing(console) as progress:
            compared = run_comparison(LocalRunner(progress), what, out, local_cluster(jobs))
        share = {name: float(np.mean(test_bed.table(name).status != "valid")) for name in layers}
        redraw = out / "runs.parquet"
        rows = rows_of(compared.results, share).assign(development=False)
        rows.merge(_without_trials(test_bed)).to_parquet(redraw, index=False)
    rows = pd.read_parquet(redraw)
    print(gains_table(rows))
    console.print(by_layer(rows))
    console.print(relative_table(rows))


def _without_trials(test_bed: EnumeratedTestBed) -> pd.DataFrame:
    """Return one row per layer with the size of its space and the cycles of three schedules.

    They are the fastest schedule, the vendor's rule, and the schedule with the best estimate.
    """
    target = make_target(test_bed.target)
    estimates, rules = capability(target, Estimates), capability(target, Baseline)
    assert estimates is not None
    assert rules is not None
    rows = []
    for name, workload in test_bed.workloads:
        table = test_bed.table(name)
        estimated = estimates.estimate(workload, table.space.unravel(table.flat))
        fits = estimated.of_meaning("share").max(axis=1, initial=0.0) <= 1.0
        seconds = np.where(fits, estimated.of_meaning("latency")[:, 0], np.inf)
        rows.append({
            "layer": name,
            "schedules": len(table),
            "fastest": table.optimum.cycles,
            "rule": int(rules.baseline(workload).measured.cycles[0]),
            "estimated best": int(table.cycles[np.argmin(seconds)]),
        })  # fmt: skip
    return pd.DataFrame(rows)


def gains_table(rows: pd.DataFrame) -> str:
    """Return a Markdown table of the schedules that are used without a trial.

    It has the cycles of the fastest schedule of each layer, and how much slower the vendor's rule
    and the schedule with the best estimate are.
    """
    layers = rows.drop_duplicates("layer")
    cells = [
        (
            layer.layer, f"{layer.schedules:,}", f"{layer.fastest:,}",
            *(f"+{layer[name] / layer.fastest - 1:.0%}" for name in ("rule", "estimated best")),
        )
        for _, layer in layers.iterrows()
    ]  # fmt: skip
    return markdown_table(
        ("layer", "schedules", "fastest, cycles", "rule", "estimated best"), "lr", cells
    )


if __name__ == "__main__":
    typer.run(main)
