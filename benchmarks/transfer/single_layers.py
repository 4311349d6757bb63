"""Tunes single layers to a given latency, with a transfer model and with controls.

This module is a part of `benchmarks.transfer.compare`, and the short form of
`benchmarks.transfer.whole_networks`: it tunes random layers of the same networks on the same
targets. The goal of a layer is the latency that the tuner `board` reaches in 64 trials, as the
median over seeds. All other tuners measure two programs per round. Their trials are counted up to
the end of the round that reaches the goal; they are 64 if no round reaches it. The 95 % intervals
resample pairs of layer and machine, and seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.intervals import Floats, hierarchical
from benchmarks.results import KeptRows
from benchmarks.transfer.controls import controls
from benchmarks.transfer.whole_networks import (
    BOARD,
    NETWORKS,
    TARGETS,
    TRIALS,
    TUNERS,
    Tuner,
    Unit,
    layers_of,
    perform,
)
from tilewright.tuning.network import Subgraph

WARM, FORMULA = "warm, scheduled by 2", "formula, scheduled by 2"
COMPARED = (WARM, FORMULA, "shuffled, scheduled by 2", "cold, equal compiles")
CLAIMED_SHARE, CLAIMED_FACTOR = 0.1, 2.0

Row = Mapping[str, Any]


def measure(options: argparse.Namespace, rows: KeptRows) -> None:
    """Make all runs seed by seed, so that a stopped benchmark has complete seeds."""
    models = {"": options.model} | controls(options)
    tuners = [next(tuner for tuner in TUNERS if tuner.name == name) for name in COMPARED]
    layers = list(_draw_pairs(options))
    for seed, (target, layer) in product(range(options.seeds), layers):
        _tune(rows, models, target, layer, seed, BOARD, 0.0)
    goals = _goals(rows.rows["layers"])
    for seed, (target, layer), tuner in product(range(options.seeds), layers, tuners):
        goal = goals[target, str(Subgraph.from_json(layer).workload)]
        _tune(rows, models, target, layer, seed, tuner, goal)


def _draw_pairs(options: argparse.Namespace) -> Iterable[tuple[str, dict[str, Any]]]:
    targets = options.targets.split(",") if options.targets else TARGETS
    networks = options.networks.split(",") if options.networks else NETWORKS
    for target in targets:
        every = {
            str(Subgraph.from_json(layer).workload): layer
            for name in networks
            for layer in layers_of(target, name)
        }
        order = np.random.default_rng(0).permutation(len(every))
        yield from ((target, list(every.values())[place]) for place in order[: options.layers])


def _tune(
    rows: KeptRows, models: Mapping[str, Any], target: str, layer: dict[str, Any], seed: int,
    tuner: Tuner, goal: float,
) -> None:  # fmt: skip
    name = str(Subgraph.from_json(layer).workload)
    key = {"target": target, "layer": name, "seed": seed, "tuner": tuner.name}
    if rows.has("layers", **key):
        return
    unit = partial(Unit, target, name, seed, tuner, str(models[tuner.control]), (layer,))
    row = perform(unit(goal=goal))
    kept = ("trials", "cycles", "goal", "compiled", "processor_seconds")
    rows.keep("layers", key | {name: row[name] for name in kept})


def _goals(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    boards: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["tuner"] == BOARD.name:
            boards.setdefault((row["target"], row["layer"]), []).append(row["cycles"])
    return {pair: float(np.median(cycles)) for pair, cycles in boards.items()}


def trials(rows: Sequence[Row], tuner: str) -> Floats:
    """Return the trials of each run until the goal, `TRIALS` if it is not reached.

    Args:
        rows: rows of the seeds that all pairs and tuners have.
        tuner: name of the tuner.

    Returns:
        Array of shape (pairs, seeds).
    """
    pairs = list(_goals(rows))
    seeds = sorted({row["seed"] for row in rows})
    grid = np.full((len(pairs), len(seeds)), float(TRIALS))
    for row in rows:
        if row["tuner"] == tuner and row["cycles"] <= row["goal"]:
            place = pairs.index((row["target"], row["layer"])), seeds.index(row["seed"])
            grid[place] = row["trials"]
    return grid


def summary(rows: Sequence[Row]) -> str:
    """Return a summary with one line per tuner.

    A line has the trials to the goal as a fraction of the board's 64, the ratio of these trials to
    those of the warm start, and the number of pairs on which the warm start needs at most half as
    many trials.
    """
    rows = _whole_seeds(rows)
    if not rows:
        return "no seed is complete: start the same command again to resume"
    pairs, seeds = len(_goals(rows)), len({row["seed"] for row in rows})
    warm, lines = trials(rows, WARM), [f"{pairs} pairs of layer and machine, {seeds} seeds"]
    for name in COMPARED:
        own = trials(rows, name)
        share = hierarchical(lambda item: item.mean(axis=(-2, -1)) / TRIALS, own)
        fewer = hierarchical(_factor, own, warm, paired=True)
        half = own.mean(axis=1) >= CLAIMED_FACTOR * warm.mean(axis=1)
        mine = [row for row in rows if row["tuner"] == name]
        came = sum(row["cycles"] <= row["goal"] for row in mine)
        made = sum(row["compiled"] + row["trials"] for row in mine) / sum(r["trials"] for r in mine)
        lines.append(
            f"{name:26} {share} of the trials; {fewer.text(2, '-')}"
            f" times the warm start's, at least twice on {half.sum()} of {len(half)} pairs; {came} "
            f"of {len(mine)} came there; {made:.0f} programs a trial"
        )
    return "\n".join(lines)


def _whole_seeds(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the seeds with which every tuner ran on every pair."""
    runs_per_seed = len(_goals(rows)) * (1 + len(COMPARED))
    counts = Counter(row["seed"] for row in rows)
    return [row for row in rows if counts[row["seed"]] == runs_per_seed]


def _factor(mine: Floats, warm: Floats) -> Floats:
    """Return the geometric mean over pairs of ratios of means over seeds.

    Arrays have the shape (..., pairs, seeds).
    """
    ratio = mine.mean(axis=-1) / warm.mean(axis=-1)
    return np.asarray(np.exp(np.log(ratio).mean(axis=-1)))
