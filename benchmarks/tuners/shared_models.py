"""Compares tuners that share Models V and A over the layers of a run with tuners that do not.

    python -m benchmarks.tuners.shared_models --tuners "ml2tuner,ml2tuner:share=False"

Layers are tuned one after the other on the simulator, as `tilewright tune NETWORK` does: the first
four teach the others. A run of a layer has a fixed number of trials. It has reached the goal at the
end of the round that is first within 1 % of the fastest schedule that any run of the table found;
the spaces are not enumerated. Finished rows are kept in --out and not repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.results import LayerNames, Redraw, Seeds, Trials, Tuners
from benchmarks.tuners.enumerated_spaces import SpaceName, layers_named, make_space_target
from tilewright.evaluation.compare.plan import GOAL, TunerConfig, parse_tuner_configs
from tilewright.flows.tuning import TEACHERS, tune_round
from tilewright.search import ExplorerState, History, LocalRunner, Session, make_task

DEVELOPMENT = "C4,C5,C7,C8,C9,C10"
"""Layers that options of `ml2tuner` were chosen on."""


def main(
    where: Annotated[SpaceName, typer.Option(help="Space of the schedules.")] = "extended",
    tuners: Tuners = "ml2tuner,ml2tuner:share=False,default,default:share=False,estimate",
    layers: LayerNames = DEVELOPMENT,
    seeds: Seeds = 3,
    trials: Trials = 32,
    batch: Annotated[int, typer.Option(help="Trials of a round of tuners without `batch`.")] = 2,
    out: Path = Path("built/shared_models.parquet"),
    redraw: Redraw = None,
) -> None:
    """Run all tuners and print what they needed."""
    if redraw is None:
        rows: list[dict[str, Any]] = []
        if out.exists():
            held = pd.read_parquet(out).to_dict("records")
            rows = [{str(name): value for name, value in row.items()} for row in held]
        done = {(row["tuner"], row["seed"], row["trials"], row["space"]) for row in rows}
        for seed in range(seeds):
            for config in parse_tuner_configs(tuners):
                if (config.label, seed, trials, where) in done:
                    continue
                rows += _run(where, layers, config, seed, trials, batch)
                out.parent.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(rows).to_parquet(out, index=False)
        redraw = out
    Console(width=150).print(table_of(pd.read_parquet(redraw)))


def _run(
    where: SpaceName, layers: str, tuner: TunerConfig, seed: int, trials: int, batch: int
) -> list[dict[str, Any]]:
    """Tune the layers in order. Return a row per layer."""
    target, run, state, rows = make_space_target(where), LocalRunner(), ExplorerState(), []
    if "batch" in type(tuner.explorer.options).model_fields:
        batch = trials  # its own rounds are smaller
    for place, (name, workload) in enumerate(layers_named(layers).items()):
        task = make_task(target, workload, tuner.explorer, seed)
        session: Session | None = Session.start(task).with_shared(state)
        history = History.empty(task.problem.space)
        while session is not None and len(history) < trials:
            done = tune_round(run, task, session, min(batch, trials - len(history)))
            session = None if done is None else done.session
            history = history if session is None else session.history
        if place < TEACHERS:
            state = task.explorer.share(task.problem, state, history)
        kept = 0 if history.compiled is None else len(history.compiled)
        rows.append(
            {
                "space": where, "tuner": tuner.label, "seed": seed, "trials": trials, "layer": name,
                "place": place, "cycles": np.where(history.valid, history.cycles, -1).tolist(),
                "rounds": history.rounds.tolist(),
                "compiles": len(history) + len(history.failed) + kept,
            }
        )  # fmt: skip
    return rows


def trials_to_goal(cycles: list[int], rounds: list[int], best: int) -> int:
    """Return the trials to the end of the round that reaches the goal; all trials if none does."""
    near = [0 < cycle <= (1 + GOAL) * best for cycle in cycles]
    if not any(near):
        return len(cycles)
    reached = rounds[near.index(True)]
    return sum(round_ <= reached for round_ in rounds)


def regret_after(cycles: list[int], trials: int, best: int) -> float:
    """Return by how much the best of the first trials is above the fastest schedule."""
    valid = [cycle for cycle in cycles[:trials] if cycle > 0]
    return min(valid) / best - 1.0 if valid else np.nan


def table_of(rows: pd.DataFrame) -> Table:
    """Return a row per tuner: trials to the goal, and the regret after four trials."""
    cycles = [list(map(int, cycle)) for cycle in rows["cycles"]]
    fastest = [min((c for c in cycle if c > 0), default=10**18) for cycle in cycles]
    best = rows.assign(best=fastest).groupby(["space", "layer"])["best"].transform("min")
    runs = list(zip(cycles, rows["rounds"], best, strict=True))
    rows = rows.assign(
        needed=[trials_to_goal(item, list(own), least) for item, own, least in runs],
        early=[regret_after(item, 4, least) for item, _, least in runs],
        late=[regret_after(item, len(item), least) for item, _, least in runs],
    )
    table = Table(title=f"trials to {GOAL:.0%} above the fastest schedule that was found")
    columns = ("space", "tuner", "seeds", "all layers", "range over seeds", "per later layer",
               "compiles", "regret after 4", "at the end")  # fmt: skip
    for name in columns:
        table.add_column(name)
    for (space, tuner), group in rows.groupby(["space", "tuner"], sort=False):
        sums = group.groupby("seed")["needed"].sum()
        later = group[group["place"] >= 3]["needed"]
        table.add_row(
            str(space), str(tuner), str(len(sums)), f"{sums.mean():.1f}",
            f"{sums.min()}-{sums.max()}", f"{later.mean():.1f}",
            f"{group.groupby('seed')['compiles'].sum().mean():.0f}",
            f"{group['early'].mean():.2%}", f"{group['late'].mean():.2%}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
