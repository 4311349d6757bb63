"""Compares tuners that share Models V and A over the layers of a run with tuners that do not.

    python -m benchmarks.tuners.shared_models --tuners "ml2tuner,ml2tuner:share=False"
    python -m benchmarks.tuners.shared_models --network mobilenet_v1

Layers, or all workloads of a built-in network, are tuned one after the other on the simulator, as
`tilewright tune NETWORK` does: the first four teach the others. A run of a layer has a fixed number
of trials. It has reached the goal at the end of the round that is first within 1 % of the fastest
schedule that any run of the table found; the spaces are not enumerated. For a network there is a
second goal: its cycles, with each layer counted as often as it is called, are within 1 % of the sum
of the fastest schedules. All layers then have the same number of trials, up to the end of a round.
Finished rows are kept in --out and not repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tilewright.search import ExplorerState, History, LocalRunner, Session, make_task
from tilewright.targets.workload import Workload
from tilewright.tuning.network import extract_subgraphs, import_model
from tilewright.tuning.options import TuningOptions

DEVELOPMENT = "C4,C5,C7,C8,C9,C10"
"""Layers that options of `ml2tuner` were chosen on."""


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
        workloads = workloads_of(where, network) if network else counted(layers)
        for seed in range(seeds):
            for config in parse_tuner_configs(tuners):
                if (config.label, seed, trials, where) in done:
                    continue
                rows += _run(where, workloads, config, seed, trials, batch)
                out.parent.mkdir(parents=True, exist_ok=True)
                pd.DataFrame(rows).to_parquet(out, index=False)
        redraw = out
    Console(width=150).print(table_of(pd.read_parquet(redraw)))


Counted = Mapping[str, tuple[Workload, int]]
"""Workloads by name, each with the number of its calls per inference."""


def counted(layers: str) -> Counted:
    """Return the named layers, each called once."""
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


def _run(
    where: SpaceName, workloads: Counted, tuner: TunerConfig, seed: int, trials: int, batch: int
) -> list[dict[str, Any]]:
    """Tune the layers in order. Return a row per layer."""
    target, run, state, rows = make_space_target(where), LocalRunner(), ExplorerState(), []
    if "batch" in type(tuner.explorer.options).model_fields:
        batch = trials  # its own rounds are smaller
    for place, (name, (workload, count)) in enumerate(workloads.items()):
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
                "place": place, "count": count, "rounds": history.rounds.tolist(),
                "cycles": np.where(history.valid, history.cycles, -1).tolist(),
                "compiles": len(history) + len(history.failed) + kept,
            }
        )  # fmt: skip
    return rows


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


def network_trials(
    cycles: Sequence[list[int]], rounds: Sequence[list[int]], best: Sequence[int],
    counts: Sequence[int],
) -> int | None:  # fmt: skip
    """Return the trials of all layers until the network reaches the goal.

    All layers have the same budget of trials, which grows until the sum of their best cycles is
    near the sum of their fastest schedules. A round counts once all its trials are in the budget.

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
    """Return the number of trials after each round, and the fewest cycles until then."""
    ends = np.flatnonzero(np.diff(rounds, append=rounds[-1] + 1)) + 1
    valid = np.where(np.array(cycles) > 0, np.array(cycles, float), np.inf)
    return ends, np.minimum.accumulate(valid)[ends - 1]


def table_of(rows: pd.DataFrame) -> Table:
    """Return a row per tuner: trials to the goal, and the regret after four trials.

    The trials until the whole network reaches the goal are the mean over seeds, with their range.
    A seed that does not reach it counts all its trials, and the mean is marked by "≥".
    """
    rows = rows.assign(count=rows.get("count", 1))
    cycles = [list(map(int, cycle)) for cycle in rows["cycles"]]
    fastest = [min((c for c in cycle if c > 0), default=10**18) for cycle in cycles]
    best = rows.assign(best=fastest).groupby(["space", "layer"])["best"].transform("min")
    runs = list(zip(cycles, rows["rounds"], best, strict=True))
    rows = rows.assign(
        best=best,
        needed=[trials_to_goal(item, list(own), least) for item, own, least in runs],
        early=[regret_after(item, 4, least) for item, _, least in runs],
        late=[regret_after(item, len(item), least) for item, _, least in runs],
    )
    table = Table(title=f"trials to {GOAL:.0%} above the fastest schedule that was found")
    columns = ("space", "tuner", "seeds", "all layers", "range over seeds", "per later layer",
               "whole network", "compiles", "regret after 4", "at the end")  # fmt: skip
    for name in columns:
        table.add_column(name)
    for (space, tuner), group in rows.groupby(["space", "tuner"], sort=False):
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
        mark = "≥" if None in reached else ""
        table.add_row(
            str(space), str(tuner), str(len(sums)), f"{sums.mean():.1f}",
            f"{sums.min()}-{sums.max()}", f"{later.mean():.1f}",
            f"{mark}{np.mean(whole):.1f} ({min(whole)}-{max(whole)})",
            f"{group.groupby('seed')['compiles'].sum().mean():.0f}",
            f"{group['early'].mean():.2%}", f"{group['late'].mean():.2%}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
