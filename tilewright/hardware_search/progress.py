"""Counts how far a search is, measurement by measurement: what is shown, drawn and written of
it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.hardware_search.evaluator import EvaluatedPoint
from tilewright.hardware_search.pareto import hypervolume, reference_of, undominated
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
    on the front, and the front's hypervolume."""

    trials: int
    machines: int
    latency: float
    front: int
    hypervolume: float


class ProgressCount:
    """Keeps count of a search; `reference` is where hypervolumes are measured from."""

    def __init__(self, problem: CodesignProblem) -> None:
        self.reference = reference_of(problem)
        self._seconds: dict[int, dict[str, float]] = {}  # of each layer by its id, a machine
        self._points: dict[int, tuple[float, float]] = {}
        self._now = SearchProgress(0, 0, np.inf, 0, 0.0)

    def add(self, measured: EvaluatedPoint) -> SearchProgress:
        """What it comes to with one measurement more."""
        row, key, changed = measured.design.row, measured.workload.id, False
        known = self._seconds.setdefault(row, {})
        if measured.found.status == "valid":
            before = known.get(key, np.inf)
            known[key] = min(before, measured.found.seconds)
            changed = known[key] < before and len(known) == len(measured.design.layers)
        now = self._now
        latency, front, volume = now.latency, now.front, now.hypervolume
        if changed:
            layers = np.array([known[each.workload.id] for each in measured.design.layers])
            point = (measured.design.area, float(measured.design.seconds(layers).sum()))
            self._points[row] = point
            points = np.array(list(self._points.values()))
            latency, front = min(latency, point[1]), len(undominated(points))
            volume = hypervolume(points, self.reference)
        self._now = SearchProgress(measured.trial, len(self._seconds), latency, front, volume)
        return self._now
