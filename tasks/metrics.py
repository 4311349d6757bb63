"""Records curves that MLflow draws over the measurements of a run. Their section is the common
first word: `cycles/best`, or `seconds/best` where no cycles are counted. Fallback, rule, bound and
roofline are levels, equal at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from tilewright.targets.capabilities import Latency
from tilewright.tasks.tracking import STEP_METRIC
from tilewright.tuning.gains import Total
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_figures import network_best_so_far, unit_of


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
    unit = unit_of(trials)
    counted = unit == "cycles"
    counts = {each.workload.id: each.count for each in tuned}
    measured, best = network_best_so_far(trials, counts, unit)
    levels = {
        "fallback": total["fallback_cycles"] if counted else total["fallback_seconds"],
        "rule": total["rule_cycles"] if counted else total["rule_seconds"],
        "bound": total["bound_cycles"] if counted else total["bound_seconds"],
        "roofline": total["roofline_cycles"] if counted else total["roofline_seconds"],
    }
    beside = {f"{unit}/{name}": float(value) for name, value in levels.items() if value}
    return [
        {STEP_METRIC: float(count), f"{unit}/best": float(value), **beside}
        for count, value in zip(measured, best, strict=True)
    ]
