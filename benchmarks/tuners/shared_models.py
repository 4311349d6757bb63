"""Compares tuners that share Models V and A between the layers of a run with tuners that do not.

    python -m benchmarks.tuners.shared_models --tuners "ml2tuner,ml2tuner:share=False"
    python -m benchmarks.tuners.shared_models --network mobilenet_v1

Layers, or all workloads of a built-in network, are tuned one after the other on the simulator, as
by `tilewright tune NETWORK`: the trials of the first four also train the models of the others. Each
layer gets a fixed number of trials. A layer reaches its goal at the end of the first round after
which its best schedule is within 1 % of the fastest schedule that any run of the table found; the
spaces are not enumerated. A network has a second goal: its cycles, in which each layer counts as
often as it is called, are within 1 % of the sum of the fastest schedules. For this goal, all layers
have the same number of trials, up to the end of a round. Finished rows are stored in `--out` and
not repeated.

    python -m benchmarks.tuners.shared_models --layers "" --first "none,vta-pynq,evta-zcu102"

With `--first`, runs also start with the trials of an earlier run, as by `tilewright tune
--warm-start DIR`. The earlier run tunes other layers (`--first-layers`), on the same or on other
hardware. Its trials and compiles are reported in separate columns. `--first model` starts with a
transfer model (`--model`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.results import LayerNames, Redraw, Seeds, Trials, Tuners
from benchmarks.tuners.enumerated_spaces import TARGETS, SpaceName, layers_named, make_space_target
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
from tilewright.search.shared_trials import scale_to_hardware, trials_in, with_trials
from tilewright.targets import make_target
from tilewright.targets.base import Target
from tilewright.targets.workload import Workload
from tilewright.tuning.network import extract_subgraphs, import_model
from tilewright.tuning.options import TuningOptions

DEVELOPMENT = "C4,C5,C7,C8,C9,C10"
"""Layers on which options of `ml2tuner` were chosen."""
OTHERS = "alexnet,vgg16,resnet50 1,resnet50 2,mobilenet_v1,inception_v3"
"""Development layers of other networks."""
MODEL, NOTHING = "model", "none"


@dataclass(frozen=True)
class Start:
    """Data that a run starts with.

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
    network: Annotated[str, typer.Option(help="Tune this network's workloads instead.")] = "",
    seeds: Seeds = 3,
    trials: Trials = 32,
    batch: Annotated[
        int, typer.Option(help="Trials per round of tuners that have no option `batch`.")
    ] = 2,
    first: Annotated[
        str, typer.Option(help="Starts of runs: none, model, or targets of earlier runs.")
    ] = NOTHING,
    first_layers: Annotated[str, typer.Option(help="Layers of the earlier runs.")] = OTHERS,
    model: Annotated[Path | None, typer.Option(help="Folder of a transfer model.")] = None,
    out: Path = Path("built/shared_models.parquet"),
    redraw: Redraw = None,
) -> None:
    """Run all tuners and print how many trials they needed."""
    if redraw is None:
        rows: list[dict[str, Any]] = []
        if out.exists():
            held = read_rows(out).to_dict("records")
            rows = [{str(name): value for name, value in row.items()} for row in held]
        parts = ("space", "tuner", "first", "seed", "trials")
        done = {tuple(row[part] for part in parts) for row in rows}
        workloads = workloads_of(where, network) if network else counted(layers)
        for seed in range(seeds):
            for config in parse_tuner_configs(tuners):
                for name in first.split(",") if config.explorer.shares else [NOTHING]:
                    if (where, config.label, name, seed, trials) in done:
                        continue
                    start = _make_start(name, where, first_layers, config, seed, trials, model)
                    about = {
                        "space": where, "tuner": config.label, "first": name, "seed": seed,
                        "trials": trials, "first_trials": start.trials,
                        "first_compiles": start.compiles,
                    }  # fmt: skip
                    finished = tune_layers(
                        make_space_target(where), [workload for workload, _ in workloads.values()],
                        config.explorer, seed, trials, batch, start,
                    )  # fmt: skip
                    for place, (layer, (_, history)) in enumerate(
                        zip(workloads, finished, strict=True)
                    ):
                        count = workloads[layer][1]
                        rows.append(about | _make_row(layer, place, count, history))
                    out.parent.mkdir(parents=True, exist_ok=True)
                    pd.DataFrame(rows).to_parquet(out, index=False)
        redraw = out
    Console(width=190).print(table_of(read_rows(redraw)))


