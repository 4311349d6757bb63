"""Compares tuners that share Models V and A over the layers of a run with tuners that do not.

    python -m benchmarks.tuners.shared_models --tuners "ml2tuner,ml2tuner:share=False"

Layers are tuned one after the other on the simulator, as `tilewright tune NETWORK` does: the first
four teach the others. A run of a layer has a fixed number of trials. It has reached the goal at the
end of the round that is first within 1 % of the fastest schedule that any run of the table found;
the spaces are not enumerated. Finished rows are kept in --out and not repeated.

    python -m benchmarks.tuners.shared_models --layers "" --first "none,vta-pynq,evta-zcu102"

also starts runs with the trials of an earlier run of other layers (`--first-layers`), as
`tilewright tune --warm-start` does, on the same or on other hardware. The trials and compiles of
the earlier run have columns of their own. `model` starts with a transfer model (`--model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.results import LayerNames, Redraw, Seeds, Trials, Tuners
from benchmarks.tuners.enumerated_spaces import SpaceName, layers_named, target_of
from tilewright.evaluation.compare.plan import GOAL, TunerConfig, parse_tuner_configs
from tilewright.flows.tuning import TEACHERS, tune_round
from tilewright.models.transfer.model import Transferred, prior_from
from tilewright.models.transfer.registry import load_model
from tilewright.search import (
    Explorer,
    ExplorerState,
    History,
    LocalRunner,
    Session,
    Task,
    make_task,
)
from tilewright.search.shared_trials import from_other_hardware, trials_in, with_trials
from tilewright.targets import make_target
from tilewright.targets.base import Target
from tilewright.targets.workload import Workload

DEVELOPMENT = "C4,C5,C7,C8,C9,C10"
"""Layers that options of `ml2tuner` were chosen on."""
OTHERS = "alexnet,vgg16,resnet50 1,resnet50 2,mobilenet_v1,inception_v3"
"""Development layers of other networks."""
MODEL, NOTHING = "model", "none"


@dataclass(frozen=True)
class Start:
    """What a run starts with.

    Attributes:
        state: trials of an earlier run, for the shared models.
        trials: number of trials of the earlier run.
        compiles: number of configs that the earlier run compiled.
        model: transfer model, if the run starts with one.
    """

    state: ExplorerState = field(default_factory=ExplorerState)
    trials: int = 0
    compiles: int = 0
    model: Transferred | None = None


def main(
    where: Annotated[SpaceName, typer.Option(help="Space of the schedules.")] = "extended",
    tuners: Tuners = "ml2tuner,ml2tuner:share=False,default,default:share=False,estimate",
    layers: LayerNames = DEVELOPMENT,
    seeds: Seeds = 3,
    trials: Trials = 32,
    batch: Annotated[int, typer.Option(help="Trials of a round of tuners without `batch`.")] = 2,
    first: Annotated[
        str, typer.Option(help="What runs start with: none, model, or targets of earlier runs.")
    ] = NOTHING,
    first_layers: Annotated[str, typer.Option(help="Layers of the earlier runs.")] = OTHERS,
    model: Annotated[Path | None, typer.Option(help="Folder of a transfer model.")] = None,
    out: Path = Path("built/shared_models.parquet"),
    redraw: Redraw = None,
) -> None:
    """Run all tuners and print what they needed."""
    if redraw is None:
        rows: list[dict[str, Any]] = []
        if out.exists():
            held = read_rows(out).to_dict("records")
            rows = [{str(name): value for name, value in row.items()} for row in held]
        parts = ("space", "tuner", "first", "seed", "trials")
        done = {tuple(row[part] for part in parts) for row in rows}
        wanted = layers_named(layers)
        for seed in range(seeds):
            for config in parse_tuner_configs(tuners):
                for name in first.split(",") if config.explorer.shares else [NOTHING]:
                    if (where, config.label, name, seed, trials) in done:
                        continue
                    start = _start(name, where, first_layers, config, seed, trials, model)
                    about = {
                        "space": where, "tuner": config.label, "first": name, "seed": seed,
                        "trials": trials, "first_trials": start.trials,
                        "first_compiles": start.compiles,
                    }  # fmt: skip
                    made = tune_layers(
                        target_of(where), wanted, config.explorer, seed, trials, batch, start
                    )
                    rows += [
                        about | _row_of(layer, place, history)
                        for place, (layer, (_, history)) in enumerate(
                            zip(wanted, made, strict=True)
                        )
                    ]
                    out.parent.mkdir(parents=True, exist_ok=True)
                    pd.DataFrame(rows).to_parquet(out, index=False)
        redraw = out
    Console(width=170).print(table_of(read_rows(redraw)))


@lru_cache(maxsize=64)
def _start(
    name: str, where: SpaceName, layers: str, tuner: TunerConfig, seed: int, trials: int,
    model: Path | None,
) -> Start:  # fmt: skip
    """Return what a run starts with; runs the earlier run if there is one."""
    if name == NOTHING:
        return Start()
    if name == MODEL:
        if model is None:
            raise typer.BadParameter("--first model needs --model")
        return Start(model=load_model(model))
    here, there = target_of(where), make_target(name, where)
    finished = tune_layers(there, layers_named(layers), tuner.explorer, seed, trials, trials)
    state = ExplorerState()
    for task, history in finished:
        (own,) = trials_in(tuner.explorer.share(task.problem, ExplorerState(), history))
        if there.fingerprint != here.fingerprint:
            own = from_other_hardware(own, there.hardware_features(), here.hardware_features())
        state = with_trials(state, own)
    histories = [history for _, history in finished]
    return Start(state, sum(map(len, histories)), sum(map(_compiles, histories)))


def tune_layers(
    target: Target, layers: Mapping[str, Workload], explorer: Explorer, seed: int, trials: int,
    batch: int, start: Start | None = None,
) -> list[tuple[Task, History]]:  # fmt: skip
    """Tune the layers in order. Return the task of each layer with all its trials."""
    start = start or Start()
    run, state, finished = LocalRunner(), start.state, list[tuple[Task, History]]()
    if "batch" in type(explorer.options).model_fields:
        batch = trials  # its own rounds are smaller
    for place, workload in enumerate(layers.values()):
        task = make_task(target, workload, explorer, seed)
        if start.model is not None:
            prior = prior_from(start.model, task.problem)
            task = replace(task, problem=replace(task.problem, transferred=prior))
        session: Session | None = Session.start(task).with_shared(state)
        history = History.empty(task.problem.space)
        while session is not None and len(history) < trials:
            done = tune_round(run, task, session, min(batch, trials - len(history)))
            session = None if done is None else done.session
            history = history if session is None else session.history
        if place < TEACHERS:
            state = explorer.share(task.problem, state, history)
        finished.append((task, history))
    return finished


def _row_of(layer: str, place: int, history: History) -> dict[str, Any]:
    return {
        "layer": layer, "place": place,
        "cycles": np.where(history.valid, history.cycles, -1).tolist(),
        "rounds": history.rounds.tolist(), "compiles": _compiles(history),
    }  # fmt: skip


def _compiles(history: History) -> int:
    kept = 0 if history.compiled is None else len(history.compiled)
    return len(history) + len(history.failed) + kept


def read_rows(path: Path) -> pd.DataFrame:
    """Read finished rows. Runs of files without the column `first` started with nothing."""
    rows = pd.read_parquet(path)
    if "first" in rows:
        return rows
    return rows.assign(first=NOTHING, first_trials=0, first_compiles=0)


def trials_to_goal(cycles: list[int], rounds: list[int], best: int) -> int:
    """Return the trials to the end of the round that reaches the goal; all trials if none does."""
    near = [0 < each <= (1 + GOAL) * best for each in cycles]
    if not any(near):
        return len(cycles)
    reached = rounds[near.index(True)]
    return sum(each <= reached for each in rounds)


def regret_after(cycles: list[int], trials: int, best: int) -> float:
    """Return by how much the best of the first trials is above the fastest schedule."""
    valid = [each for each in cycles[:trials] if each > 0]
    return min(valid) / best - 1.0 if valid else np.nan


def table_of(rows: pd.DataFrame) -> Table:
    """Return a row per tuner: trials to the goal, and the regret after four trials."""
    cycles = [list(map(int, each)) for each in rows["cycles"]]
    fastest = [min((c for c in each if c > 0), default=10**18) for each in cycles]
    best = rows.assign(best=fastest).groupby(["space", "layer"])["best"].transform("min")
    runs = list(zip(cycles, rows["rounds"], best, strict=True))
    rows = rows.assign(
        needed=[trials_to_goal(each, list(own), least) for each, own, least in runs],
        early=[regret_after(each, 4, least) for each, _, least in runs],
        late=[regret_after(each, len(each), least) for each, _, least in runs],
    )
    table = Table(title=f"trials to {GOAL:.0%} above the fastest schedule that was found")
    columns = ("space", "tuner", "starts with", "seeds", "all layers", "range over seeds",
               "per later layer", "compiles", "regret after 4", "at the end",
               "earlier trials", "their compiles")  # fmt: skip
    for name in columns:
        table.add_column(name)
    for (space, tuner, first), own in rows.groupby(["space", "tuner", "first"], sort=False):
        sums = own.groupby("seed")["needed"].sum()
        later = own[own["place"] >= 3]["needed"]
        before = own.groupby("seed")[["first_trials", "first_compiles"]].first().mean()
        table.add_row(
            str(space), str(tuner), str(first), str(len(sums)), f"{sums.mean():.1f}",
            f"{sums.min()}-{sums.max()}", f"{later.mean():.1f}",
            f"{own.groupby('seed')['compiles'].sum().mean():.0f}",
            f"{own['early'].mean():.2%}", f"{own['late'].mean():.2%}",
            f"{before['first_trials']:.0f}", f"{before['first_compiles']:.0f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
