"""Compares searches that minimise energy with searches that minimise latency.

    python -m benchmarks.codesign.energy --out built/codesign_energy.parquet
    python -m benchmarks.codesign.energy --redraw benchmarks/rows/codesign-energy.parquet

The benchmark asks whether a search needs energy as its objective, or whether it is enough to search
by latency and to choose the design with the least energy among the measured ones at the end. The
objectives besides chip area are energy and the energy-delay product. For each of them, each method
searches once by this objective and once by latency, with the same seeds and number of measurements.
All measured designs of both searches are then evaluated by the objective.

The table has ratios (search by the objective over search by latency) of the hypervolume and of the
best machine's objective. The confidence intervals resample seeds in pairs, because there is a
single set of networks. The machines are those of an exactly solved problem
(`benchmarks.codesign.truth`), by default the one of the tests.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from benchmarks.codesign.methods import parse_entry
from benchmarks.codesign.truth_store import Truth, read_truth
from benchmarks.intervals import Floats, Interval, hierarchical
from benchmarks.results import Redraw, Seeds, has_row, markdown_table
from tilewright.hardware_search.evaluator import BudgetedEvaluator, BudgetSpent
from tilewright.hardware_search.hardware_space import HardwareSpace
from tilewright.hardware_search.methods import make_method
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.pareto import front_of, hypervolume, reference_of
from tilewright.hardware_search.problem import CodesignProblem, read_networks
from tilewright.targets.registry import make_target

TRUTH = Path(__file__).parents[2] / "tests" / "data" / "codesign" / "truth"
JUDGED_BY: tuple[Objective, ...] = ("energy", "edp")
FIGURES = ("hypervolume", "best")


def main(
    networks: Annotated[str, typer.Option(help="Networks, separated by commas.")] = "digits_cnn",
    methods: Annotated[
        str, typer.Option(help="Methods to compare, as for benchmarks.codesign.methods.")
    ] = "ours;nsga2",
    seeds: Seeds = 10,
    trials: Annotated[int, typer.Option(help="Measurements per run.")] = 200,
    truth: Annotated[
        Path,
        typer.Option(help="Folder with the exact Pareto front, from benchmarks.codesign.truth."),
    ] = TRUTH,
    out: Annotated[
        Path,
        typer.Option(help="Parquet file for the rows; runs that it contains are not repeated."),
    ] = Path("built/codesign_energy.parquet"),
    redraw: Redraw = None,
) -> None:
    """Make the runs that are missing in the file, and print the ratios.

    The file is written after each run.
    """
    if redraw is not None:
        print(table(pd.read_parquet(redraw)))
        return
    result = pd.read_parquet(out) if out.exists() else pd.DataFrame()
    names = tuple(networks.split(","))
    problem = _problem(read_truth(truth), names)
    for seed in range(seeds):
        for entry in methods.split(";"):
            for drive in ("latency", *JUDGED_BY):
                key = {"networks": networks, "entry": entry, "seed": seed, "trials": trials,
                       "drive": drive}  # fmt: skip
                if has_row(result, key):
                    continue
                new = [key | row for row in _run(problem, entry, seed, trials, drive)]
                result = pd.concat([result, pd.DataFrame(new)], ignore_index=True)
                out.parent.mkdir(parents=True, exist_ok=True)
                result.to_parquet(out, index=False)
    print(table(result))


def _problem(truth: Truth, networks: tuple[str, ...]) -> CodesignProblem:
    options = truth.options
    bounds = {name: (low, high) for name, low, high in options.bounds}
    hardware = HardwareSpace(make_target(options.base), options.area, bounds, options.clock)
    return CodesignProblem(read_networks(networks), hardware)


def _run(
    problem: CodesignProblem, entry: str, seed: int, trials: int, drive: Objective
) -> list[dict[str, object]]:
    """Run a search and return one row per objective that evaluates the search.

    A search by latency is evaluated by all objectives, any other search by its own objective.
    """
    evaluator = BudgetedEvaluator(trials, objective=drive)
    with suppress(BudgetSpent):
        make_method(*parse_entry(entry)).search(problem, evaluator, seed)
    results: list[dict[str, object]] = []
    for objective in JUDGED_BY if drive == "latency" else (drive,):
        front = front_of(evaluator, objective)
        points = np.array([(point.design.area, point.cost(objective)) for point in front])
        volume = hypervolume(points.reshape(-1, 2), reference_of(problem, objective))
        best = min((point.cost(objective) for point in front), default=np.inf)
        results.append({"objective": objective, "hypervolume": volume, "best": best,
                      "compiled": evaluator.compiled})  # fmt: skip
    return results


def ratios(frame: pd.DataFrame) -> dict[tuple[str, str, str, str], Interval]:
    """Return the results of searching by the objective relative to searching by latency.

    The keys are networks, entry (a method with its options), objective and figure.
    """
    result = {}
    for key, group in frame.groupby(["networks", "entry", "objective"], sort=False):
        networks, entry, objective = (str(part) for part in key)
        for figure in FIGURES:
            by_drive = group.pivot(index="seed", columns="drive", values=figure).dropna()
            driven, chosen = (by_drive[name].to_numpy()[None] for name in (objective, "latency"))
            ratio = hierarchical(_ratio, driven, chosen, paired=True)
            result[networks, entry, objective, figure] = ratio
    return result


def _ratio(driven: Floats, chosen: Floats) -> Floats:
    """Return the geometric mean of the ratios over runs. Arrays have the shape (..., 1, runs)."""
    return np.asarray(np.exp(np.log(driven / chosen).mean(axis=(-2, -1))))


def table(frame: pd.DataFrame) -> str:
    """Return a Markdown table with one row per network, method and objective."""
    lines: list[tuple[str, ...]] = []
    every = ratios(frame)
    for networks, entry, objective in dict.fromkeys(key[:3] for key in every):
        volume, best = (every[networks, entry, objective, name].text(4) for name in FIGURES)
        subset = frame[(frame["networks"] == networks) & (frame["entry"] == entry)]
        seeds = str(subset["seed"].nunique())
        lines.append((networks, f"`{entry}`", objective, volume, best, seeds))
    head = ("networks", "method", "objective", "hypervolume", "best machine", "seeds")
    return markdown_table(head, "lllr", lines)


if __name__ == "__main__":
    typer.run(main)
