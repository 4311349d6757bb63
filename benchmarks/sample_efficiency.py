"""Measures how many measurements each tuner needs, against the enumerated optimum.

    .venv/bin/python -m benchmarks.sample_efficiency tables      # the real stack's tables: minutes
    .venv/bin/python -m benchmarks.sample_efficiency unchecked   # ML²Tuner's space on evta-zcu102
    .venv/bin/python -m benchmarks.sample_efficiency extended    # the default space on vta-pynq

The last two enumerate sixteen spaces first (half an hour of CPU, kept under --spaces). Every tuner
gets the same batches, budget and seeds. A run ends after 64 trials or when it has come within 1 %
of the optimum, whichever is later, or with the budget. Trials, compiles and seconds are counted to
the end of the batch that came there. Real seconds are those that the recorded stack took, and the
tuner's own. A figure of a layer is the median over seeds. Figures relative to `autotvm` are
geometric means over layers of ratios of medians, with 95 % bootstrap intervals over seeds. Finished
runs are kept in --out and not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.layers import OTHERS, RESNET18
from tilewright.cli.views.comparison import comparing, leaderboard_table
from tilewright.evaluation.compare.benchmark_suite import (
    EnumeratedTestBed,
    TestBed,
    recorded_test_bed,
)
from tilewright.evaluation.compare.leaderboard import RESAMPLES, Floats, Results
from tilewright.evaluation.compare.plan import GOAL, parse_tuner_configs, plan
from tilewright.flows.comparison import run_comparison
from tilewright.reports.compare.report import write_report
from tilewright.search import LocalRunner

TABLES = Path(__file__).parents[1] / "tests" / "data" / "tvm-vta"
TUNERS = (
    "default,default-blind,estimate,ml2tuner,p,p+v,p+a,autotvm,autotvm:features=itervar,ga,baco,"
    "optuna,tps,random,grid"
)
RIVAL = "autotvm"
LOOK = 64  # trials after which regret is read
MANY_INVALID = 0.5  # share of a space from which invalid trials are compared
Where = Literal["tables", "unchecked", "extended"]


def main(
    where: Where,
    tuners: Annotated[str, typer.Option(help="As for 'tilewright compare'.")] = TUNERS,
    seeds: Annotated[int, typer.Option(help="Seeds a tuner and layer.")] = 20,
    trials: Annotated[int, typer.Option(help="Budget of a run.")] = 1024,
    batch: Annotated[int, typer.Option(help="Trials a round.")] = 8,
    layers: Annotated[str, typer.Option(help="Only these, by name.")] = "",
    live: Annotated[bool, typer.Option(help="Compile and simulate, for honest seconds.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    out: Path = Path("built/sample_efficiency"),
    spaces: Path = Path("built/spaces"),
) -> None:
    """Run all tuners and print what they needed."""
    test_bed = _test_bed(where, spaces, [name for name in layers.split(",") if name], live)
    what = plan(test_bed, parse_tuner_configs(tuners), range(seeds), trials, batch, enough=LOOK)
    folder = out / (where + "-live" * live)
    console = Console(width=190)
    with comparing(console) as progress:
        compared = run_comparison(LocalRunner(progress), what, folder, jobs)
    write_report(compared, folder)
    console.print(leaderboard_table(compared.leaderboard, console.width))
    share = {name: _invalid_share(test_bed, name) for name, _ in test_bed.workloads}
    console.print(_by_layer(compared.results, share))
    figures = _relative(compared.results, share)
    console.print(_relative_table(figures))
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))


def _test_bed(where: Where, spaces: Path, wanted: list[str], live: bool) -> TestBed:
    if where == "tables":
        files = sorted(TABLES.glob("*.csv.gz"), key=lambda path: int(path.name[1:].split(".")[0]))
        return recorded_test_bed([f for f in files if not wanted or f.name.split(".")[0] in wanted])
    known = {name: workload for name, (workload, _) in RESNET18.items()} | OTHERS
    named = tuple((name, known[name]) for name in wanted or known)
    target = "vta-pynq" if where == "extended" else "evta-zcu102"
    return EnumeratedTestBed(target, where, named, spaces, live)


def _invalid_share(test_bed: TestBed, name: str) -> float:
    return float(np.mean(test_bed.table(name).status != "valid"))


def _by_layer(results: Results, share: dict[str, float]) -> Table:
    """Trials to the goal, and regret after some: median (quartiles) over seeds."""
    table = Table(title=f"trials to {GOAL:.0%}: median (quartiles), regret at {LOOK}")
    table.add_column("layer")
    table.add_column("invalid", justify="right")
    for name in results.tuners:
        table.add_column(name, justify="right")
    for w, layer in enumerate(results.workloads):
        cells = []
        for k in range(len(results.tuners)):
            low, middle, high = np.quantile(results.trials_to_goal[k, w], (0.25, 0.5, 0.75))
            mark = "" if results.reached[k, w].all() else "≥"
            regret = np.median(results.regret[k, w, :, min(LOOK, results.trials) - 1])
            cells.append(f"{mark}{middle:.0f} ({low:.0f}-{high:.0f})\n{regret:.2%}")
        table.add_row(layer, f"{share[layer]:.0%}", *cells)
    return table


def _relative(results: Results, share: dict[str, float]) -> dict[str, dict[str, list[float]]]:
    """Each tuner's figures: median, and ends of the 95 % interval."""
    if RIVAL not in results.tuners:
        return {}
    rival = results.tuners.index(RIVAL)
    hard = [w for w, name in enumerate(results.workloads) if share[name] >= MANY_INVALID]
    invalid = results.at_goal(results.invalid)
    seconds = results.at_goal(results.elapsed)
    compiles, stack = results.at_goal(results.compiled), results.stack_seconds_to_goal
    figures: dict[str, dict[str, list[float]]] = {}
    for k, name in enumerate(results.tuners):
        look = results.regret[k, :, :, min(LOOK, results.trials) - 1]
        figures[name] = {
            "trials": _ratio(results.trials_to_goal[k], results.trials_to_goal[rival]),
            "compiles": _ratio(compiles[k], compiles[rival]),
            "seconds": _ratio(seconds[k], seconds[rival]),
            **({"real seconds": _ratio(stack[k], stack[rival])} if stack.any() else {}),
            "median regret": [float(np.median(look))],
            "worst layer": [float(np.median(look, axis=1).max())],
        }
        if hard:
            figures[name]["invalid"] = _share(invalid[k, hard], invalid[rival, hard])
    return figures


