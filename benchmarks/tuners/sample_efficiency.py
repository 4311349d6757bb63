"""Measures how many trials each tuner needs to come within 1 % of the enumerated optimum.

    python -m benchmarks.tuners.sample_efficiency tables     # the real stack's tables: minutes
    python -m benchmarks.tuners.sample_efficiency unchecked  # ML²Tuner's space on evta-zcu102
    python -m benchmarks.tuners.sample_efficiency extended   # the default space on vta-pynq
    python -m benchmarks.tuners.sample_efficiency tables --redraw benchmarks/rows/FILE

The command prints three tables: the trials per layer beside the optimum; figures relative to
AutoTVM; and the cost of reaching the goal if a compile costs nothing, a tenth of a measurement, or
as much as a measurement.

The layers are the held-out ones of `benchmarks.layers`, unless others are named; the four layers of
`tables` are development layers. Unchecked and extended spaces are enumerated first, which takes a
quarter of an hour of CPU time, and stored below `--spaces`. All tuners get the same batch size,
budget and seeds.

A run ends after 64 trials or when it is within 1 % of the optimum, whichever is later, or when the
budget is spent. With `--enough 1`, it ends as soon as it is within 1 %, and the figures after 64
trials are not known. Trials, compiles and seconds are counted up to the end of the batch that
reached the goal. Real seconds are the recorded seconds of the real stack plus the seconds of the
tuner. A config that is compiled in one round and measured in a later round is lowered twice, and
counts as two compiles.

The figure of a layer is the median over seeds. Figures relative to AutoTVM (as published, and with
plans of 16 trials) are geometric means over layers of ratios of medians. Their 95 % intervals
resample layers and seeds (`benchmarks.intervals`). Finished runs are stored in `--out` and not
repeated. `runs.parquet` there has one row per run, and `--redraw` prints the tables from this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.intervals import Floats, Interval, hierarchical, ratio_of_means, ratio_of_medians
from benchmarks.layers import JUDGED
from benchmarks.results import Batch, Jobs, LayerNames, Redraw, Seeds, Trials, Tuners, split_names
from benchmarks.tuners.enumerated_spaces import TARGETS, layers_named
from tilewright.cli.views.comparison import leaderboard_table, show_comparing
from tilewright.evaluation.compare.benchmark_suite import (
    EnumeratedTestBed,
    TestBed,
    recorded_test_bed,
)
from tilewright.evaluation.compare.leaderboard import Results
from tilewright.evaluation.compare.plan import GOAL, parse_tuner_configs, plan
from tilewright.flows.comparison import run_comparison
from tilewright.reports.comparison import write_report
from tilewright.search import LocalRunner
from tilewright.targets.cluster.connection import local_cluster

TABLES = Path(__file__).parents[2] / "tests" / "data" / "tvm-vta"
RIVAL, QUICK_RIVAL = "autotvm", "autotvm:plan=16"
"""AutoTVM as published, which plans 64 trials before it uses its model, and AutoTVM with shorter
plans. An advantage over the second one is not due to the length of a plan."""
TUNERS = (
    f"default,default-blind,estimate,ml2tuner,ml2tuner-published,p,p+v,p+a,{RIVAL},{QUICK_RIVAL},"
    "autotvm:features=itervar,ga,baco,optuna,tps,random,grid"
)
LOOK = 64  # trials after which regret is read
MANY_INVALID = 0.5  # share of a space from which invalid trials are compared
COMPILE_PRICES = (0.0, 0.1, 1.0)  # of a compile, as a multiple of a measurement
Where = Literal["tables", "unchecked", "extended"]


def main(
    where: Where,
    tuners: Tuners = TUNERS,
    seeds: Seeds = 20,
    first_seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    trials: Trials = 1024,
    batch: Batch = 8,
    layers: LayerNames = "",
    live: Annotated[
        bool,
        typer.Option(
            help="Compile and simulate instead of replaying, so that the times are realistic."
        ),
    ] = False,
    jobs: Jobs = 2,
    out: Path = Path("built/sample_efficiency"),
    spaces: Path = Path("built/spaces"),
    redraw: Redraw = None,
    beside: Annotated[
        str, typer.Option(help="Another tuner to compare the number of trials with.")
    ] = "",
    enough: Annotated[int, typer.Option(help="Trials after which a run may end.")] = LOOK,
) -> None:
    """Run all tuners and print how many trials they needed."""
    console = Console(width=190)
    if redraw is None:
        folder = out / (where + "-live" * live)
        test_bed = _test_bed(where, spaces, split_names(layers), live)
        drawn = range(first_seed, first_seed + seeds)
        what = plan(test_bed, parse_tuner_configs(tuners), drawn, trials, batch, enough)
        with show_comparing(console) as progress:
            compared = run_comparison(LocalRunner(progress), what, folder, local_cluster(jobs))
        write_report(compared, folder)
        console.print(leaderboard_table(compared.leaderboards, console.width))
        names = [name for name, _ in test_bed.workloads]
        share = {name: _invalid_share(test_bed, name) for name in names}
        rows = rows_of(compared.results, share)
        if enough < LOOK:  # runs that reached the goal may have ended before
            rows[[f"regret at {LOOK}", f"invalid at {LOOK}"]] = np.nan
        rows["optimum"] = rows["layer"].map({name: _optimum(test_bed, name) for name in names})
        redraw = folder / "runs.parquet"
        rows.to_parquet(redraw, index=False)
    rows = pd.read_parquet(redraw)
    console.print(by_layer(rows))
    console.print(relative_table(rows, beside))
    console.print(cost_table(rows))


def _test_bed(where: Where, spaces: Path, wanted: list[str], live: bool) -> TestBed:
    if where == "tables":
        files = sorted(TABLES.glob("*.csv.gz"), key=lambda path: int(path.name[1:].split(".")[0]))
        return recorded_test_bed([f for f in files if not wanted or f.name.split(".")[0] in wanted])
    named = tuple(layers_named(",".join(wanted)).items())
    return EnumeratedTestBed(TARGETS[where], where, named, spaces, live)


def _invalid_share(test_bed: TestBed, name: str) -> float:
    return float(np.mean(test_bed.table(name).status != "valid"))


def _optimum(test_bed: TestBed, name: str) -> int:
    """Return the cycles of the best valid schedule of a layer."""
    table = test_bed.table(name)
    return int(table.cycles[table.status == "valid"].min())


def rows_of(results: Results, share: dict[str, float]) -> pd.DataFrame:
    """Return one row per run.

    Counts and seconds are counted until the goal. Those with `LOOK` in their name are counted until
    then.
    """
    look = min(LOOK, results.trials) - 1
    figures = {
        "reached": results.reached,
        "trials": results.trials_to_goal,
        "place": results.first_within,
        "compiles": results.at_goal(results.compiled),
        "invalid": results.at_goal(results.invalid),
        "seconds": results.at_goal(results.elapsed),
        "real seconds": results.stack_seconds_to_goal,
        f"regret at {LOOK}": results.regret[..., look],
        f"invalid at {LOOK}": results.invalid[..., look],
    }
    axes = (results.tuners, results.workloads, results.seeds)
    index = pd.MultiIndex.from_product(axes, names=("tuner", "layer", "seed"))
    rows = pd.DataFrame(
        {name: figure.ravel() for name, figure in figures.items()}, index
    ).reset_index()
    rows["invalid in space"] = rows["layer"].map(share)
    rows["development"] = ~rows["layer"].isin(list(JUDGED))
    return rows


def _grid(rows: pd.DataFrame, tuner: str, figure: str) -> Floats:
    """Return a figure of a tuner's runs, shape (layers, seeds), for the seeds that have it."""
    mine = rows[(rows["tuner"] == tuner) & rows[figure].notna()]
    table = mine.pivot(index="layer", columns="seed", values=figure)
    return table.reindex(rows["layer"].unique()).to_numpy(np.float64)


