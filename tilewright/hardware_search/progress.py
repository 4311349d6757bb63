"""Progress of a search, measurement by measurement: what is shown, drawn and written of it."""

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
    """The networks are read, and so many machines are within bounds and budget."""

    networks: tuple[str, ...]
    machines: int
    trials: int


@dataclass(frozen=True)
class SearchProgress(Event):
    """After a measurement: how many there were, of how many machines; the best latency of a machine
    of which every layer has a valid trial, in seconds, infinite without one; how many machines are
    on the front of area and objective, and that front's hypervolume."""

    trials: int
    machines: int
    latency: float
    front: int
    hypervolume: float


class ProgressCount:
    """Keeps count of a search; `reference` is where hypervolumes are measured from."""

    def __init__(self, problem: CodesignProblem, objective: Objective = "latency") -> None:
        self.reference, self.objective = reference_of(problem, objective), objective
        self._seconds: dict[int, dict[str, float]] = {}  # of each layer by its id, a machine
        self._metrics: dict[int, dict[str, tuple[float, ...]]] = {}  # by its cheapest trial
        self._points: dict[int, tuple[float, float]] = {}
        self._now = SearchProgress(0, 0, np.inf, 0, 0.0)

    def add(self, measured: EvaluatedPoint) -> SearchProgress:
        """Return the progress after one more measurement."""
        design, key, now = measured.design, measured.workload.id, self._now
        seconds = self._seconds.setdefault(design.row, {})
        metrics = self._metrics.setdefault(design.row, {})
        latency, front, volume = now.latency, now.front, now.hypervolume
        if measured.found.status == "valid":
            whole = len(seconds | {key: 0.0}) == len(design.layers)
            if measured.found.seconds < seconds.get(key, np.inf):
                seconds[key] = measured.found.seconds
                if whole:
                    layers = np.array([seconds[each.workload.id] for each in design.layers])
                    latency = min(latency, float(design.seconds(layers).sum()))
            if key not in metrics or np.prod(measured.metrics) < np.prod(metrics[key]):
                metrics[key] = measured.metrics
                if whole:
                    every = np.array([metrics[each.workload.id] for each in design.layers]).T
                    cost = float(totals(design, self.objective, every).prod())
                    self._points[design.row] = (design.area, cost)
                    points = np.array(list(self._points.values()))
                    front, volume = len(pareto_rows(points)), hypervolume(points, self.reference)
        self._now = SearchProgress(measured.trial, len(self._seconds), latency, front, volume)
        return self._now
