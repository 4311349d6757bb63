"""Records curves that MLflow draws over the measurements of a run. Their section is the common
first word: `cycles/best`, or `seconds/best` where no cycles are counted. Baseline, bound and
roofline are levels, equal at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tilewright.targets.capabilities import Latency
from tilewright.tasks.tracking import STEP_METRIC
from tilewright.tuning.gains import Total
from tilewright.tuning.results import TunedWorkload


def chart(latencies: Mapping[str, Latency | None]) -> dict[str, float]:
    """A step of one workload's curves, of what is known."""
    known = {name: each for name, each in latencies.items() if each is not None}
    if all(each.cycles > 0 for each in known.values()):
        return {f"cycles/{name}": float(each.cycles) for name, each in known.items()}
    return {f"seconds/{name}": each.seconds for name, each in known.items()}


def network_curves(
    trials: pd.DataFrame, tuned: Sequence[TunedWorkload], total: Total
) -> list[dict[str, float]]:
    """The same of all workloads together, each as often as an inference runs it: a step a round,
    NaN until each has a valid trial. The measurements up to it are those of all workloads."""
    counted = bool((trials["cycles"] > 0).any())
    unit = "cycles" if counted else "seconds"
    counts = {each.workload.id: each.count for each in tuned}
    measured, best = best_so_far(trials, counts, unit)
    levels = {
        "baseline": total["baseline_cycles"] if counted else total["baseline_seconds"],
        "bound": total["bound_cycles"] if counted else total["bound_seconds"],
        "roofline": total["roofline_cycles"] if counted else total["roofline_seconds"],
    }
    beside = {f"{unit}/{name}": float(value) for name, value in levels.items() if value}
    return [
        {STEP_METRIC: float(count), f"{unit}/best": float(value), **beside}
        for count, value in zip(measured, best, strict=True)
    ]


def best_so_far(
    trials: pd.DataFrame, counts: Mapping[str, int], unit: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """After each round the measurements of all workloads and the best of an inference, each shape
    (rounds,): the column `unit` of each workload's best valid trial times its count; NaN until each
    has one."""
    rounds = np.unique(trials["round"])
    measured = np.asarray(trials.groupby("round").size().cumsum(), np.int64)
    valid = trials[trials["status"] == "valid"]
    best = np.zeros(len(rounds))
    for workload, count in counts.items():
        mine = valid[valid["workload"] == workload]
        so_far = mine.groupby("round")[unit].min().reindex(rounds).cummin().ffill()
        best += count * so_far.to_numpy(np.float64)
    return measured, best
