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

from benchmarks.layers import GEMMINI_JUDGED
from benchmarks.results import Batch, Jobs, LayerNames, Redraw, Seeds, Trials, Tuners, split_names
from benchmarks.tuners.sample_efficiency import (
    QUICK_RIVAL,
    RIVAL,
    by_layer,
    relative_table,
    rows_of,
)
from tilewright.cli.views.comparison import comparing
from tilewright.evaluation.compare.benchmark_suite import EnumeratedTestBed
from tilewright.evaluation.compare.plan import parse_tuner_configs, plan
from tilewright.flows.comparison import run_comparison
from tilewright.search import LocalRunner
from tilewright.targets.cluster.connection import local_cluster

TUNERS = f"default,default-blind,estimate,ml2tuner,ml2tuner-published,{RIVAL},{QUICK_RIVAL},random"
"""`estimate` orders schedules by a closed form and learns nothing: what it needs no fewer of, a
tuner owes to learning."""


def main(
    tuners: Tuners = TUNERS,
    seeds: Seeds = 20,
    trials: Trials = 256,
    batch: Batch = 8,
    names: LayerNames = "",
    jobs: Jobs = 1,
    out: Path = Path("built/gemmini_trials"),
    spaces: Path = Path("built/spaces"),
    redraw: Redraw = None,
) -> None:
    """Run all tuners and print what they needed."""
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
        with comparing(console) as progress:
            compared = run_comparison(LocalRunner(progress), what, out, local_cluster(jobs))
        share = {name: float(np.mean(test_bed.table(name).status != "valid")) for name in layers}
        redraw = out / "runs.parquet"
        rows_of(compared.results, share).assign(development=False).to_parquet(redraw, index=False)
    rows = pd.read_parquet(redraw)
    console.print(by_layer(rows))
    console.print(relative_table(rows))


if __name__ == "__main__":
    typer.run(main)
