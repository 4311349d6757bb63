"""Defines what a search minimises beside the area: seconds, joules, or the product of both totals.

A metric adds up over the layers of a machine: seconds, or joules of the accelerator. An objective
is the product of the totals of its metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.options import Objective
from tilewright.targets.base import Configs, Target
from tilewright.targets.capabilities import (
    Estimates,
    EstimatesEnergy,
    bound_of,
    capability,
)
from tilewright.targets.features import Features
from tilewright.targets.workload import Workload

if TYPE_CHECKING:
    from tilewright.hardware_search.problem import Design

Metric = Literal["seconds", "joules"]
METRICS: Mapping[Objective, tuple[Metric, ...]] = {
    "latency": ("seconds",),
    "energy": ("joules",),
    "edp": ("seconds", "joules"),
}
"""What each objective multiplies."""
Floats = NDArray[np.float64]


def totals(design: Design, objective: Objective, layers: Floats) -> Floats:
    """Metrics of one inference of each network, shape (metrics,), from those a call, shape
    (metrics, layers). What stays on the CPU takes seconds; its joules are not known."""
    calls = np.array([layer.calls for layer in design.layers], np.float64)
    found = [
        float(design.seconds(own).sum()) if metric == "seconds" else float(calls @ own)
        for metric, own in zip(METRICS[objective], layers, strict=True)
    ]
    return np.array(found)


def estimated_metrics(
    target: Target, workload: Workload, configs: Configs, table: Features, objective: Objective
) -> Floats:
    """Of a call by each config (n, knobs), shape (metrics, n); `table` is what the target estimates
    of them, a row each."""
    found = []
    for metric in METRICS[objective]:
        if metric == "seconds":
            found.append(table.total("latency") * _seconds_a_unit(target, workload))
        else:
            knows = capability(target, EstimatesEnergy)
            assert knows is not None  # checked before the search
            found.append(1e-12 * knows.estimated_energy(workload, configs))
    return np.stack(found)


def least_joules(design: Design) -> Floats:
    """What no schedule of each layer goes below, in joules a call, shape (layers,)."""
    knows = capability(design.target, EstimatesEnergy)
    if knows is None:
        return np.zeros(len(design.layers))
    return np.array([1e-12 * knows.least_energy(layer.workload) for layer in design.layers])


def as_latency(target: Target, workload: Workload, objective: Objective, costs: Floats) -> Floats:
    """Objectives of a call, shape (n,), in the unit of `Measurements.latency`: scaled so that the
    least there can be is the layer's bound. Models of a tuner expect numbers of that size."""
    bound, knows = bound_of(target, workload), capability(target, EstimatesEnergy)
    if bound is None or knows is None:
        return costs
    least = {"seconds": bound.seconds, "joules": 1e-12 * knows.least_energy(workload)}
    lowest = float(np.prod([least[metric] for metric in METRICS[objective]]))
    return costs * (bound.cost / lowest) if lowest > 0 else costs


def priced(target: Target, workload: Workload, configs: Configs, objective: Objective) -> Features:
    """A target's estimates of configs (n, knobs), with the objective of a call (`as_latency`) in
    the place of its latency."""
    estimates = capability(target, Estimates)
    assert estimates is not None  # else a tuner is given none
    table = estimates.estimate(workload, configs)
    matrix = table.matrix.copy()
    costs = estimated_metrics(target, workload, configs, table, objective).prod(axis=0)
    costs = as_latency(target, workload, objective, costs)
    matrix[:, table.places("latency")] = costs[:, None]
    return Features(matrix, table.columns)


def _seconds_a_unit(target: Target, workload: Workload) -> float:
    """Of `Measurements.latency`: a cycle where cycles are counted."""
    least = bound_of(target, workload)
    return 1.0 if least is None or least.cycles < 0 else least.seconds / least.cycles