Counted = Mapping[str, tuple[Workload, int]]
"""Workloads by name, each with the number of its calls per inference."""


def counted(layers: str) -> Counted:
    """Return the named layers, each with one call per inference."""
    return {name: (workload, 1) for name, workload in layers_named(layers).items()}


def workloads_of(where: SpaceName, network: str) -> Counted:
    """Return the workloads of a network that `tilewright tune` would tune, in order of first use.

    Args:
        where: the space, which determines the target.
        network: name of a built-in network.
    """
    options = TuningOptions(model=network, target=TARGETS[where])
    model = import_model(network, {})
    found = extract_subgraphs(
        model, make_space_target(where), options.epilogue_mode, options.max_waste, {}
    )
    return {
        f"{place}: {each.workload}": (each.workload, each.count)
        for place, each in enumerate(found.subgraphs)
    }


@lru_cache(maxsize=64)
def _make_start(
    name: str, where: SpaceName, layers: str, tuner: TunerConfig, seed: int, trials: int,
    model: Path | None,
) -> Start:  # fmt: skip
    """Return the data that a run starts with, after making the earlier run if there is one."""
    if name == NOTHING:
        return Start()
    if name == MODEL:
        if model is None:
            raise typer.BadParameter("--first model needs --model")
        return Start(model=load_model(model))
    here, there = make_space_target(where), make_target(name, where)
    workloads = list(layers_named(layers).values())
    finished = tune_layers(there, workloads, tuner.explorer, seed, trials, trials)
    state = ExplorerState()
    for task, history in finished:
        (shared,) = trials_in(tuner.explorer.share(task.problem, ExplorerState(), history))
        if there.fingerprint != here.fingerprint:
            shared = scale_to_hardware(shared, there.hardware_features(), here.hardware_features())
        state = with_trials(state, shared)
    histories = [history for _, history in finished]
    return Start(state, sum(map(len, histories)), sum(map(_count_compiles, histories)))


def tune_layers(
    target: Target, workloads: Sequence[Workload], explorer: Explorer, seed: int, trials: int,
    batch: int, start: Start | None = None,
) -> list[tuple[Task, History]]:  # fmt: skip
    """Tune the layers in order. Return the task of each layer with all its trials."""
    start = start or Start()
    run, state, finished = LocalRunner(), start.state, list[tuple[Task, History]]()
    if "batch" in type(explorer.options).model_fields:
        batch = trials  # its own rounds are smaller
    for place, workload in enumerate(workloads):
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


def _make_row(layer: str, place: int, count: int, history: History) -> dict[str, Any]:
    """Return the row of a tuned layer, without the columns that describe the run."""
    return {
        "layer": layer, "place": place, "count": count, "rounds": history.rounds.tolist(),
        "cycles": np.where(history.valid, history.cycles, -1).tolist(),
        "compiles": _count_compiles(history),
    }  # fmt: skip


def _count_compiles(history: History) -> int:
    kept = 0 if history.compiled is None else len(history.compiled)
    return len(history) + len(history.failed) + kept


def read_rows(path: Path) -> pd.DataFrame:
    """Read finished rows. In files without the column `first`, runs started with nothing."""
    rows = pd.read_parquet(path)
    if "first" in rows:
        return rows
    return rows.assign(first=NOTHING, first_trials=0, first_compiles=0)


def trials_to_goal(cycles: list[int], rounds: list[int], best: int) -> int:
    """Return the trials to the end of the round that reaches the goal.

    If no round reaches the goal, all trials count.
    """
    near = [0 < each <= (1 + GOAL) * best for each in cycles]
    if not any(near):
        return len(cycles)
    reached = rounds[near.index(True)]
    return sum(each <= reached for each in rounds)


def regret_after(cycles: list[int], trials: int, best: int) -> float:
    """Return the relative excess of the best of the first trials over the fastest schedule."""
    valid = [each for each in cycles[:trials] if each > 0]
    return min(valid) / best - 1.0 if valid else np.nan


