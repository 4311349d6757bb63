"""Measures the errors of ML²Tuner's Models P and A within runs, on the batch measured next.

    python -m benchmarks.tuners.model_errors unchecked  # the paper's space, on evta-zcu102
    python -m benchmarks.tuners.model_errors extended   # the default space, on vta-pynq
    python -m benchmarks.tuners.model_errors unchecked --redraw benchmarks/rows/FILE

After each training, Models P and A predict the batch that is measured next. Model A chose this
batch by its own predictions, which biases the comparison. Therefore all programs that were compiled
in the round are also simulated, outside of the run; only Models P and V chose them.

The tuners `ml2tuner-published` and `ml2tuner` have these models. Each makes its own runs:
`ml2tuner` measures two configs per round, and may measure programs that were compiled in an earlier
round. Errors are errors of log2 cycles over valid configs. The error of a layer is the root of the
mean square over its runs; ratios are geometric means over layers. The 95 % intervals resample
layers and seeds (`benchmarks.intervals`). The layers are the held-out ones of `benchmarks.layers`.
Their spaces are enumerated first and stored below `--spaces`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.intervals import Floats, Interval, hierarchical
from benchmarks.results import Batch, LayerNames, Redraw, Seeds, Trials, Tuners
from benchmarks.tuners.enumerated_spaces import SpaceName, enumerate_layers, make_space_target
from tilewright.evaluation.compare.plan import TunerConfig, parse_tuner_configs
from tilewright.flows.tuning import learn
from tilewright.search import LocalRunner, Session, Task, make_task
from tilewright.search.round_steps import choose_batch, measure_batch
from tilewright.targets.base import Lowered, Measurements, Target
from tilewright.targets.ground_truth import make_replay_target
from tilewright.targets.workload import Workload

PUBLISHED = 0.919
WINDOWS = {"all": (0, 10_000), "to 64 trials": (0, 64), "after 64 trials": (64, 10_000)}


def main(
    where: SpaceName,
    seeds: Seeds = 10,
    trials: Trials = 128,
    batch: Batch = 8,
    tuners: Tuners = "ml2tuner-published,ml2tuner-published:learner=gaussian,ml2tuner",
    layers: LayerNames = "",
    out: Path = Path("built/model_errors.parquet"),
    spaces: Path = Path("built/spaces"),
    redraw: Redraw = None,
) -> None:
    """Measure the errors, write one row per training, and print the ratios."""
    if redraw is None:
        target, rows = make_space_target(where), []
        for name, workload, truth in enumerate_layers(where, layers, spaces):
            for tuner, seed in product(parse_tuner_configs(tuners), range(seeds)):
                run = _run(
                    make_replay_target(target, [truth]), workload, tuner, seed, trials, batch
                )
                rows += [{"layer": name, "tuner": tuner.label, "seed": seed} | row for row in run]
        redraw = out
        out.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_parquet(out, index=False)
    Console(width=150).print(_table(where, pd.read_parquet(redraw)))


def _run(
    target: Target, workload: Workload, tuner: TunerConfig, seed: int, trials: int, batch: int
) -> list[dict[str, Any]]:
    """Run a tuner, and return one row per training after which a batch was measured."""
    explorer = tuner.explorer
    run, task = LocalRunner(), make_task(target, workload, explorer, seed)
    session, problem = Session.start(task), task.problem
    rows: list[dict[str, Any]] = []
    while len(session.history) < trials:
        session = learn(run, task, session)
        state, history = session.models, session.history
        named = explorer.generate(problem, state, history, batch)
        kept = explorer.veto(problem, state, history, named, batch)
        lowered = target.lower(workload, kept.configs)
        chosen = choose_batch(task, session, lowered, batch)
        measured = measure_batch(task, chosen, {})
        if "A" in state.models:
            row: dict[str, Any] = {"trials": len(history)}
            row |= _errors(task, session, chosen.rows, measured, "measured")
            row |= _errors(task, session, lowered, target.measure(lowered), "compiled")
            rows.append(row)
        session = session.extend(replace(chosen, measured=measured))
    return rows


def _errors(
    task: Task, session: Session, lowered: Lowered, measured: Measurements, of: str
) -> dict[str, float]:
    """Return sums of squared errors over the valid rows, and the number of these rows."""
    state = session.models
    asked = task.explorer.model_inputs(task.problem, state, session.history, lowered)
    errors: dict[str, float] = {f"{of} valid": float(measured.valid.sum())}
    for role in ("P", "A"):
        rows = asked[role].rows
        valid = measured.valid[rows]
        said = (state.models[role].predict(asked[role].features) + asked[role].offset)[valid]
        errors[f"{of} {role}"] = float(((said - np.log2(measured.latency[rows][valid])) ** 2).sum())
    return errors


def error_ratios(rows: pd.DataFrame) -> dict[tuple[str, str, str], Interval]:
    """Return the RMSE of Model A relative to that of Model P.

    The keys are the tuner, the window of trials, and the predicted programs.
    """
    figures = {}
    for tuner, group in rows.groupby("tuner", sort=False):
        for window, (low, high) in WINDOWS.items():
            some = group[(group["trials"] >= low) & (group["trials"] < high)]
            if not len(some):
                continue  # its runs were shorter
            for of in ("measured", "compiled"):
                key = str(tuner), window, of
                figures[key] = hierarchical(_ratio, _sums(some, f"{of} A"), _sums(some, f"{of} P"),
                                          paired=True)  # fmt: skip
    return figures


def _sums(rows: pd.DataFrame, column: str) -> Floats:
    """Return the sum of squared errors of each run, shape (layers, seeds)."""
    return rows.pivot_table(
        index="layer", columns="seed", values=column, aggfunc="sum", fill_value=0.0
    ).to_numpy(np.float64)


def _ratio(a: Floats, p: Floats) -> Floats:
    """Return the geometric mean over layers of ratios of root mean squares over runs.

    All runs have the same number of rows. Both arrays have shape (..., layers, runs).
    """
    squares = np.sqrt(a.sum(axis=-1) / p.sum(axis=-1))
    return np.asarray(np.exp(np.log(squares).mean(axis=-1)))


def _table(where: str, rows: pd.DataFrame) -> Table:
    table = Table(
        title=f"{where}: RMSE of A / RMSE of P (published: {PUBLISHED}); intervals over "
        f"{rows['layer'].nunique()} layers and {rows['seed'].nunique()} seeds"
    )
    for name in ("tuner", "retrainings", "measured next", "compiled in that round", "RMSE of P"):
        table.add_column(name)
    result = error_ratios(rows)
    for tuner, window in dict.fromkeys((tuner, window) for tuner, window, _ in result):
        low, high = WINDOWS[window]
        subset = rows[(rows["tuner"] == tuner) & rows["trials"].between(low, high - 1)]
        error = np.sqrt(subset["measured P"].sum() / subset["measured valid"].sum())
        ratios = [result[tuner, window, of].text(3, "-") for of in ("measured", "compiled")]
        table.add_row(tuner, window, *ratios, f"{error:.3f}")
    return table


if __name__ == "__main__":
    typer.run(main)
