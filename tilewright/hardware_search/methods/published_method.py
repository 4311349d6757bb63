"""Search loop and options that the published methods AutoTVM, CHAMELEON and DCOC share.

The methods work in batches. After each batch, a reward model is trained on all measurements, and
the method proposes points (machines with schedules) with a high predicted reward. A batch has as
many measurements as a plan of AutoTVM. CHAMELEON and DCOC use PPO, whose options are in
`ppo_codesign_options`.

The option `estimates` is ours; the papers do not have it. With it, the proposed points are ranked
again with the target's closed-form estimates: points with layers that do not fit the scratchpads
come last, and a cost model that uses the estimates ranks the other points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.evaluator import RETRIES, BudgetedEvaluator
from tilewright.hardware_search.methods import generator
from tilewright.hardware_search.methods.estimate_ranking import EstimateRanking, estimate_layer
from tilewright.hardware_search.methods.joint_space import JointSpace, Places
from tilewright.hardware_search.methods.reward import (
    LayerMeasurements,
    RewardModel,
    RewardOptions,
)
from tilewright.hardware_search.problem import CodesignProblem

IDLE = 50
"""Number of batches in a row without a new measurement after which the search ends."""


class PublishedOptions(RewardOptions):
    """Options that the published co-design methods `autotvm`, `chameleon` and `dcoc` share."""

    plan: int = Field(64, ge=1, description="measurements between two fits of the cost model")
    first: int = Field(64, ge=1, description="random measurements before the first fit")
    greed: float = Field(0.05, ge=0, le=1, description="fraction of points drawn at random")
    estimates: bool = Field(
        False, description="let the target's closed-form estimates choose what is measured, which "
            "the papers do not do",
    )  # fmt: skip


class PublishedMethod:
    """Base class of the published co-design methods `autotvm`, `chameleon` and `dcoc`.

    They search the joint space of machines and schedules in batches. A subclass proposes points,
    which are machines with a schedule for every layer. The points are measured, and a reward model
    learns from the measurements.

    Args:
        options: options of the method.
    """

    def __init__(self, options: PublishedOptions) -> None:
        self.table = options

    def begin(self, points: JointSpace, seed: int) -> None:
        """Initialise the state of the method for a new search.

        Args:
            points: the search space.
            seed: seed of the random numbers.
        """
        raise NotImplementedError

    def promising(
        self,
        points: JointSpace,
        rewards: RewardModel,
        seen: LayerMeasurements,
        tried: NDArray[np.int64],
        count: int,
        rng: np.random.Generator,
    ) -> Places:
        """Propose points to measure.

        Args:
            points: the search space.
            rewards: predicts the rewards of points. It was trained on the measurements so far.
            seen: the measurements so far.
            tried: keys of the points that were tried, int array of shape (tried,).
            count: maximum number of points.
            rng: random generator.

        Returns:
            Untried points in the order in which to measure them, int array of shape (n, knobs) with
            n ≤ `count`.
        """
        raise NotImplementedError

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Propose and measure points until `IDLE` batches in a row bring no new measurement.

        Args:
            problem: the co-design problem.
            evaluator: measures schedules within the budget.
            seed: seed of the random numbers.

        Raises:
            BudgetSpent: no measurements are left.
        """
        points, seen, tried = JointSpace(problem), LayerMeasurements(), np.empty(0, np.int64)
        self.begin(points, seed)
        idle = batch = 0
        while idle < IDLE:
            rng, before = generator(seed, batch), evaluator.spent
            asked = self._batch(points, seen, tried, rng)
            tried = np.union1d(tried, points.keys(asked))
            for point in asked:
                measure_point(points, evaluator, seen, point, self.table.estimates, rng)
            idle, batch = (idle + 1 if evaluator.spent == before else 0), batch + 1

    def _batch(
        self,
        points: JointSpace,
        seen: LayerMeasurements,
        tried: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Places:
        """Choose the points of the next batch.

        Batches are random until there are `first` valid measurements. In later batches, the method
        proposes the points. With the option `estimates`, it proposes more points than needed, and
        `EstimateRanking` selects the best ones. A fraction `greed` of the points is then replaced
        by random points, and random points fill up the batch if the method proposes too few.

        Args:
            points: the search space.
            seen: the measurements so far.
            tried: keys of the points that were tried, int array of shape (tried,).
            rng: random generator.

        Returns:
            The points, int array of shape (n, knobs). Their number is chosen so that a batch has
            about `plan` measurements, with one per layer of a point.
        """
        layers = max(1, int((points.slots.calls > 0).sum(axis=1).mean()))
        count = max(1, self.table.plan // layers)
        if np.isfinite(seen.seconds).sum() < self.table.first:
            return points.random(count, rng)
        rewards = RewardModel(points, self.table, seen, self.table.plan, int(rng.integers(1 << 31)))
        more = count * self.table.plan if self.table.estimates else count
        result = self.promising(points, rewards, seen, tried, more, rng)
        if self.table.estimates and len(result):
            informed = EstimateRanking(
                points, rewards, seen, self.table.plan, int(rng.integers(1 << 31))
            )
            result = informed.best(result, count)
        lucky = points.random(count, rng)
        kept = result[:count]
        lucky[: len(kept)] = np.where(
            (rng.random(len(kept)) < self.table.greed)[:, None], lucky[: len(kept)], kept
        )
        return lucky


def measure_point(
    points: JointSpace,
    evaluator: BudgetedEvaluator,
    seen: LayerMeasurements,
    point: NDArray[np.int64],
    estimates: bool,
    rng: np.random.Generator,
) -> None:
    """Measure the schedule of each layer at a point, and add the results to `seen`.

    If a schedule does not compile, random schedules of the layer are tried until one compiles, at
    most `RETRIES` schedules in total. Schedules that do not compile are also added. A schedule that
    was evaluated before is not added again. The layers that have no slot in the search space are
    measured once, and their results are not added.

    Args:
        points: the search space.
        evaluator: measures schedules within the budget.
        seen: the measurements, to which the results are added.
        point: knob indices of the point, int array of shape (knobs,).
        estimates: also store the target's estimates in `seen`.
        rng: random generator.

    Raises:
        BudgetSpent: no measurements are left.
    """
    row = int(points.rows(point[None])[0])
    design = points.problem.design(row)
    for slot, layer, config in points.schedules(design, point):
        place = point
        for _ in range(RETRIES):
            before = evaluator.compiled
            result = evaluator.evaluate(design, layer.workload, config)
            if slot >= 0 and evaluator.compiled > before:
                seen.places.append(place)
                seen.slots.append(slot)
                seen.seconds.append(float(result.seconds[0]))
                if estimates:
                    seen.estimates.append(estimate_layer(design, layer, config)[0])
            if slot < 0 or result.status[0] != "compile_error":
                break
            place = points.redraw_schedule(point, slot, rng)
            config = points.schedule(design, layer, slot, place)
