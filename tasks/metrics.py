"""Records curves that MLflow draws over the measurements of a run. Their section is the common
first word: `cycles/best`, or `seconds/best` where no cycles are counted. Baseline, bound and
roofline are levels, equal at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tilewright.targets.capabilities import Latency
from tilewright.tasks.tracking import STEP_METRIC
from tilewright.tuning.network_totals import Total
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
    valid = trials[trials["status"] == "valid"]
    rounds = int(trials["round"].max()) + 1 if len(trials) else 0
    measured = trials.groupby("round").size().reindex(range(rounds), fill_value=0).cumsum()
    best = np.zeros(rounds)
    for each in tuned:
        mine = valid[valid["workload"] == each.workload.id]
        so_far = mine.groupby("round")[unit].min().reindex(range(rounds)).cummin().ffill()
        best += each.count * so_far.to_numpy(np.float64)
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
