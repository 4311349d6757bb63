"""CHAMELEON as a co-design method (Ahn et al., ICLR 2020), over machines and schedules.

One agent, which is trained by PPO, changes all knobs of the machine and of the layers' schedules.
The points that it visits are clustered, and one point per cluster is measured. The tuner for single
layers is `search.tuners.chameleon`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.hardware_search.methods.joint_space import JointSpace, Places
from tilewright.hardware_search.methods.ppo_codesign_options import CodesignPpoOptions
from tilewright.hardware_search.methods.published_method import PublishedMethod
from tilewright.hardware_search.methods.reward import LayerMeasurements, RewardModel
from tilewright.search.ppo import Agent
from tilewright.search.tuners.chameleon import clusters, representatives


class ChameleonCodesignOptions(CodesignPpoOptions):
    """Options of the co-design method `chameleon`."""

    temperature: float = Field(
        1.0, gt=0,
        description="temperature of the softmax over down, stay and up (original code: 0.1, "
            "with which hundreds of knobs stay unchanged at once and a walk ends)",
    )  # fmt: skip
    entropy: float = Field(
        0.1, ge=0, description="weight of the policy's entropy (original code: 0.3)"
    )
    kept: int = Field(
        64,
        ge=1,
        description="number of best visited, untried points to cluster (not given in the paper)",
    )
    knee: float = Field(
        2.5, gt=1, description="factor by which more clusters must reduce the error"
    )
    others: Literal["mode", "random"] = Field(
        "mode",
        description="values of the knobs that are not clustered: the most frequent one of "
        "the cluster, or random",
    )
    clustered: Literal["machine", "widest"] = Field(
        "machine", description="knobs that define the clusters: those of the machine or, as in the "
            "paper with a single layer, the two knobs with most values",
    )  # fmt: skip


class ChameleonCodesign(PublishedMethod):
    """Co-design with CHAMELEON: a PPO agent explores points, and one point per cluster is measured.

    A point is a machine with a schedule for every layer. The agent keeps its weights from batch to
    batch.
    """

    Options = ChameleonCodesignOptions

    def __init__(self, options: ChameleonCodesignOptions) -> None:
        super().__init__(options)
        self.options = options

    def begin(self, points: JointSpace, seed: int) -> None:
        """Create an untrained agent for the knobs of the search space."""
        self.agent = Agent(self.options, points.cardinalities, seed, {})

    def promising(
        self,
        points: JointSpace,
        rewards: RewardModel,
        seen: LayerMeasurements,
        tried: NDArray[np.int64],
        count: int,
        rng: np.random.Generator,
    ) -> Places:
        """Train the agent with the reward model, and return untried points, one per cluster.

        The best untried points that the agent visited are clustered. The point that represents a
        cluster combines values of its members, so the agent need not have visited it (see
        `_sample`). The arguments and the shape of the result are those of
        `PublishedMethod.promising`.
        """
        met = [
            self.agent.explore(points.random(self.options.starts, rng), rewards)
            for _ in range(self.options.episodes)
        ]
        places, times, _ = best_untried_points(
            points, rewards, np.concatenate(met), tried, self.options.kept
        )
        return self._sample(points, rewards, places, times, tried, count, rng)

    def _sample(
        self, points: JointSpace, rewards: RewardModel, places: Places, times: NDArray[np.int64],
        tried: NDArray[np.int64], count: int, rng: np.random.Generator,
    ) -> Places:  # fmt: skip
        """Cluster points, and choose one representative per cluster to measure.

        The preferred representative has the cluster centre's values of the clustered knobs. The
        option `others` defines its other values. A member of the cluster replaces it if its machine
        cannot be built, if it was tried or chosen already, or if its tiles overflow a scratchpad
        and those of the member do not. A cluster without an untried point has no representative.

        Args:
            points: the search space.
            rewards: predicts the rewards of points.
            places: the points to cluster, best first, int array of shape (points, knobs).
            times: how often the agent visited each point, int array of shape (points,).
            tried: keys of the points that were tried, int array of shape (tried,).
            count: maximum number of clusters.
            rng: random generator.

        Returns:
            Untried points whose machines can be built, int array of shape (n, knobs) with n ≤
            `count`.
        """
        if not len(places):
            return places
        columns = points.hardware_columns
        if self.options.clustered == "widest":
            columns = np.sort(np.argsort(-points.cardinalities, kind="stable")[:2])
        # The paper tries 8, 16, … 64 measurements: one to eight eighths of a batch. Here they are
        # numbers of points, which have one measurement per layer.
        counts = sorted({-(-count * eighths // 8) for eighths in range(1, 9)})
        seen_as = places[:, columns] / points.cardinalities[columns]
        label, centres = clusters(seen_as, times, counts, self.options.knee, rng)
        plan: list[NDArray[np.int64]] = []
        for cluster, centre in enumerate(centres * points.cardinalities[columns]):
            rows = np.flatnonzero(label == cluster)
            made = representatives(
                places[rows].astype(np.int32),
                times[rows],
                columns,
                centre,
                self.options.others,
                rng,
            ).astype(np.int64)
            known = np.union1d(tried, points.keys(np.array(plan))) if plan else tried
            new = made[(points.rows(made) >= 0) & ~np.isin(points.keys(made), known)]
            # Prefer points that fit the scratchpads, because the mode of a cluster need not fit.
            plan += list(new[np.argsort(rewards.overflowing(new) > 0, kind="stable")][:1])
        return np.array(plan, np.int64).reshape(-1, places.shape[1])


def best_untried_points(
    points: JointSpace, rewards: RewardModel, met: Places, tried: NDArray[np.int64], most: int
) -> tuple[Places, NDArray[np.int64], NDArray[np.float64]]:
    """Return the best distinct points that an agent visited and that were not tried yet.

    Points whose machine cannot be built are left out.

    Args:
        points: the search space.
        rewards: predicts the rewards of points.
        met: visited points, int array of shape (visits, knobs).
        tried: keys of the points that were tried, int array of shape (tried,).
        most: maximum number of points to return.

    Returns:
        The n best points, best first, int array of shape (n, knobs); the number of visits of each
        point, int array of shape (n,); and the predicted reward of each point, float array of shape
        (n,).
    """
    keys, first, times = np.unique(points.keys(met), return_index=True, return_counts=True)
    new = ~np.isin(keys, tried) & (points.rows(met[first]) >= 0)
    places, times = met[first[new]], times[new]
    scores = rewards(places) if len(places) else np.empty(0)
    best = np.argsort(-scores, kind="stable")[:most]
    return places[best], times[best], scores[best]
