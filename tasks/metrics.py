"""Curves of a run over its measurements, for MLflow.

MLflow groups curves by the first word of their names: `cycles/best`, or `seconds/best` if no cycles
are counted. Baseline, bound and roofline are constant at all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from tilewright.targets.capabilities import Latency
from tilewright.tasks.tracking import STEP_METRIC
from tilewright.tuning.gains import Total
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_figures import network_best_so_far, unit_of


def chart(latencies: Mapping[str, Latency | None]) -> dict[str, float]:
    """Return one step of a workload's curves, of all known latencies."""
    known = {name: each for name, each in latencies.items() if each is not None}
    if all(each.cycles > 0 for each in known.values()):
        return {f"cycles/{name}": float(each.cycles) for name, each in known.items()}
    return {f"seconds/{name}": each.seconds for name, each in known.items()}


def network_curves(
    trials: pd.DataFrame, tuned: Sequence[TunedWorkload], total: Total
) -> list[dict[str, float]]:
    """Return the curves of a whole network, one step per round.

    The latency of a step is that of an inference: the best latency of each workload times its
    count. It is NaN until each workload has a valid trial. Steps are numbered by the measurements
    of all workloads.

    Args:
        trials: trials of all workloads.
        tuned: the tuned workloads.
        total: total latencies of the network.
    """
    unit = unit_of(trials)
    counted = unit == "cycles"
    counts = {each.workload.id: each.count for each in tuned}
    measured, best = network_best_so_far(trials, counts, unit)
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
