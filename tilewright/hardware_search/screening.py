"""Screening: estimates costs of machines in closed form, without compiling or measuring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError, WorkloadError
from tilewright.core.files import Json
from tilewright.hardware_search.methods import generator
from tilewright.hardware_search.objectives import METRICS, estimated_metrics, least_joules, totals
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.pareto import pareto_rows
from tilewright.hardware_search.problem import CodesignProblem, Design
from tilewright.targets.base import Target
from tilewright.targets.capabilities import Estimates, bound_of, capability
from tilewright.targets.cluster.connection import check_answer, connect
from tilewright.targets.cluster.remote_worker import target_of
from tilewright.targets.cluster.target import ClusterTarget
from tilewright.targets.workload import Workload


class Screening:
    """Estimates how well machines would perform, without tuning their layers.

    The estimated cost of a layer is the lowest closed-form estimate among a sample of schedules
    that fit the scratchpads, but at least the layer's lower bound. If the target has no estimates,
    the lower bounds are used instead.

    Args:
        problem: the co-design problem.
        sample: number of schedules per layer to estimate.
        seed: seed for the sampling.
        objective: the objective that is minimised besides the area.
    """

    def __init__(
        self, problem: CodesignProblem, sample: int, seed: int, objective: Objective = "latency"
    ) -> None:
        self.problem, self._sample, self._seed = problem, sample, seed
        self._objective: Objective = objective
        self._found: dict[int, NDArray[np.float64]] = {}

    @property
    def rows(self) -> list[int]:
        """Rows in `HardwareSpace.points` of the machines screened so far, in that order."""
        return list(self._found)

    def metrics(self, row: int) -> NDArray[np.float64]:
        """Return the estimated metrics of each layer of a machine. Screen the machine if necessary.

        Args:
            row: row of the machine in `HardwareSpace.points`.

        Returns:
            Metrics per call, float array of shape (metrics, layers) in the order of `METRICS`;
            infinite if no schedule fits.
        """
        self.screen([row])
        return self._found[row]

    def screen(self, rows: Sequence[int]) -> None:
        """Screen machines and keep the results. If the problem uses a cluster, its workers do this.

        The cluster is used only if all of the machines are measured there.

        Args:
            rows: rows of the machines. Machines that were screened before are skipped.

        Raises:
            ClusterError: the cluster cannot screen a machine.
        """
        designs = [self.problem.design(r) for r in dict.fromkeys(rows) if r not in self._found]
        if not designs:
            return
        orders = [self._order(design) for design in designs]
        away = [d.measured_on for d in designs if isinstance(d.measured_on, ClusterTarget)]
        if len(away) == len(designs):
            calls = ((m.specification, *order) for m, order in zip(away, orders, strict=True))
            results = dict(connect(away[0].cluster).call_each(screen_machine, calls))
            minima = [check_answer(away[0].cluster, results[k]) for k in range(len(designs))]
        else:
            minima = [
                screen_layers(design.target, *order)
                for design, order in zip(designs, orders, strict=True)
            ]
        self._found |= {design.row: item for design, item in zip(designs, minima, strict=True)}

    def _order(self, design: Design) -> tuple[Any, ...]:
        """Return the arguments of `screen_layers` for a machine, except for the target.

        If the objective is the latency, `screen_layers` does not use the lower bounds on the
        energy. The lower bounds on the seconds then fill their place.

        Args:
            design: the machine.
        """
        spent = least_joules(design) if self._objective != "latency" else design.bounds
        layers = [layer.workload.to_json() for layer in design.layers]
        return layers, spent.tolist(), self._sample, self._seed, design.row, self._objective

    def cost(self, row: int) -> float:
        """Return the estimated objective of a machine, for one inference of each network.

        Args:
            row: row of the machine, which must have been screened.
        """
        design = self.problem.design(row)
        return float(totals(design, self._objective, self.metrics(row)).prod())

    def points(self) -> NDArray[np.float64]:
        """Return area and estimated objective of the screened machines, in the order of `rows`.

        Returns:
            Float array of shape (machines, 2).
        """
        areas = self.problem.hardware.areas
        return np.array([(areas[row], self.cost(row)) for row in self.rows])

    def climb(self, start: Iterable[int], limit: int) -> None:
        """Screen machines near the Pareto front of area and estimated objective.

        First, the machines in `start` are screened. Then, repeatedly, the neighbours of all
        Pareto-optimal machines are screened; neighbours differ by one step of one hardware knob.
        This ends when there are no new neighbours or when `limit` machines were screened.

        Args:
            start: rows of the first machines.
            limit: maximum number of screened machines.
        """
        new = [row for row in dict.fromkeys(start) if row not in self._found]
        self.screen(new[: max(0, limit - len(self._found))])
        while len(self._found) < limit:
            front = [self.rows[place] for place in pareto_rows(self.points())]
            near = [r for row in front for r in self.problem.hardware.neighbours(row)]
            new = [row for row in dict.fromkeys(near) if row not in self._found]
            if not new:
                return
            self.screen(new[: limit - len(self._found)])


def screen_machine(target: Mapping[str, Json], *order: Any) -> NDArray[np.float64] | str:
    """Estimate the costs of a machine's layers on a worker of a cluster.

    Args:
        target: specification of the machine, as `remote_worker.lower_and_measure` takes it.
        order: the arguments of `screen_layers` after the target.

    Returns:
        The result of `screen_layers`, or an error message if this worker cannot screen the machine.
    """
    try:
        return screen_layers(target_of(target), *order)
    except TilewrightError as error:
        return " ".join(str(error).split())


def screen_layers(
    target: Target, layers: Sequence[Mapping[str, Any]], joules: Sequence[float], sample: int,
    seed: int, row: int, objective: Objective,
) -> NDArray[np.float64]:  # fmt: skip
    """Estimate the cost of each layer of a machine with the layer's best schedule.

    Args:
        target: the machine.
        layers: the workloads as JSON.
        joules: lower bound on the energy of each layer in joules per call; not used if the
            objective is the latency.
        sample: number of schedules per layer to estimate.
        seed: seed of the search.
        row: row of the machine, which is part of the seed of the random numbers.
        objective: the objective that is minimised besides the area.

    Returns:
        Metrics per call, float array of shape (metrics, layers). They are at least the lower bounds
        of the layer, and infinite if the machine cannot run the layer or no schedule fits. If the
        target has no estimates, they are the lower bounds.
    """
    results = [
        _least_metrics(
            target, Workload.from_json(layer), least, sample, generator(seed, row), objective
        )
        for layer, least in zip(layers, joules, strict=True)
    ]
    return np.stack(results, axis=1)


def _least_metrics(
    target: Target, workload: Workload, joules: float, sample: int, rng: np.random.Generator,
    objective: Objective,
) -> NDArray[np.float64]:  # fmt: skip
    """Estimate the metrics of a layer's best schedule.

    Args:
        target: the machine.
        workload: the layer.
        joules: lower bound on the energy in joules per call; not used if the objective is the
            latency.
        sample: number of random schedules to estimate; all of them in a smaller space.
        rng: random generator.
        objective: the objective by which schedules are compared.

    Returns:
        Metrics per call, float array of shape (metrics,), at least the lower bounds. They are
        infinite if the machine cannot run the layer or no schedule fits, and the lower bounds if
        the target has no estimates.
    """
    estimates, metrics = capability(target, Estimates), METRICS[objective]
    try:
        space = target.space(workload)
        least = bound_of(target, workload)
    except WorkloadError:
        return np.full(len(metrics), np.inf)
    bound = {"seconds": 0.0 if least is None else least.seconds, "joules": joules}
    lowest = np.array([bound[metric] for metric in metrics])
    if estimates is None:
        return lowest
    flat = np.arange(space.size) if space.size <= sample else rng.integers(0, space.size, sample)
    configs = space.unravel(flat)
    table = estimates.estimate(workload, configs)
    if not table.fits.any():
        return np.full(len(metrics), np.inf)
    every = estimated_metrics(target, workload, configs, table, objective)[:, table.fits]
    return np.asarray(np.maximum(lowest, every[:, np.argmin(every.prod(axis=0))]))
