"""Judges designs by what was measured: Pareto front and hypervolume of area and objective."""

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
"""Area (relative) and what is minimised beside it (seconds, joules or their product, the sum of all
networks), shape (points, 2)."""


@dataclass(frozen=True)
class JudgedFront:
    """A design of which every layer has a valid trial: seconds a network, shape (networks,)."""

    design: Design
    flats: tuple[int, ...]  # the schedule of each layer, flat indices
    layers: NDArray[np.float64]  # seconds a call, shape (layers,)
    seconds: NDArray[np.float64]
    joules: float = float("nan")
    """One inference of each network on the accelerator; NaN where it was not asked for."""

    @property
    def latency(self) -> float:
        """One inference of each network, in seconds."""
        return float(self.seconds.sum())

    @property
    def point(self) -> tuple[float, float]:
        """Area and latency."""
        return self.design.area, self.latency

    def cost(self, objective: Objective) -> float:
        """Seconds, joules, or their product."""
        if objective == "latency":
            return self.latency
        return self.joules * (1.0 if objective == "energy" else self.latency)


def judge_designs(
    evaluator: BudgetedEvaluator, objective: Objective = "latency"
) -> list[JudgedFront]:
    """Return the designs that run all layers, each layer by the best schedule measured. For the
    energy-delay product that is each layer's own best, which need not be best for the network."""
    found = []
    for design in evaluator.designs().values():
        picks = [_pick(evaluator, design, layer.workload, objective) for layer in design.layers]
        picked = [pick for pick in picks if pick is not None]
        if len(picked) == len(picks):
            flats = tuple(flat for flat, _ in picked)
            trials = [evaluator.tried(design, layer.workload).trials for layer in design.layers]
            layers = np.array([own[flat].seconds for own, flat in zip(trials, flats, strict=True)])
            metrics = np.stack([each for _, each in picked], axis=1)
            whole = dict(zip(METRICS[objective], totals(design, objective, metrics), strict=True))
            joules = float(whole.get("joules", np.nan))
            found.append(JudgedFront(design, flats, layers, design.seconds(layers), joules))
    return found


def _pick(
    evaluator: BudgetedEvaluator, design: Design, workload: Workload, objective: Objective
) -> tuple[int, Points] | None:
    """The best trial of a layer: flat index, and metrics of a call, shape (metrics,)."""
    tried = evaluator.tried(design, workload)
    if tried.best is None:
        return None
    if objective == "latency":
        return tried.best[0], np.array([tried.best[1].seconds])
    flats = [flat for flat, trial in tried.trials.items() if trial.status == "valid"]
    metrics = evaluator.metrics(design, workload, flats, objective)
    best = int(np.argmin(metrics.prod(axis=0)))
    return flats[best], metrics[:, best]


def front_of(evaluator: BudgetedEvaluator, objective: Objective = "latency") -> list[JudgedFront]:
    """Return the designs that no other dominates in area and objective, by ascending area."""
    every = judge_designs(evaluator, objective)
    points = np.array([(each.design.area, each.cost(objective)) for each in every]).reshape(-1, 2)
    return [every[row] for row in pareto_rows(points)]


def pareto_rows(points: Points) -> list[int]:
    """Return the rows of points, shape (points, 2), that no other point beats in both columns, by
    ascending area. Of equal points, the first is returned."""
    best, rows = np.inf, []
    for row in np.lexsort((np.arange(len(points)), points[:, 1], points[:, 0])).tolist():
        if points[row, 1] < best:
            best = points[row, 1]
            rows.append(row)
    return rows


def hypervolume(points: Points, reference: tuple[float, float]) -> float:
    """Return the hypervolume that points, shape (points, 2), dominate in area and log latency, up
    to a reference. Latencies count by their logarithm: twice as fast is worth the same
    everywhere."""
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
    """Return by how much the `hypervolume` of points, shape (points, 2), would grow with each of
    the new points, shape (new, 2), by itself: shape (new,)."""
    front = points[pareto_rows(points)]
    starts = np.concatenate([[-np.inf], front[:, 0]])
    ends = np.minimum(np.concatenate([front[:, 0], [np.inf]]), reference[0])
    heights = np.log(np.minimum(np.concatenate([[np.inf], front[:, 1]]), reference[1]))
    widths = np.maximum(ends - np.maximum(starts, new[:, :1]), 0.0)
    return np.asarray((widths * np.maximum(heights - np.log(new[:, 1:]), 0.0)).sum(axis=1))


def reference_of(problem: CodesignProblem, objective: Objective = "latency") -> tuple[float, float]:
    """Return the reference point of a problem's hypervolumes: the budget, and four times the lower
    bound of the objective on the smallest machine that runs all layers."""
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