def by_layer(rows: pd.DataFrame) -> Table:
    """Return a table of trials to the goal and regret per layer: median (quartiles) over seeds."""
    table = Table(title=f"trials to {GOAL:.0%}: median (quartiles), regret at {LOOK}")
    table.add_column("layer")
    table.add_column("invalid", justify="right")
    table.add_column("optimum, cycles", justify="right")
    tuners = rows["tuner"].unique()
    for name in tuners:
        table.add_column(name, justify="right")
    for layer, group in rows.groupby("layer", sort=False):
        cells = []
        for name in tuners:
            runs = group[group["tuner"] == name]
            low, middle, high = runs["trials"].quantile([0.25, 0.5, 0.75])
            mark = "" if runs["reached"].all() else "≥"
            regret = runs[f"regret at {LOOK}"].median()
            cells.append(f"{mark}{middle:.0f} ({low:.0f}-{high:.0f})\n{regret:.2%}")
        kind = " (development)" if group["development"].iloc[0] else ""
        best = f"{group['optimum'].iloc[0]:,.0f}" if "optimum" in group else "-"
        invalid = f"{group['invalid in space'].iloc[0]:.0%}"
        table.add_row(f"{layer}{kind}", invalid, best, *cells)
    return table


def relative_figures(rows: pd.DataFrame, beside: str = "") -> dict[str, dict[str, Interval | str]]:
    """Return the figures of each tuner relative to AutoTVM, by column.

    The column `invalid` has the invalid trials until the goal. The column `a trial` has the invalid
    ones of the first trials, because a tuner that ends sooner has fewer invalid trials until the
    goal.

    Args:
        rows: rows of the benchmark.
        beside: another tuner to compare with. Its seeds and those of the tuner are resampled in
            pairs.
    """
    hard = rows[rows["invalid in space"] >= MANY_INVALID]
    known = set(rows["tuner"])
    figures: dict[str, dict[str, Interval | str]] = {}
    for name in rows["tuner"].unique():
        cells: dict[str, Interval | str] = {}
        for rival, suffix in ((RIVAL, ""), (QUICK_RIVAL, ", plan 16")):
            if rival in known:
                cells[f"trials{suffix}"] = _ratio(rows, name, rival, "trials")
        if beside in known:
            mine, other = (_grid(rows, tuner, "trials") for tuner in (name, beside))
            cells[f"trials, {beside}"] = hierarchical(ratio_of_medians, mine, other, paired=True)
        if RIVAL in known:
            for figure in ("place", "compiles", "seconds", "real seconds"):
                if rows.loc[rows["tuner"] == name, figure].any():
                    cells[figure] = _ratio(rows, name, RIVAL, figure)
            if len(hard):
                for figure, column in (("invalid", "invalid"), ("a trial", f"invalid at {LOOK}")):
                    mine, other = (_grid(hard, tuner, column) for tuner in (name, RIVAL))
                    if mine.size:
                        cells[figure] = hierarchical(ratio_of_means, mine, other)
        look = _grid(rows, name, f"regret at {LOOK}")
        if look.size:
            cells["regret"] = f"{np.median(look):.2%}"
            cells["worst layer"] = f"{np.median(look, axis=1).max():.2%}"
        figures[name] = cells
    return figures


