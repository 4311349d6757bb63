"""Pareto front and hypervolume of area and objective, computed from a search's measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.objectives import METRICS, least_joules, totals
from tilewright.hardware_search.options import Objective
from tilewright.hardware_search.problem import CodesignProblem, Design, least_seconds
from tilewright.targets.workload import Workload

Points = NDArray[np.float64]
"""Area (relative to the stock machine) and objective (seconds, joules or their product, summed over
all networks), float array of shape (points, 2)."""


@dataclass(frozen=True)
class JudgedFront:
    """A machine on which every layer has a valid trial, with the best schedules and their costs.

    Attributes:
        design: the machine.
        flats: flat index of the best schedule, one entry per layer.
        layers: seconds per call of each layer, float array of shape (layers,).
        seconds: seconds per inference of each network, float array of shape (networks,).
        joules: energy that the accelerator needs for one inference of each network, summed over the
            networks; NaN if energy is not part of the objective.
    """

    design: Design
    flats: tuple[int, ...]
    layers: NDArray[np.float64]
    seconds: NDArray[np.float64]
    joules: float = float("nan")

    @property
    def latency(self) -> float:
        """Seconds of one inference of each network, summed over the networks."""
        return float(self.seconds.sum())

    @property
    def point(self) -> tuple[float, float]:
        """Area, relative to the stock machine, and latency in seconds, summed over the networks."""
        return self.design.area, self.latency

    def cost(self, objective: Objective) -> float:
        """Return the value of an objective on the machine, summed over the networks.

        Args:
            objective: "latency" for seconds, "energy" for joules, "edp" for the product of both.

        Returns:
            Seconds, joules or joule-seconds.
        """
        if objective == "latency":
            return self.latency
        return self.joules * (1.0 if objective == "energy" else self.latency)


def judge_designs(
    evaluator: BudgetedEvaluator, objective: Objective = "latency"
) -> list[JudgedFront]:
    """Return the machines on which every layer has a valid trial, with their best schedules.

    The best schedule is chosen for each layer separately. For the energy-delay product, the result
    need not be optimal for the whole network.

    Args:
        evaluator: the measurements of a search.
        objective: the objective by which schedules are chosen.

    Returns:
        The machines, in the order of their first measurement.
    """
    judged = []
    for design in evaluator.designs().values():
        picks = [_pick(evaluator, design, layer.workload, objective) for layer in design.layers]
        picked = [pick for pick in picks if pick is not None]
        if len(picked) == len(picks):
            flats = tuple(flat for flat, _ in picked)
            trials = [
                evaluator.layer_trials(design, layer.workload).trials for layer in design.layers
            ]
            layers = np.array([own[flat].seconds for own, flat in zip(trials, flats, strict=True)])
            metrics = np.stack([item for _, item in picked], axis=1)
            whole = dict(zip(METRICS[objective], totals(design, objective, metrics), strict=True))
            joules = float(whole.get("joules", np.nan))
            judged.append(JudgedFront(design, flats, layers, design.seconds(layers), joules))
    return judged


def _pick(
    evaluator: BudgetedEvaluator, design: Design, workload: Workload, objective: Objective
) -> tuple[int, Points] | None:
    """Return the best trial of a layer on a machine.

    Args:
        evaluator: the measurements of a search.
        design: the machine.
        workload: the layer.
        objective: the objective by which trials are compared.

    Returns:
        Flat index of the config, and its metrics per call, float array of shape (metrics,); None if
        no trial is valid.
    """
    tried = evaluator.layer_trials(design, workload)
    if tried.best is None:
        return None
    if objective == "latency":
        return tried.best[0], np.array([tried.best[1].seconds])
    flats = [flat for flat, trial in tried.trials.items() if trial.status == "valid"]
    metrics = evaluator.metrics(design, workload, flats, objective)
    best = int(np.argmin(metrics.prod(axis=0)))
    return flats[best], metrics[:, best]


def front_of(evaluator: BudgetedEvaluator, objective: Objective = "latency") -> list[JudgedFront]:
    """Return the machines on the Pareto front of area and objective, by ascending area.

    Args:
        evaluator: the measurements of a search.
        objective: the objective that is minimised besides the area.

    Returns:
        The machines of the front.
    """
    every = judge_designs(evaluator, objective)
    points = np.array([(judged.design.area, judged.cost(objective)) for judged in every]).reshape(
        -1, 2
    )
    return [every[row] for row in pareto_rows(points)]


def pareto_rows(points: Points) -> list[int]:
    """Return the rows of the Pareto-optimal points, by ascending first column.

    Of equal points, only the first is returned.

    Args:
        points: points to minimise in both columns, float array of shape (points, 2).

    Returns:
        Indices into `points`.
    """
    best, rows = np.inf, []
    for row in np.lexsort((np.arange(len(points)), points[:, 1], points[:, 0])).tolist():
        if points[row, 1] < best:
            best = points[row, 1]
            rows.append(row)
    return rows


def hypervolume(points: Points, reference: tuple[float, float]) -> float:
    """Return the hypervolume that points dominate, in area and the logarithm of the objective.

    With the logarithm, halving the objective has the same value everywhere on the front.

    Args:
        points: area and objective, float array of shape (points, 2).
        reference: area and objective of the reference point.

    Returns:
        The area of the dominated region.
    """
    inside = points[(points[:, 0] < reference[0]) & (points[:, 1] < reference[1])]
    volume, height = 0.0, np.log(reference[1])
    for row in pareto_rows(inside):
        area, latency = inside[row]
        volume += (reference[0] - area) * (height - np.log(latency))
        height = np.log(latency)
    return float(volume)


def added_hypervolume(
    points: Points, new: Points, reference: tuple[float, float]
) -> NDArray[np.float64]:
    """Return the increase of the hypervolume that each new point would cause by itself.

    Args:
        points: area and objective of the existing points, float array of shape (points, 2).
        new: area and objective of the new points, float array of shape (new, 2).
        reference: area and objective of the reference point.

    Returns:
        The increases, float array of shape (new,).
    """
    front = points[pareto_rows(points)]
    starts = np.concatenate([[-np.inf], front[:, 0]])
    ends = np.minimum(np.concatenate([front[:, 0], [np.inf]]), reference[0])
    heights = np.log(np.minimum(np.concatenate([[np.inf], front[:, 1]]), reference[1]))
    widths = np.maximum(ends - np.maximum(starts, new[:, :1]), 0.0)
    return np.asarray((widths * np.maximum(heights - np.log(new[:, 1:]), 0.0)).sum(axis=1))


def reference_of(problem: CodesignProblem, objective: Objective = "latency") -> tuple[float, float]:
    """Return the reference point up to which the hypervolumes of a problem are measured.

    Its area is the budget. Its objective is four times the lower bound of the objective on the
    smallest machine that can run all layers. If no machine can run all layers, its objective is 1.

    Args:
        problem: the co-design problem.
        objective: the objective that is minimised besides the area.

    Returns:
        Area and objective of the reference point.
    """
    for row in range(len(problem.hardware.points)):
        design = problem.design(row)
        least = {"seconds": least_seconds(design)}
        if np.isfinite(least["seconds"]):
            if objective != "latency":
                calls = np.array([layer.calls for layer in design.layers], np.float64)
                least["joules"] = float(calls @ least_joules(design))
            return problem.hardware.budget, 4 * float(
                np.prod([least[m] for m in METRICS[objective]])
            )
    return problem.hardware.budget, 1.0
