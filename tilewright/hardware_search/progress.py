"""Progress of a co-design search: one event per measurement, for the terminal, charts and logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.hardware_search.evaluator import EvaluatedPoint
from tilewright.hardware_search.objectives import totals
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.pareto import hypervolume, pareto_rows, reference_of
from tilewright.hardware_search.problem import CodesignProblem
from tilewright.search.events import Event


@dataclass(frozen=True)
class Prepared(Event):
    """Event that is emitted when the networks were read and the machines were listed.

    Attributes:
        networks: names of the networks.
        machines: number of machines within the bounds and the budget.
        trials: maximum number of measurements.
    """

    networks: tuple[str, ...]
    machines: int
    trials: int


@dataclass(frozen=True)
class SearchProgress(Event):
    """Event that is emitted after each measurement.

    Attributes:
        trials: number of measurements so far.
        machines: number of machines that were measured so far.
        latency: lowest latency of a machine so far, in seconds, summed over the networks; infinite
            if there is no machine on which every layer has a valid trial.
        front: number of machines on the Pareto front of area and objective.
        hypervolume: hypervolume of that front.
    """

    trials: int
    machines: int
    latency: float
    front: int
    hypervolume: float


class ProgressCount:
    """Computes the progress of a search from its measurements.

    Args:
        problem: the co-design problem, from which the reference point of the hypervolume follows.
        objective: the objective that is minimised besides the area.
    """

    def __init__(self, problem: CodesignProblem, objective: Objective = "latency") -> None:
        self.reference, self.objective = reference_of(problem, objective), objective
        self._seconds: dict[int, dict[str, float]] = {}  # by machine and layer ID
        self._metrics: dict[int, dict[str, tuple[float, ...]]] = {}  # of the cheapest trial
        self._points: dict[int, tuple[float, float]] = {}
        self._now = SearchProgress(0, 0, np.inf, 0, 0.0)

    def add(self, measured: EvaluatedPoint) -> SearchProgress:
        """Add a measurement, and return the progress after it.

        Args:
            measured: the measurement.
        """
        design, key, now = measured.design, measured.workload.id, self._now
        seconds = self._seconds.setdefault(design.row, {})
        metrics = self._metrics.setdefault(design.row, {})
        latency, front, volume = now.latency, now.front, now.hypervolume
        if measured.found.status == "valid":
            whole = len(seconds | {key: 0.0}) == len(design.layers)
            if measured.found.seconds < seconds.get(key, np.inf):
                seconds[key] = measured.found.seconds
                if whole:
                    layers = np.array([seconds[layer.workload.id] for layer in design.layers])
                    latency = min(latency, float(design.seconds(layers).sum()))
            if key not in metrics or np.prod(measured.metrics) < np.prod(metrics[key]):
                metrics[key] = measured.metrics
                if whole:
                    every = np.array([metrics[layer.workload.id] for layer in design.layers]).T
                    cost = float(totals(design, self.objective, every).prod())
                    self._points[design.row] = (design.area, cost)
                    points = np.array(list(self._points.values()))
                    front, volume = len(pareto_rows(points)), hypervolume(points, self.reference)
        self._now = SearchProgress(measured.trial, len(self._seconds), latency, front, volume)
        return self._now
