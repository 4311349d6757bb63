"""Measures what the models know: Model A beside Model P on held-out configs, and Model V's veto.

    .venv/bin/python -m benchmarks.learning unchecked --spaces built/spaces
    .venv/bin/python -m benchmarks.learning extended --spaces built/spaces

P and A learn from the same random valid configs and are judged on 2,000 others: root mean square
error in log2 cycles, for the learners of `default` and of `ml2tuner`. V learns from the trials of a
run of `default-blind`. Counted are the fastest 1 % of the valid configs of the whole space that lie
below its threshold. Means over seeds, then over layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.enumerated_spaces import SpaceName, enumerated, target_of
from tilewright.flows.tuning import learn, tune_round
from tilewright.models import LEARNERS, make_explorer
from tilewright.search import LocalRunner, Problem, Session, make_task, problem_of
from tilewright.search.cost_model_protocols import VetoModel
from tilewright.targets import make_target
from tilewright.targets.features import Features
from tilewright.targets.ground_truth import replayed
from tilewright.targets.measurement_table import MeasurementTable

HELD_OUT = 2000
FASTEST = 0.01
Rows = NDArray[np.int64]


def main(
    where: SpaceName,
    learned: Annotated[int, typer.Option(help="Valid configs P and A learn from.")] = 128,
    trials: Annotated[int, typer.Option(help="Trials V learns from.")] = 64,
    seeds: int = 5,
    layers: Annotated[str, typer.Option(help="Only these, by name.")] = "",
    spaces: Path = Path("built/spaces"),
) -> None:
    """Print a row a layer."""
    target, names, rows = target_of(where), [], []
    for name, workload, table in enumerated(where, layers, spaces):
        names.append(name)
        problem = problem_of(target, workload, 0)
        errors = [_errors(problem, table, learned, seed) for seed in range(seeds)]
        vetoed = [_vetoed(table, trials, seed) for seed in range(seeds)]
        rows.append([*np.mean(errors, axis=0), np.mean(vetoed)])
    _print(where, names, np.array(rows), learned, trials)


def _errors(problem: Problem, table: MeasurementTable, learned: int, seed: int) -> list[float]:
    """RMSE of P and A: the default tuner's, then ML²Tuner's."""
    valid = np.random.default_rng(seed).permutation(np.flatnonzero(table.cycles > 0))
    fit_record, exam = valid[:learned], valid[learned : learned + HELD_OUT]
    configs = table.space.unravel(table.flat)
    cycles = np.log2(np.maximum(table.cycles, 1))

    def rmse(surrogate: bool, columns: Features) -> float:
        model = LEARNERS.surrogate(seed) if surrogate else LEARNERS.regressor("xgboost", seed)
        model.fit(columns.rows(np.arange(learned)), cycles[fit_record])
        said = model.predict(columns.rows(np.arange(learned, len(columns))))
        return float(np.sqrt(np.mean((said - cycles[exam]) ** 2)))

    rows = np.concatenate([fit_record, exam])
    gp_features = LEARNERS.gp_features(problem, configs[rows])
    tree_features = LEARNERS.tree_features(problem, configs[rows])
    hidden = table.hidden.rows(rows)
    draft = LEARNERS.draft(hidden)
    draft.fit(hidden.rows(np.arange(learned)), cycles[fit_record])
    drafted = draft.predict(hidden) - cycles[fit_record].min()
    counts = LEARNERS.hidden_features(hidden)
    return [
        rmse(True, gp_features),
        rmse(True, gp_features.beside(counts, Features.of(drafted[:, None], ["draft"]))),
        rmse(False, tree_features),
        rmse(False, tree_features.beside(hidden.named("hidden"))),
    ]


def _vetoed(table: MeasurementTable, trials: int, seed: int) -> float:
    """Share of the fastest valid configs below the threshold V has after a run."""
    target = replayed(make_target("vta-pynq"), [table])
    problem = problem_of(target, table.workload, seed)
    explorer = make_explorer("default-blind")
    run, task = LocalRunner(), make_task(target, table.workload, explorer, seed)
    session = Session.start(task)
    while len(session.history) < trials and (done := tune_round(run, task, session, 8)):
        session = done
    judge = cast(VetoModel, learn(run, task, session).models.models["V"])
    valid = np.flatnonzero(table.cycles > 0)
    fast = valid[table.cycles[valid] <= np.quantile(table.cycles[valid], FASTEST)]
    fastest = table.space.unravel(table.flat[fast])
    chance = judge.predict(LEARNERS.tree_features(problem, fastest))
    return float(np.mean(chance < judge.threshold))


def _print(
    where: str, names: list[str], rows: NDArray[np.float64], learned: int, trials: int
) -> None:
    table = Table(title=f"{where}: P and A after {learned} valid configs, V after {trials} trials")
    table.add_column("layer")
    for name in ("default P", "A", "A/P", "ml2tuner P", "A", "A/P", "good vetoed"):
        table.add_column(name, justify="right")
    for name, row in zip([*names, "mean"], np.vstack([rows, rows.mean(axis=0)]), strict=True):
        p, a, tree_p, tree_a, vetoed = row
        ratios = a / p, tree_a / tree_p
        if name == "mean":  # of the layers' ratios
            ratios = (rows[:, 1] / rows[:, 0]).mean(), (rows[:, 3] / rows[:, 2]).mean()
        table.add_row(
            name, f"{p:.3f}", f"{a:.3f}", f"{ratios[0]:.2f}", f"{tree_p:.3f}", f"{tree_a:.3f}",
            f"{ratios[1]:.2f}", f"{vetoed:.2%}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
