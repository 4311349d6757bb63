"""Screens machines by closed-form estimates, without compiling anything: the cheapest fidelity."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.hardware_search.costs import (
    METRICS,
    Objective,
    estimated_metrics,
    least_joules,
    totals,
)
from tilewright.hardware_search.method import generator
from tilewright.hardware_search.pareto import undominated
from tilewright.hardware_search.problem import CodesignProblem, Design
from tilewright.targets.capabilities import Estimates, bound_of, capability
from tilewright.targets.workload import Workload


class Screening:
    """What machines cost by an objective: by the least estimate of `sample` schedules of each layer
    that fit their scratchpads, and no less than the layer's bound. A target without estimates is
    screened by bounds alone."""

    def __init__(
        self, problem: CodesignProblem, sample: int, seed: int, objective: Objective = "latency"
    ) -> None:
        self.problem, self._sample, self._seed = problem, sample, seed
        self._objective: Objective = objective
        self._found: dict[int, NDArray[np.float64]] = {}

    @property
    def rows(self) -> list[int]:
        """The machines that were screened, in that order."""
        return list(self._found)

    def metrics(self, row: int) -> NDArray[np.float64]:
        """Of a call of each layer of a machine, shape (metrics, layers) as `METRICS`; infinite
        where none fits."""
        if row not in self._found:
            design = self.problem.design(row)
            spent = least_joules(design) if self._objective != "latency" else design.bounds
            self._found[row] = np.stack(
                [
                    self._least(design, layer.workload, joules)
                    for layer, joules in zip(design.layers, spent.tolist(), strict=True)
                ],
                axis=1,
            )
        return self._found[row]

    def cost(self, row: int) -> float:
        """One inference of each network, by the objective."""
        design = self.problem.design(row)
        return float(totals(design, self._objective, self.metrics(row)).prod())

    def points(self) -> NDArray[np.float64]:
        """Area and cost of what was screened, shape (machines, 2), as `rows`."""
        areas = self.problem.hardware.areas
        return np.array([(areas[row], self.cost(row)) for row in self.rows])

    def climb(self, start: Iterable[int], limit: int) -> None:
        """Screen some machines, then those one step of one knob away from what nothing screened
        dominates, until there are none or `limit` were screened."""
        for row in start:
            if len(self._found) < limit:
                self.metrics(row)
        while len(self._found) < limit:
            front = [self.rows[place] for place in undominated(self.points())]
            near = [r for row in front for r in self.problem.hardware.neighbours(row)]
            new = [row for row in dict.fromkeys(near) if row not in self._found]
            if not new:
                return
            for row in new[: limit - len(self._found)]:
                self.metrics(row)

    def _least(self, design: Design, workload: Workload, joules: float) -> NDArray[np.float64]:
        """Metrics of a call, shape (metrics,), by the schedule that costs least as estimated; no
        less than the bound in seconds, and than so many joules."""
        estimates, metrics = capability(design.target, Estimates), METRICS[self._objective]
        try:
            space = design.target.space(workload)
            least = bound_of(design.target, workload)
        except WorkloadError:
            return np.full(len(metrics), np.inf)
        bound = {"seconds": 0.0 if least is None else least.seconds, "joules": joules}
        lowest = np.array([bound[metric] for metric in metrics])
        if estimates is None:
            return lowest
        rng, most = generator(self._seed, design.row), self._sample
        flat = np.arange(space.size) if space.size <= most else rng.integers(0, space.size, most)
        configs = space.unravel(flat)
        table = estimates.estimate(workload, configs)
        if not table.fits.any():
            return np.full(len(metrics), np.inf)
        every = estimated_metrics(design.target, workload, configs, table, self._objective)
        every = every[:, table.fits]
        return np.asarray(np.maximum(lowest, every[:, np.argmin(every.prod(axis=0))]))
