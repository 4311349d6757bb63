"""Ranking of points with the target's closed-form estimates, for the option `estimates`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.methods.joint_space import Floats, JointSpace, Places
from tilewright.hardware_search.methods.reward import (
    LayerMeasurements,
    RewardModel,
    layer_features,
    layer_names,
)
from tilewright.hardware_search.problem import CodesignLayer, Design
from tilewright.models.trees import AutoTVMRanker
from tilewright.targets.base import Configs
from tilewright.targets.capabilities import Estimates, capability
from tilewright.targets.features import Features


def estimate_layer(design: Design, layer: CodesignLayer, configs: Configs) -> Floats:
    """Return the target's closed-form estimates for configs of a layer.

    Args:
        design: the machine.
        layer: the layer.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        Natural logarithm of the estimated latency, and the occupied share of the fullest
        scratchpad, float array of shape (n, 2); NaN if the target has no estimates.
    """
    known = capability(design.target, Estimates)
    if known is None:
        return np.full((len(configs), 2), np.nan)
    table = known.estimate(layer.workload, configs)
    share = table.of_meaning("share").max(axis=1, initial=0.0)
    return np.stack([np.log(table.total("latency")), share], axis=1)


class EstimateRanking:
    """Ranks points with a cost model that also uses the target's closed-form estimates.

    A point is a machine with a schedule for every layer (see `JointSpace`).

    Args:
        points: the search space.
        rewards: reward model of the search, which knows the best measured latency of each layer.
        seen: measurements on which the cost model is trained, with estimates.
        plan: number of measurements per batch.
        seed: seed of the cost model.
    """

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
        """Return the most promising points.

        Points are sorted by the number of layers that overflow a scratchpad, fewest first, and then
        by predicted latency.

        Args:
            places: the points, int array of shape (points, knobs).
            count: maximum number of points to return.

        Returns:
            The points, best first, int array of shape (n, knobs) with n ≤ `count`.
        """
        cores = self.points.cores(places)
        rows, known = layer_features(self.points, places), self._estimates(places)
        flat = self._features(rows.reshape(-1, rows.shape[2]), known.reshape(-1, 2))
        throughput = self.model.predict(flat).reshape(rows.shape[:2])
        seconds = self.rewards.seconds(cores, throughput)
        full = (known[:, :, 1] > 1).sum(axis=1)
        return places[np.lexsort((seconds, full))[:count]]

    def _features(self, rows: Floats, known: Floats) -> Features:
        names = [*layer_names(self.points), "estimated latency", "estimated share"]
        return Features.from_names(np.concatenate([rows, known], axis=1), names)

    def _estimates(self, places: Places) -> Floats:
        """Return the results of `estimate_layer` for all layers of points.

        Args:
            places: the points, int array of shape (points, knobs).

        Returns:
            Float array of shape (points, slots, 2); NaN for layers that a machine does not run.
        """
        result = np.full((len(places), len(self.points.slots.names), 2), np.nan)
        machines: NDArray[np.int64] = self.points.rows(places)
        for at, (row, point) in enumerate(zip(machines.tolist(), places, strict=True)):
            design = self.points.problem.design(row)
            for slot, layer, config in self.points.schedules(design, point):
                if slot >= 0:
                    result[at, slot] = estimate_layer(design, layer, config)[0]
        return result
