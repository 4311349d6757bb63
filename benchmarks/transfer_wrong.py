"""Measures what a wrong model costs, in rounds of `--batch` trials.

Layers are tuned with a model that says the opposite, with one trained on shuffled labels, and
without. Counted are trials until a layer is as fast, and within 1 % of the best any run found. A
part of `benchmarks.transfer`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.intervals import RESAMPLES
from benchmarks.transfer_controls import controls
from benchmarks.transfer_tuning import NETWORKS, TARGETS, TRIALS, layers_of
from tilewright.flows.tuning import tune_session
from tilewright.models import make_explorer
from tilewright.models.transfer.prior import prior_from
from tilewright.models.transfer.registry import load_model
from tilewright.search.problem import Belief, TransferredPrior
from tilewright.search.task import GivenTask, problem_of
from tilewright.targets.base import Configs
from tilewright.targets.features import Features
from tilewright.targets.registry import make_target
from tilewright.targets.workload import Workload
from tilewright.tuning.network import Subgraph

if TYPE_CHECKING:
    from benchmarks.transfer_rows import Found

NEAR = (1.01, 1.0)


def measure(options: argparse.Namespace, found: Found) -> None:
    """Layers of the first target, drawn from all networks."""
    target = (options.targets.split(",") if options.targets else TARGETS)[0]
    wrong = controls(options)["shuffled"]
    every = [
        Subgraph.from_json(each).workload for name in NETWORKS for each in layers_of(target, name)
    ]
    drawn = np.random.default_rng(0).permutation(len(every))[: 3 if options.quick else 12]
    for place in drawn:
        for seed in range(options.seeds):
            key = {
                "target": target, "layer": str(every[place]), "seed": seed, "batch": options.batch,
            }  # fmt: skip
            if not found.has("wrong", **key):
                runs = _wrong_runs(target, every[place], seed, options.model, wrong, options.batch)
                found.keep("wrong", key | runs)


def _wrong_runs(
    target: str, workload: Workload, seed: int, right: Path, shuffled: Path, batch: int
) -> dict[str, Any]:
    """The best latency after each trial, without a model and with wrong ones."""
    here = make_target(target)
    found: dict[str, Any] = {}
    for name in ("none", "opposite", "shuffled"):
        problem = problem_of(here, workload, seed)
        if name != "none":
            ask = prior_from(load_model(shuffled if name == "shuffled" else right), problem)
            problem = replace(problem, transferred=_opposite(ask) if name == "opposite" else ask)
        task = GivenTask(here, make_explorer("default-blind", {}), problem)
        session = tune_session(task, TRIALS, batch)
        latency = np.nan_to_num(session.history.latency, nan=np.inf)
        found[name] = [
            None if np.isinf(best) else float(best) for best in np.minimum.accumulate(latency)
        ]
    return found


def _opposite(ask: TransferredPrior) -> TransferredPrior:
    def said(configs: Configs, hidden: Features | None) -> Belief:
        belief = ask(configs, hidden)
        return replace(belief, log_latency=-belief.log_latency)

    return said


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """By the size of rounds, `_of_rounds`."""
    sizes = sorted({row["batch"] for row in rows})
    return "\n".join(
        f"rounds of {size}:\n" + _of_rounds([row for row in rows if row["batch"] == size])
        for size in sizes
    )


def _of_rounds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Trials with a wrong model, of how many without, by sums over layers and seeds, until a layer
    is within 1 % of the best that any run found, and until it is as fast; a run that does not come
    there counts all its trials."""
    names = ("none", "opposite", "shuffled")
    best: dict[str, float] = {}
    for row in rows:
        known = [row[name][-1] for name in names if row[name][-1] is not None]
        best[row["layer"]] = min([best.get(row["layer"], np.inf), *known])
    lines = []
    drawn = np.random.default_rng(0).integers(0, len(rows), (RESAMPLES, len(rows)))
    for near in NEAR:
        counts = {
            name: np.array([_reached(row[name], near * best[row["layer"]]) for row in rows])
            for name in names
        }
        for name in names[1:]:
            ratio = counts[name].sum() / counts["none"].sum()
            low, high = np.percentile(
                counts[name][drawn].sum(axis=1) / counts["none"][drawn].sum(axis=1), [2.5, 97.5]
            )
            means = f"{counts[name].mean():.1f} and {counts['none'].mean():.1f} of {TRIALS}"
            lines.append(
                f"{name:10} to within {near - 1:.0%}: {ratio:.2f} x ({low:.2f}-{high:.2f}) the "
                f"trials without a model ({means})"
            )
    return "\n".join(lines)


def _reached(best: Iterable[float | None], goal: float) -> int:
    found = list(best)
    hits = [k for k, each in enumerate(found) if each is not None and each <= goal]
    return hits[0] + 1 if hits else len(found)
