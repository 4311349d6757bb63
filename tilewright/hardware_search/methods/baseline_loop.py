"""Implements the loop of the published rivals: batches as large as AutoTVM's plans, a cost model
fitted after each, points that it ranks high.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.evaluator import RETRIES, BudgetedEvaluator
from tilewright.hardware_search.method import MethodOptions, generator
from tilewright.hardware_search.methods.estimate_features import Informed, estimated
from tilewright.hardware_search.methods.joint_cost_model import Rating, Seen
from tilewright.hardware_search.methods.joint_space import Places, Points
from tilewright.hardware_search.problem import CodesignProblem

IDLE = 50
"""Batches in a row that measure nothing new, after which a search has no more to say."""


class PublishedOptions(MethodOptions):
    """Of all published rivals."""

    plan: int = Field(64, ge=1, description="measurements between two fits of the cost model")
    first: int = Field(64, ge=1, description="measurements of points at random before the first")
    greed: float = Field(0.05, ge=0, le=1, description="share of points drawn at random")
    penalty: float = Field(
        1.0, ge=0, description="taken off the score of a machine beyond the budget, and for the "
        "share of layers whose tiles overflow (open in the paper)",
    )  # fmt: skip
    reward: Literal["throughput", "log"] = Field(
        "log", description="score of a latency: one over it, as AutoTVM's, or its logarithm"
    )
    area_weight: float = Field(
        0.0, ge=0, description="power of the area by which scores are divided; the papers: none"
    )
    estimates: bool = Field(
        False, description="let the target's closed-form estimates rank what is to be measured, "
        "which the papers do not have",
    )  # fmt: skip


class PublishedMethod:
    """A search over points, a batch at a time."""

    def __init__(self, options: PublishedOptions) -> None:
        self.table = options

    def begin(self, points: Points, seed: int) -> None:
        """What a new search starts with."""
        raise NotImplementedError

    def promising(
        self, points: Points, rating: Rating, seen: Seen, tried: NDArray[np.int64], count: int,
        rng: np.random.Generator,
    ) -> Places:  # fmt: skip
        """At most so many points, shape (count, knobs), best first, of keys that are not in
        `tried`, shape (points,)."""
        raise NotImplementedError

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Raises `BudgetSpent`; ends, too, when nothing new is found any more."""
        points, seen, tried = Points(problem), Seen(), np.empty(0, np.int64)
        self.begin(points, seed)
        idle = batch = 0
        while idle < IDLE:
            rng, before = generator(seed, batch), evaluator.spent
            asked = self._batch(points, seen, tried, rng)
            tried = np.union1d(tried, points.keys(asked))
            for point in asked:
                measure(points, evaluator, seen, point, self.table.estimates, rng)
            idle, batch = (idle + 1 if evaluator.spent == before else 0), batch + 1

    def _batch(
        self, points: Points, seen: Seen, tried: NDArray[np.int64], rng: np.random.Generator
    ) -> Places:
        layers = max(1, int((points.slots.calls > 0).sum(axis=1).mean()))
        count = max(1, self.table.plan // layers)
        if np.isfinite(seen.seconds).sum() < self.table.first:
            return points.random(count, rng)
        rating = Rating(points, self.table, seen, self.table.plan, int(rng.integers(1 << 31)))
        more = count * self.table.plan if self.table.estimates else count
        found = self.promising(points, rating, seen, tried, more, rng)
        if self.table.estimates and len(found):
            informed = Informed(points, rating, seen, self.table.plan, int(rng.integers(1 << 31)))
            found = informed.best(found, count)
        lucky = points.random(count, rng)
        kept = found[:count]
        lucky[: len(kept)] = np.where(
            (rng.random(len(kept)) < self.table.greed)[:, None], lucky[: len(kept)], kept
        )
        return lucky


def measure(
    points: Points,
    evaluator: BudgetedEvaluator,
    seen: Seen,
    point: NDArray[np.int64],
    estimates: bool,
    rng: np.random.Generator,
) -> None:
    """One schedule of each of its layers, shape (knobs,), with its estimates or without. Where it
    does not compile, others of that layer are drawn until one does. Raises `BudgetSpent`."""
    row = int(points.rows(point[None])[0])
    design = points.problem.design(row)
    for slot, layer, config in points.schedules(design, point):
        place = point
        for _ in range(RETRIES):
            before = evaluator.compiled
            found = evaluator.evaluate(design, layer.workload, config)
            if slot >= 0 and evaluator.compiled > before:
                seen.places.append(place)
                seen.slots.append(slot)
                seen.seconds.append(float(found.seconds[0]))
                if estimates:
                    seen.estimates.append(estimated(design, layer, config)[0])
            if slot < 0 or found.status[0] != "compile_error":
                break
            place = points.redrawn(point, slot, rng)
            config = points.schedule(design, layer, slot, place)
