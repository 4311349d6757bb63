"""Computes the curves that MLflow draws over the trials of a run.

MLflow groups curves by the first part of their names: `cycles/best`, or `seconds/best` if the
target does not count cycles. The fallback, the rule, the bound and the roofline are curves with the
same value at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from tilewright.targets.capabilities import Latency
from tilewright.tasks.tracking import STEP_METRIC
from tilewright.tuning.gains import Total, four_figures
from tilewright.tuning.results import TunedWorkload
from tilewright.tuning.run_figures import CurveLayer, network_curve, unit_of


def chart(latencies: Mapping[str, Latency | None]) -> dict[str, float]:
    """Return the values that one step adds to a workload's curves.

    Args:
        latencies: latencies by the name of their curve; None if unknown.

    Returns:
        Known latencies by metric name. They are in cycles if all of them have cycles, otherwise in
        seconds.
    """
    known = {name: latency for name, latency in latencies.items() if latency is not None}
    if all(item.cycles > 0 for item in known.values()):
        return {f"cycles/{name}": float(item.cycles) for name, item in known.items()}
    return {f"seconds/{name}": item.seconds for name, item in known.items()}


def network_curves(
    trials: pd.DataFrame, tuned: Sequence[TunedWorkload], total: Total
) -> list[dict[str, float]]:
    """Return the convergence curve of a network, together with its reference latencies.

    Args:
        trials: trials of all workloads.
        tuned: the tuned workloads.
        total: total of the network in `summary.json`, with the reference latencies.

    Returns:
        Values by metric name, one mapping per step. A trial has a step of its own only if it
        changes the latency of the network, or if it is the first or the last one.
    """
    unit = unit_of(trials)
    counted = unit == "cycles"
    layers = [
        CurveLayer(
            workload_result.workload.id,
            workload_result.count,
            four_figures(workload_result.summary()),
        )
        for workload_result in tuned
    ]
    best = network_curve(trials, layers, unit)
    levels = {
        "fallback": total["fallback_cycles"] if counted else total["fallback_seconds"],
        "rule": total["rule_cycles"] if counted else total["rule_seconds"],
        "bound": total["bound_cycles"] if counted else total["bound_seconds"],
        "roofline": total["roofline_cycles"] if counted else total["roofline_seconds"],
    }
    beside = {f"{unit}/{name}": float(value) for name, value in levels.items() if value}
    last = len(best) - 1
    return [
        {STEP_METRIC: float(k + 1), f"{unit}/best": float(best[k]), **beside}
        for k in range(len(best))
        if k in (0, last) or best[k] != best[k - 1]
    ]