def _ratio(mine: NDArray[np.generic], other: NDArray[np.generic]) -> list[float]:
    """Geometric mean over layers of ratios of medians over seeds; arrays are (layers, seeds)."""

    def figure(a: Floats, b: Floats) -> Floats:
        ratio = np.median(a, axis=-1) / np.median(b, axis=-1)
        return np.asarray(np.exp(np.log(ratio).mean(axis=0)))

    return _interval(figure, np.asarray(mine, np.float64), np.asarray(other, np.float64))


def _share(mine: Floats, other: Floats) -> list[float]:
    """Ratio of means over layers and seeds: medians of few invalid trials are 0."""
    return _interval(lambda a, b: a.mean(axis=(0, -1)) / b.mean(axis=(0, -1)), mine, other)


def _interval(
    figure: Callable[[Floats, Floats], Floats], mine: Floats, other: Floats
) -> list[float]:
    """A figure of runs (layers, seeds), and the ends of its bootstrap over seeds. `figure` takes
    arrays (layers, resamples, seeds)."""
    rng = np.random.default_rng(0)
    seeds = mine.shape[1]
    drawn = [rng.integers(0, seeds, (RESAMPLES, seeds)) for _ in range(2)]
    resampled = figure(mine[:, drawn[0]], other[:, drawn[1]])
    low, high = np.quantile(resampled, (0.025, 0.975))
    return [float(figure(mine[:, None], other[:, None])[0]), float(low), float(high)]


def _relative_table(figures: dict[str, dict[str, list[float]]]) -> Table:
    table = Table(title=f"relative to {RIVAL}, until within {GOAL:.0%}; regret at {LOOK} trials")
    names = (
        "trials", "compiles", "invalid", "seconds", "real seconds", "median regret", "worst layer"
    )  # fmt: skip
    for name in ("tuner", *names):
        table.add_column(name, justify="left" if name == "tuner" else "right")
    for tuner, row in figures.items():
        table.add_row(tuner, *(_cell(row.get(name, [])) for name in names))
    return table


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    text = f"{values[0]:.1%}"
    return f"{text} ({values[1]:.1%}-{values[2]:.1%})" if len(values) > 1 else f"{values[0]:.2%}"


if __name__ == "__main__":
    typer.run(main)
