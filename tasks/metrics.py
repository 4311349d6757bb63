"""Records curves that MLflow draws over the measurements of a run.

Their section is the common first word: `cycles/best`, or `seconds/best` where no cycles are
counted. Fallback, rule, bound and roofline are levels, equal at every step.
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
    """Return the values that one step adds to a workload's curves: all known latencies.

    Args:
        latencies: latencies by the name of their curve; None if unknown.
    """
    known = {name: latency for name, latency in latencies.items() if latency is not None}
    if all(item.cycles > 0 for item in known.values()):
        return {f"cycles/{name}": float(item.cycles) for name, item in known.items()}
    return {f"seconds/{name}": item.seconds for name, item in known.items()}


def network_curves(
    trials: pd.DataFrame, tuned: Sequence[TunedWorkload], total: Total
) -> list[dict[str, float]]:
    """Return the convergence curve of a network, one step per trial of all workloads.

    Each step also has the reference levels (`tuning.run_figures.network_curve`). A trial that
    changes nothing has no step of its own, except the first and the last.
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
