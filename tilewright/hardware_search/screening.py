"""Screens machines by closed-form estimates, without compiling anything: the cheapest fidelity."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.hardware_search.method import generator
from tilewright.hardware_search.pareto import undominated
from tilewright.hardware_search.problem import CodesignProblem, Design
from tilewright.targets.capabilities import Estimates, bound_of, capability, least_estimate
from tilewright.targets.workload import Workload


class Screening:
    """Latencies of machines by the least estimate of `sample` schedules of each layer that fit
    their scratchpads, and no less than the layer's bound. A target without estimates is screened by
    bounds alone."""

    def __init__(self, problem: CodesignProblem, sample: int, seed: int) -> None:
        self.problem, self._sample, self._seed = problem, sample, seed
        self._found: dict[int, NDArray[np.float64]] = {}

    @property
    def rows(self) -> list[int]:
        """The machines that were screened, in that order."""
        return list(self._found)

    def seconds(self, row: int) -> NDArray[np.float64]:
        """Of a call of each layer of a machine, shape (layers,); infinite where none fits."""
        if row not in self._found:
            design = self.problem.design(row)
            self._found[row] = np.array(
                [self._least(design, layer.workload) for layer in design.layers]
            )
        return self._found[row]

    def latency(self, row: int) -> float:
        """One inference of each network, in seconds."""
        return float(self.problem.design(row).seconds(self.seconds(row)).sum())

    def points(self) -> NDArray[np.float64]:
        """Area and latency of what was screened, shape (machines, 2), as `rows`."""
        areas = self.problem.hardware.areas
        return np.array([(areas[row], self.latency(row)) for row in self.rows])

    def climb(self, start: Iterable[int], limit: int) -> None:
        """Screen some machines, then those one step of one knob away from what nothing screened
        dominates, until there are none or `limit` were screened."""
        for row in start:
            if len(self._found) < limit:
                self.seconds(row)
        while len(self._found) < limit:
            front = [self.rows[place] for place in undominated(self.points())]
            near = [r for row in front for r in self.problem.hardware.neighbours(row)]
            new = [row for row in dict.fromkeys(near) if row not in self._found]
            if not new:
                return
            for row in new[: limit - len(self._found)]:
                self.seconds(row)

    def _least(self, design: Design, workload: Workload) -> float:
        estimates = capability(design.target, Estimates)
        try:
            space = design.target.space(workload)
            least = bound_of(design.target, workload)
        except WorkloadError:
            return float("inf")
        lowest = 0.0 if least is None else least.seconds
        if estimates is None:
            return lowest
        rng = generator(self._seed, design.row)
        estimated = least_estimate(estimates, workload, space, self._sample, rng)
        if estimated is None:
            return float("inf")
        unit = 1.0 if least is None or least.cycles < 0 else least.seconds / least.cycles
        return max(lowest, estimated * unit)
