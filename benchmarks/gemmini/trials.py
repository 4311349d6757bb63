"""Measures how many trials tuners need for Gemmini, against the fastest schedule of a whole space.

    python -m benchmarks.gemmini.trials [--seeds N] [--trials N] [--out FOLDER]
    python -m benchmarks.gemmini.trials --redraw benchmarks/rows/gemmini-trials.parquet

Each space of 2,688 to 7,680 schedules is measured once, into --spaces. Tuners are then replayed on
these tables, with the same batches, budget and seeds. A run ends within 1 % of the fastest
schedule, or with the budget; if it ended sooner, its regret at 64 trials is that at its end.
Figures, medians and intervals are those of `benchmarks.tuners.sample_efficiency`. None of these
layers had a part in any default.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import typer
from rich.console import Console

from benchmarks.results import Batch, Jobs, Redraw, Seeds, Trials, Tuners
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
from tilewright.targets.cluster.connection import local_cluster
from tilewright.targets.workload import parse_workload

EPILOGUE = "bias, >> even 8, min 127, max 0"
LAYERS = {
    "attention values": "dense:n=128,c=128,o=64",
    "1×1 96→24 @14": "conv2d:n=1,c=96,h=14,w=14,o=24,k=1,s=1,p=0",
    "3×3 32→64 @14": "conv2d:n=1,c=32,h=14,w=14,o=64,k=3,s=1,p=1",
}
TUNERS = f"default,default-blind,estimate,ml2tuner,ml2tuner-published,{RIVAL},{QUICK_RIVAL},random"
"""`estimate` orders schedules by a closed form and learns nothing: what it needs no fewer of, a
tuner owes to learning."""


def main(
    tuners: Tuners = TUNERS,
    seeds: Seeds = 20,
    trials: Trials = 256,
    batch: Batch = 8,
    jobs: Jobs = 1,
    out: Path = Path("built/gemmini_trials"),
    spaces: Path = Path("built/spaces"),
    redraw: Redraw = None,
) -> None:
    """Run all tuners and print what they needed."""
    console = Console(width=190)
    if redraw is None:
        named = tuple((name, parse_workload(text, EPILOGUE)) for name, text in LAYERS.items())
        test_bed = EnumeratedTestBed("gemmini", "", named, spaces)
        what = plan(
            test_bed, parse_tuner_configs(tuners), range(seeds), trials, batch, enough=batch
        )
        with show_comparing(console) as progress:
            compared = run_comparison(LocalRunner(progress), what, out, local_cluster(jobs))
        share = {name: float(np.mean(test_bed.table(name).status != "valid")) for name in LAYERS}
        redraw = out / "runs.parquet"
        rows_of(compared.results, share).assign(development=False).to_parquet(redraw, index=False)
    rows = pd.read_parquet(redraw)
    console.print(by_layer(rows))
    console.print(relative_table(rows))


if __name__ == "__main__":
    typer.run(main)