def network_trials(
    cycles: Sequence[list[int]], rounds: Sequence[list[int]], best: Sequence[int],
    counts: Sequence[int],
) -> int | None:  # fmt: skip
    """Return the trials of all layers until the network reaches the goal.

    All layers have the same budget of trials. It grows until the sum of their best cycles is within
    the goal's tolerance of the sum of their fastest schedules. A round counts as soon as all its
    trials are within the budget.

    Args:
        cycles: cycles of each layer's trials, in order; at most 0 for an invalid trial.
        rounds: the round of each trial, per layer, ascending.
        best: cycles of the fastest schedule of each layer.
        counts: number of calls of each layer.

    Returns:
        The number of trials; None if the goal is not reached.
    """
    goal = (1 + GOAL) * float(np.dot(best, counts))
    curves = [_best_after_rounds(*layer) for layer in zip(cycles, rounds, strict=True)]
    for budget in range(1, max(map(len, cycles)) + 1):
        spent, latency = 0, 0.0
        for ends, reached, count in zip(*zip(*curves, strict=True), counts, strict=True):
            place = int(np.searchsorted(ends, budget, side="right")) - 1
            spent += int(ends[place]) if place >= 0 else 0
            latency += count * (reached[place] if place >= 0 else np.inf)
        if latency <= goal:
            return spent
    return None


def _best_after_rounds(
    cycles: list[int], rounds: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the number of trials and the fewest cycles after each round."""
    ends = np.flatnonzero(np.diff(rounds, append=rounds[-1] + 1)) + 1
    valid = np.where(np.array(cycles) > 0, np.array(cycles, float), np.inf)
    return ends, np.minimum.accumulate(valid)[ends - 1]


def table_of(rows: pd.DataFrame) -> Table:
    """Return a table with one row per tuner and start: trials to the goal, and regrets.

    The trials until the whole network reaches the goal are the mean over seeds, with the range. A
    seed that does not reach the goal counts with all its trials; the mean is then marked with "≥".
    """
    rows = rows.assign(count=rows.get("count", 1))
    cycles = [list(map(int, cycle)) for cycle in rows["cycles"]]
    fastest = [min((c for c in cycle if c > 0), default=10**18) for cycle in cycles]
    best = rows.assign(best=fastest).groupby(["space", "layer"])["best"].transform("min")
    runs = list(zip(cycles, rows["rounds"], best, strict=True))
    rows = rows.assign(
        best=best,
        needed=[trials_to_goal(item, list(own), least) for item, own, least in runs],
        one=[regret_after(item, 1, least) for item, _, least in runs],
        early=[regret_after(item, 4, least) for item, _, least in runs],
        late=[regret_after(item, len(item), least) for item, _, least in runs],
    )
    table = Table(title=f"trials to {GOAL:.0%} above the fastest schedule that was found")
    columns = (
        "space", "tuner", "starts with", "seeds", "all layers", "range over seeds",
        "per later layer", "whole network", "compiles", "regret after 1", "after 4", "at the end",
        "earlier trials", "earlier compiles",
    )  # fmt: skip
    for name in columns:
        table.add_column(name)
    for (space, tuner, first), group in rows.groupby(["space", "tuner", "first"], sort=False):
        sums = group.groupby("seed")["needed"].sum()
        later = group[group["place"] >= 3]["needed"]
        reached = [
            network_trials(
                [list(map(int, each)) for each in one["cycles"]],
                [list(map(int, each)) for each in one["rounds"]],
                list(one["best"]),
                list(one["count"]),
            )
            for _, one in group.groupby("seed")
        ]
        spent = group["cycles"].map(len).groupby(group["seed"]).sum()
        whole = [
            total if each is None else each for each, total in zip(reached, spent, strict=True)
        ]
        earlier = group.groupby("seed")[["first_trials", "first_compiles"]].first().mean()
        mark = "≥" if None in reached else ""
        table.add_row(
            str(space), str(tuner), str(first), str(len(sums)), f"{sums.mean():.1f}",
            f"{sums.min()}-{sums.max()}", f"{later.mean():.1f}",
            f"{mark}{np.mean(whole):.1f} ({min(whole)}-{max(whole)})",
            f"{group.groupby('seed')['compiles'].sum().mean():.0f}",
            f"{group['one'].mean():.2%}", f"{group['early'].mean():.2%}",
            f"{group['late'].mean():.2%}",
            f"{earlier['first_trials']:.0f}", f"{earlier['first_compiles']:.0f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
