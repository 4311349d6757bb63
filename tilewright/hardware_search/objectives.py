"""Objectives of a co-design search besides the area: latency, energy, or their product.

A metric is a quantity that is summed over the layers of a machine: the seconds of all operators, or
the joules of the accelerator. An objective is the product of the totals of its metrics (see
`METRICS`).
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
    HasEnergy,
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
"""The metrics whose totals each objective multiplies."""
Floats = NDArray[np.float64]


def totals(design: Design, objective: Objective, layers: Floats) -> Floats:
    """Return the metrics of one inference of each network, summed over all networks.

    Operators on the CPU add to the seconds. Their energy is unknown and is not included.

    Args:
        design: the machine.
        objective: the objective whose metrics are used.
        layers: metrics per call of each layer, float array of shape (metrics, layers), in the order
            of `METRICS`.

    Returns:
        The totals over all networks, float array of shape (metrics,).
    """
    calls = np.array([layer.calls for layer in design.layers], np.float64)
    values = [
        float(design.seconds(metric_per_call).sum())
        if metric == "seconds"
        else float(calls @ metric_per_call)
        for metric, metric_per_call in zip(METRICS[objective], layers, strict=True)
    ]
    return np.array(values)


def estimated_metrics(
    target: Target, workload: Workload, configs: Configs, table: Features, objective: Objective
) -> Floats:
    """Return the metrics per call of configs, as predicted by the target's closed-form estimates.

    Args:
        target: the machine.
        workload: the layer.
        configs: knob indices, int array of shape (n, knobs).
        table: the target's estimates for the configs, one row per config.
        objective: the objective whose metrics are returned.

    Returns:
        Float array of shape (metrics, n), in the order of `METRICS`.
    """
    estimates = []
    for metric in METRICS[objective]:
        if metric == "seconds":
            estimates.append(table.total("latency") * _seconds_a_unit(target, workload))
        else:
            knows = capability(target, HasEnergy)
            assert knows is not None  # checked before the search
            estimates.append(1e-12 * knows.estimated_energy(workload, configs))
    return np.stack(estimates)


def least_joules(design: Design) -> Floats:
    """Return a lower bound on the energy of each layer of a machine.

    Args:
        design: the machine.

    Returns:
        Joules per call, float array of shape (layers,); 0 if the machine has no energy model.
    """
    knows = capability(design.target, HasEnergy)
    if knows is None:
        return np.zeros(len(design.layers))
    return np.array([1e-12 * knows.least_energy(layer.workload) for layer in design.layers])


def scale_to_latency(
    target: Target, workload: Workload, objective: Objective, costs: Floats
) -> Floats:
    """Scale costs to the magnitude of latencies, so that a tuner can minimise them as latencies.

    The costs are multiplied by a factor that maps the lower bound of the cost to the lower bound of
    the layer's latency.

    Args:
        target: the machine.
        workload: the layer.
        objective: the objective whose values are the costs.
        costs: cost per call, float array of shape (n,).

    Returns:
        The scaled costs in the unit of `Measurements.latency`, float array of shape (n,). The costs
        are returned unchanged if a bound is unknown, or if the lower bound of the cost is 0.
    """
    bound, knows = bound_of(target, workload), capability(target, HasEnergy)
    if bound is None or knows is None:
        return costs
    least = {"seconds": bound.seconds, "joules": 1e-12 * knows.least_energy(workload)}
    lowest = float(np.prod([least[metric] for metric in METRICS[objective]]))
    return costs * (bound.cost / lowest) if lowest > 0 else costs


def estimate_objective(
    target: Target, workload: Workload, configs: Configs, objective: Objective
) -> Features:
    """Return the target's closed-form estimates, with the objective in place of the latency.

    A tuner that minimises the estimated latency then minimises the objective.

    Args:
        target: the machine.
        workload: the layer.
        configs: knob indices, int array of shape (n, knobs).
        objective: the objective, which is scaled by `scale_to_latency`.

    Returns:
        The estimates, one row per config.
    """
    estimates = capability(target, Estimates)
    assert estimates is not None  # otherwise tuners get no estimates
    table = estimates.estimate(workload, configs)
    matrix = table.matrix.copy()
    costs = estimated_metrics(target, workload, configs, table, objective).prod(axis=0)
    costs = scale_to_latency(target, workload, objective, costs)
    matrix[:, table.column_indices("latency")] = costs[:, None]
    return Features(matrix, table.columns)


def _seconds_a_unit(target: Target, workload: Workload) -> float:
    """Return the factor that converts the target's estimated latencies to seconds.

    It is the duration of a cycle, or 1 if the estimates are in seconds.

    Args:
        target: the machine.
        workload: the layer.
    """
    least = bound_of(target, workload)
    return 1.0 if least is None or least.cycles < 0 else least.seconds / least.cycles
