"""The loop that the published methods share (AutoTVM, CHAMELEON, DCOC), and its options.

Batches are as large as AutoTVM's plans. A reward is fitted after each, and the method proposes
points that promise a high reward. With `estimates`, the target's closed-form estimates rank the
proposed points again, which the papers do not have: points of which a layer does not fit come last,
the others are ranked by a cost model that also sees estimates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.evaluator import RETRIES, BudgetedEvaluator
from tilewright.hardware_search.methods import generator
from tilewright.hardware_search.methods.joint_space import Floats, JointSpace, Places
from tilewright.hardware_search.methods.reward import (
    LayerMeasurements,
    RewardModel,
    RewardOptions,
    layer_features,
    layer_names,
)
from tilewright.hardware_search.problem import CodesignLayer, CodesignProblem, Design
from tilewright.models.trees import AutoTVMRanker
from tilewright.search.ppo import PPOOptions
from tilewright.targets.base import Configs
from tilewright.targets.capabilities import Estimates, capability
from tilewright.targets.features import Features

IDLE = 50
"""Batches in a row that measure nothing new, after which a search has no more to say."""


class PublishedOptions(RewardOptions):
    """Options that all published methods have."""

    plan: int = Field(64, ge=1, description="measurements between two fits of the cost model")
    first: int = Field(64, ge=1, description="measurements of points at random before the first")
    greed: float = Field(0.05, ge=0, le=1, description="share of points drawn at random")
    estimates: bool = Field(
        False, description="let the target's closed-form estimates rank what is to be measured, "
        "which the papers do not have",
    )  # fmt: skip


class PublishedMethod:
    """A search over points, one batch at a time. Subclasses propose the points."""

    def __init__(self, options: PublishedOptions) -> None:
        self.table = options

    def begin(self, points: JointSpace, seed: int) -> None:
        """Start a new search."""
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
        """Return at most `count` points, shape (count, knobs), best first, whose keys are not in
        `tried`, shape (points,)."""
        raise NotImplementedError

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Raises `BudgetSpent`; ends, too, when nothing new is found any more."""
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
        layers = max(1, int((points.slots.calls > 0).sum(axis=1).mean()))
        count = max(1, self.table.plan // layers)
        if np.isfinite(seen.seconds).sum() < self.table.first:
            return points.random(count, rng)
        rewards = RewardModel(points, self.table, seen, self.table.plan, int(rng.integers(1 << 31)))
        more = count * self.table.plan if self.table.estimates else count
        found = self.promising(points, rewards, seen, tried, more, rng)
        if self.table.estimates and len(found):
            informed = EstimateRanking(
                points, rewards, seen, self.table.plan, int(rng.integers(1 << 31))
            )
            found = informed.best(found, count)
        lucky = points.random(count, rng)
        kept = found[:count]
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
    """Measure one schedule of each layer of a point, shape (knobs,), with the target's estimates or
    without. If a schedule does not compile, others of that layer are drawn until one does.
    Raises `BudgetSpent`."""
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
                    seen.estimates.append(estimate_layer(design, layer, config)[0])
            if slot < 0 or found.status[0] != "compile_error":
                break
            place = points.redraw_schedule(point, slot, rng)
            config = points.schedule(design, layer, slot, place)


class CodesignPpoOptions(PublishedOptions, PPOOptions):
    """Options of a PPO agent that walks through the points of a co-design problem.

    Defaults are those of CHAMELEON's code or paper, except where a description says otherwise.
    """

    starts: int = Field(128, ge=1, description="points that walks begin at")
    steps: int = Field(
        100, ge=1, description="steps of an episode at most (paper: 500; here a step asks the cost "
        "model about every layer of the networks)",
    )  # fmt: skip
    episodes: int = Field(1, ge=1, description="episodes between two fits (open in the papers)")


def estimate_layer(design: Design, layer: CodesignLayer, configs: Configs) -> Floats:
    """Return the log of the estimated latency, and the largest share of a scratchpad, of configs
    (n, knobs): shape (n, 2); NaN where the target estimates nothing."""
    known = capability(design.target, Estimates)
    if known is None:
        return np.full((len(configs), 2), np.nan)
    table = known.estimate(layer.workload, configs)
    share = table.of_meaning("share").max(axis=1, initial=0.0)
    return np.stack([np.log(table.total("latency")), share], axis=1)


class EstimateRanking:
    """Ranks points by a cost model that also sees the target's closed-form estimates."""

    def __init__(
        self,
        points: JointSpace,
        rewards: RewardModel,
        seen: LayerMeasurements,
        plan: int,
        seed: int,
    ) -> None:
        self.points, self.rewards = points, rewards
        places, slots, seconds = seen.table()
        rows = layer_features(points, places)[np.arange(len(slots)), slots]
        self.model = AutoTVMRanker(seed, False, {"plan": plan})
        goal = np.nan_to_num(rewards.best[slots] / seconds, nan=0.0)
        self.model.fit(self._features(rows, np.array(seen.estimates)), goal)

    def best(self, places: Places, count: int) -> Places:
        """Return `count` of the points, the most promising first, shape (count, knobs)."""
        cores = self.points.cores(places)
        rows, known = layer_features(self.points, places), self._estimates(places)
        flat = self._features(rows.reshape(-1, rows.shape[2]), known.reshape(-1, 2))
        throughput = self.model.predict(flat).reshape(rows.shape[:2])
        seconds = self.rewards.seconds(cores, throughput)
        full = (known[:, :, 1] > 1).sum(axis=1)
        return places[np.lexsort((seconds, full))[:count]]

    def _features(self, rows: Floats, known: Floats) -> Features:
        names = [*layer_names(self.points), "estimated latency", "estimated share"]
        return Features.of(np.concatenate([rows, known], axis=1), names)

    def _estimates(self, places: Places) -> Floats:
        """Shape (points, slots, 2); NaN for a layer that the machine does not run."""
        found = np.full((len(places), len(self.points.slots.names), 2), np.nan)
        machines: NDArray[np.int64] = self.points.rows(places)
        for at, (row, point) in enumerate(zip(machines.tolist(), places, strict=True)):
            design = self.points.problem.design(row)
            for slot, layer, config in self.points.schedules(design, point):
                if slot >= 0:
                    found[at, slot] = estimate_layer(design, layer, config)[0]
        return found
