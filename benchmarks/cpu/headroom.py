"""Measures how much faster than the rule schedule a CPU layer can be, and how much tuners find.

    python -m benchmarks.cpu.headroom --out built/cpu-headroom.parquet
    python -m benchmarks.cpu.headroom --redraw benchmarks/rows/cpu-headroom.parquet

Eight layers of `benchmarks.layers.CPU_JUDGED` run on one thread. Each layer is searched in four
ways: by three tuners, and by measuring all schedules that differ from the rule schedule in one knob
by one step. The fastest of many noisy trials looks faster than it is. Therefore the `LEADERS`
fastest trials of each search, and the `MOST_LEADERS` fastest trials of all searches together, are
measured again in `TURNS` rounds together with the rule schedule, in a different order in each
round. Weights are not in the cache, as in a network (docs/decisions/measuring-on-a-cpu.md). Every
second round chooses the fastest schedule of each search, which may be the rule schedule; the other
rounds give the latency of this choice. The confidence intervals resample layers and rounds.

The file is written after each search and each round, and a later run resumes from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

from benchmarks.intervals import Floats, hierarchical, ratio_of_medians
from benchmarks.layers import CPU_JUDGED, cpu_workload
from benchmarks.results import LayerNames, Redraw, has_row, markdown_table, split_names
from tilewright.flows.tuning import tune
from tilewright.models import make_explorer
from tilewright.targets.base import Configs, Target
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload

TARGET = "cpu:threads=1"
LAYERS = (
    "efficientnet_b0 1x1 24-144", "efficientnet_b0 1x1 480-112", "efficientnet_b0 dw 1152",
    "unet 3x3 256-512", "convnext_t dw 192", "convnext_t dense 192-768", "mixer_s16 tokens",
    "audio 1x3 64-128",
)  # fmt: skip
NEIGHBOURS, AGAIN = "neighbours", "again"
SEARCHES = {"random": 32, "estimate": 32, NEIGHBOURS: 0, "ml2tuner": 32}
"""Number of trials of each search. All neighbours are measured, so their number is not limited."""
BUDGETS = (16, 32)
"""Numbers of trials after which a tuner is evaluated."""
TUNERS = ("random", "estimate", "ml2tuner")
BATCH = 16
LEADERS, MOST_LEADERS = 2, 8
TURNS = 8
Row = dict[str, Any]


def main(
    out: Annotated[
        Path, typer.Option(help="Parquet file for the rows; existing rows are kept.")
    ] = Path("built/cpu-headroom.parquet"),
    layers: LayerNames = "",
    turns: Annotated[int, typer.Option(help="Turns of the second measurement.")] = TURNS,
    redraw: Redraw = None,
) -> None:
    """Measure what is missing in the file, and print the table."""
    if redraw is None:
        _measure(split_names(layers) or list(LAYERS), turns, out)
    print(table_of(pd.read_parquet(redraw or out)))


def _measure(layers: list[str], turns: int, out: Path) -> None:
    target = make_target(TARGET)
    assert isinstance(target, CpuTarget)
    assert set(layers) <= set(CPU_JUDGED)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = pd.read_parquet(out) if out.exists() else pd.DataFrame()
    for layer in layers:
        workload = cpu_workload(layer)
        for search, trials in SEARCHES.items():
            if has_row(rows, {"layer": layer, "search": search}):
                continue
            made = (
                _neighbours(target, workload)
                if search == NEIGHBOURS
                else _tuned(target, workload, search, trials)
            )
            rows = _kept(rows, layer, search, made, out)
        rows = _again(target, layer, rows, turns, out)


def _kept(
    rows: pd.DataFrame, layer: str, search: str, made: Iterable[Row], out: Path
) -> pd.DataFrame:
    added = pd.DataFrame([{"layer": layer, "search": search, "turn": -1} | row for row in made])
    rows = pd.concat([rows, added], ignore_index=True)
    whole = out.with_suffix(".new")  # a stopped run leaves the file as it was
    rows.to_parquet(whole, index=False, compression="zstd")
    whole.replace(out)
    print(f"{layer}: {search}, {len(added)} rows", flush=True)
    return rows


def _tuned(target: Target, workload: Workload, tuner: str, trials: int) -> Iterable[Row]:
    space, explorer = target.space(workload), make_explorer(tuner)
    for done in tune(target, workload, explorer, trials=trials, batch=BATCH):
        yield from _rows(space.ravel(done.configs), done.measured.status, done.measured.seconds)


def _neighbours(target: CpuTarget, workload: Workload) -> Iterable[Row]:
    """Measure the schedules that differ from the rule schedule in one knob, by one step."""
    space, rule = target.space(workload), np.array(target.rule(workload), np.int32)
    steps = np.concatenate([np.eye(len(rule), dtype=np.int32) * sign for sign in (1, -1)])
    configs = rule + steps
    configs = configs[((configs >= 0) & (configs < space.cardinalities)).all(axis=1)]
    measured = target.measure(target.lower(workload, configs))
    return _rows(space.ravel(configs), measured.status, measured.seconds)


def _rows(
    flat: NDArray[np.int64], status: NDArray[np.object_], seconds: NDArray[np.float64]
) -> list[Row]:
    valid = status == "valid"
    return [
        {"config": int(config), "status": str(said), "seconds": float(took) if ran else np.nan}
        for config, said, took, ran in zip(flat, status, seconds, valid, strict=True)
    ]


def _again(
    target: CpuTarget, layer: str, rows: pd.DataFrame, turns: int, out: Path
) -> pd.DataFrame:
    """Measure the leaders of all searches and the rule schedule in the rounds that are missing."""
    workload = cpu_workload(layer)
    space = target.space(workload)
    rule = int(space.ravel(np.array([target.rule(workload)], np.int32))[0])
    begun = rows[(rows["layer"] == layer) & (rows["search"] == AGAIN)]
    first = 0 if begun.empty else int(begun["turn"].max()) + 1
    if first >= turns:
        return rows
    leaders = sorted(
        {rule, *(config for each in _leaders(rows, layer).values() for config in each)}
    )
    configs: Configs = space.unravel(np.array(leaders))
    lowered = target.lower(workload, configs)
    for turn in range(first, turns):
        order = np.random.default_rng(turn).permutation(len(leaders))
        measured = target.measure(lowered.rows(order))
        made = _rows(np.array(leaders)[order], measured.status, measured.seconds)
        named = ({**row, "turn": turn, "rule": row["config"] == rule} for row in made)
        rows = _kept(rows, layer, AGAIN, named, out)
    return rows


def _leaders(rows: pd.DataFrame, layer: str) -> Mapping[str, list[int]]:
    """Return the fastest configs of each search by its trials; key `""` stands for all searches."""
    trials = rows[(rows["layer"] == layer) & (rows["turn"] < 0)]
    found = {
        f"{tuner} {budget}": _fastest(trials[trials["search"] == tuner][:budget], LEADERS)
        for tuner in TUNERS
        for budget in BUDGETS
    }
    return found | {"": _fastest(trials, MOST_LEADERS)}


def _fastest(trials: pd.DataFrame, count: int) -> list[int]:
    each = trials.dropna(subset="seconds").groupby("config")["seconds"].median()
    return [int(config) for config in each.nsmallest(count).index]


def choices(rows: pd.DataFrame) -> dict[str, Floats]:
    """Return the seconds of each search's choice, in rounds that were not used for the choice.

    Args:
        rows: rows of the benchmark.

    Returns:
        Seconds by search, each of shape (layers, rounds). `""` is the best choice of all searches
        together, and `rule` is the rule schedule.
    """
    layers = _finished(rows)
    chosen: dict[str, list[Floats]] = {}
    for layer in layers:
        again = rows[(rows["layer"] == layer) & (rows["search"] == AGAIN)]
        table = again.pivot(index="turn", columns="config", values="seconds").dropna(axis=1)
        rule = int(again.loc[again["rule"].astype(bool), "config"].iloc[0])
        choosing, judging = table.iloc[::2].median(), table.iloc[1::2]
        # The leaders of all trials include those of every search.
        searches = {**_leaders(rows, layer), "rule": []}
        for search, leaders in searches.items():
            entered = [rule, *(config for config in leaders if config in table)]
            if not search:
                entered = [int(config) for config in table.columns]
            best = choosing[entered].idxmin()
            chosen.setdefault(search, []).append(judging[best].to_numpy(np.float64))
    return {search: np.stack(each) for search, each in chosen.items()}


def _finished(rows: pd.DataFrame) -> list[str]:
    """Return the layers whose leaders were measured again."""
    return list(rows.loc[rows["search"] == AGAIN, "layer"].unique())


def table_of(rows: pd.DataFrame) -> str:
    """Return a Markdown table of the seconds of the rule schedule and of each choice.

    The last line has the geometric mean of the ratios to the rule schedule, with its interval.
    """
    of = choices(rows)
    rule = of.pop("rule")
    searches = ["", *(search for search in of if search)]
    head = ("layer", "trials", "rule, µs", "best found", *searches[1:])
    cells = []
    for place, layer in enumerate(_finished(rows)):
        base = np.median(rule[place])
        ratios = (np.median(of[search][place]) / base for search in searches)
        trials = ((rows["layer"] == layer) & (rows["turn"] < 0)).sum()
        cells.append((layer, str(trials), f"{1e6 * base:.4g}", *(f"{r:.3f}" for r in ratios)))
    means = (hierarchical(ratio_of_medians, of[s], rule, paired=True) for s in searches)
    cells.append(("geometric mean", "", "", *(mean.text(3) for mean in means)))
    return markdown_table(head, "lr", cells)


if __name__ == "__main__":
    typer.run(main)
