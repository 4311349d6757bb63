"""AutoTVM as a co-design method: its XGBTuner (TVM 0.14) over machines and schedules.

Simulated annealing on the cost model changes one knob per move, either of the machine or of a
layer's schedule. The tuner for single layers is `search.tuners.autotvm`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.methods.joint_space import Floats, JointSpace, Places
from tilewright.hardware_search.methods.published_method import PublishedMethod, PublishedOptions
from tilewright.hardware_search.methods.reward import LayerMeasurements, RewardModel
from tilewright.search.tuners.autotvm import keep_best, run_annealing


class AutoTvmCodesignOptions(PublishedOptions):
    """Options of the co-design method `autotvm`, mostly those of AutoTVM's XGBTuner."""

    chains: int = Field(128, ge=1, description="parallel annealing chains")
    steps: int = Field(500, ge=1, description="largest number of annealing steps")
    patience: int = Field(
        50, ge=1, description="steps without an improvement, after which annealing stops"
    )
    hardware: float = Field(
        3 / 7, ge=0, le=1,
        description="fraction of moves that redraw a knob of the machine. In the paper, 3 "
            "of 7 knobs belong to the machine, but a network has hundreds of other "
            "knobs",
    )  # fmt: skip


class AutoTvmCodesign(PublishedMethod):
    """Co-design with AutoTVM's simulated annealing, over machines and schedules together.

    The annealing chains continue from batch to batch.
    """

    Options = AutoTvmCodesignOptions

    def __init__(self, options: AutoTvmCodesignOptions) -> None:
        super().__init__(options)
        self.options = options

    def begin(self, points: JointSpace, seed: int) -> None:
        """Reset the method for a new search. The annealing chains start at the first proposal."""
        self.chains: Places | None = None

    def promising(
        self,
        points: JointSpace,
        rewards: RewardModel,
        seen: LayerMeasurements,
        tried: NDArray[np.int64],
        count: int,
        rng: np.random.Generator,
    ) -> Places:
        """Return the untried points with the best predicted reward that simulated annealing finds.

        The arguments and the shape of the result are those of `PublishedMethod.promising`.
        """
        if self.chains is None:
            self.chains = points.random(self.options.chains, rng)
        kept = _Kept(points, tried, max(self.options.plan, count))
        self.chains = run_annealing(
            self.chains,
            rewards,
            lambda places: redraw_knobs(points, places, self.options.hardware, rng),
            kept.offer,
            self.options.steps,
            self.options.patience,
            rng,
        )
        return kept.best()[:count]


class _Kept:
    """The best untried points that simulated annealing has visited.

    A point is a machine with a schedule for every layer. Points whose machine cannot be built are
    left out.

    Args:
        points: the search space.
        tried: keys of the points that were tried (`JointSpace.keys`), int array of shape (tried,).
        size: maximum number of points to keep.
    """

    def __init__(self, points: JointSpace, tried: NDArray[np.int64], size: int) -> None:
        self.points, self.tried = points, tried
        self.top = np.full(size, -1, dtype=np.int64)
        self.scores = np.full(size, -np.inf)
        self.places: dict[int, NDArray[np.int64]] = {}

    def offer(self, places: Places, scores: Floats) -> bool:
        """Add points that simulated annealing has visited, if they are among the best.

        Points that were tried, points that are already kept, and points whose machine cannot be
        built are never added.

        Args:
            places: the points, int array of shape (n, knobs).
            scores: their predicted rewards, float array of shape (n,).

        Returns:
            True if at least one point was added.
        """
        keys = self.points.keys(places)
        scores = np.where(self.points.rows(places) < 0, -np.inf, scores)
        changed = bool(keep_best(keys, scores, self.tried, self.top, self.scores))
        for row in np.flatnonzero(np.isin(keys, self.top)).tolist():
            self.places.setdefault(int(keys[row]), places[row])
        return changed

    def best(self) -> Places:
        """Return the points, best first, int array of shape (points, knobs)."""
        order = np.argsort(-self.scores, kind="stable")
        results = [self.places[key] for key in self.top[order].tolist() if key >= 0]
        return np.array(results, np.int64).reshape(-1, len(self.points.cardinalities))


def redraw_knobs(
    points: JointSpace, places: Places, hardware: float, rng: np.random.Generator
) -> Places:
    """Change one randomly chosen knob of each point to another value, as a step of annealing.

    Knobs with more values are chosen more often, with a weight of 1 - 1 / values. Points are
    returned unchanged if every knob has only one value.

    Args:
        points: the search space.
        places: the points, int array of shape (points, knobs).
        hardware: probability that the changed knob is a hardware knob. Otherwise it is a knob of a
            layer's schedule. If only one of the two groups has knobs with several values, all
            changed knobs are of this group.
        rng: random generator.

    Returns:
        The changed points, int array of shape (points, knobs).
    """
    count = points.cardinalities
    weight = 1.0 - 1.0 / count
    machine = np.arange(len(count)) < len(points.machine)
    parts = [np.where(machine, weight, 0.0), np.where(machine, 0.0, weight)]
    sums = [part.sum() for part in parts]
    if not any(sums):
        return places
    shares = [hardware if sums[1] else 1.0, 1.0 - hardware if sums[0] else 1.0]
    chance = sum(
        part * (share / whole)
        for part, share, whole in zip(parts, shares, sums, strict=True)
        if whole
    )
    knob = rng.choice(len(count), size=len(places), p=chance / np.sum(chance))
    moved, rows = places.copy(), np.arange(len(places))
    step = rng.integers(1, np.maximum(count[knob], 2))
    moved[rows, knob] = (moved[rows, knob] + step) % count[knob]
    return moved