def _ratio(rows: pd.DataFrame, tuner: str, rival: str, figure: str) -> Interval:
    return hierarchical(ratio_of_medians, _grid(rows, tuner, figure), _grid(rows, rival, figure))


def costs(rows: pd.DataFrame) -> dict[tuple[str, str, float], Interval]:
    """Return the cost of the goal relative to both forms of AutoTVM.

    The cost of a run is its trials plus its compiles times the price of a compile. The keys are the
    tuner, the rival and the price.
    """
    found = {}
    for price in COMPILE_PRICES:
        priced = rows.assign(cost=rows["trials"] + price * rows["compiles"])
        for rival in (RIVAL, QUICK_RIVAL):
            for tuner in rows["tuner"].unique() if rival in set(rows["tuner"]) else ():
                found[str(tuner), rival, price] = _ratio(priced, tuner, rival, "cost")
    return found


def cost_table(rows: pd.DataFrame) -> Table:
    """Return a table with one row per tuner: mean trials and compiles, and cost at each price."""
    table = Table(title=f"cost until within {GOAL:.0%}: trials + price x compiles")
    found = costs(rows)
    columns = list(dict.fromkeys((rival, price) for _, rival, price in found))
    for name in ("tuner", "goal missed", "trials", "compiles"):
        table.add_column(name, justify="left" if name == "tuner" else "right")
    for rival, price in columns:
        table.add_column(f"{price:g} a compile, of {rival}'s", justify="right")
    for tuner, own in rows.groupby("tuner", sort=False):
        cells = [str(found[str(tuner), *column]) for column in columns]
        counts = (f"{own[name].mean():.1f}" for name in ("trials", "compiles"))
        table.add_row(str(tuner), f"{1 - own['reached'].mean():.0%}", *counts, *cells)
    return table


def relative_table(rows: pd.DataFrame, beside: str = "") -> Table:
    """Return a table of the figures of each tuner, with their intervals."""
    layers, seeds = rows["layer"].nunique(), rows["seed"].nunique()
    table = Table(
        title=f"relative to {RIVAL}, until within {GOAL:.0%}; regret at {LOOK} trials; intervals "
        f"over {layers} layers and {seeds} seeds"
    )
    result = relative_figures(rows, beside)
    names = list(dict.fromkeys(name for cells in result.values() for name in cells))
    for name in ("tuner", *names):
        table.add_column(name, justify="left" if name == "tuner" else "right")
    for tuner, cells in result.items():
        table.add_row(tuner, *(str(cells.get(name, "-")) for name in names))
    return table


if __name__ == "__main__":
    typer.run(main)
