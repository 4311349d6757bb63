"""Searches labels by single moves: from the best start the best move until none helps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.fusion.objective import Objective, moved
from tilewright.fusion.problem import Labelling


def descend(objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator) -> None:
    """Descend from each start, the best first. Raises `FusionBudgetSpent`."""
    costs = objective(starts)
    for row in np.argsort(costs, kind="stable").tolist():
        _descend_from(objective, starts[row], float(costs[row]))


def _descend_from(objective: Objective, labels: Labelling, cost: float) -> None:
    while True:
        around = [moved(labels, places) for places in objective.moves]
        if not around:
            return
        costs = objective(around)
        best = int(np.argmin(costs))
        if costs[best] >= cost:
            return
        labels, cost = around[best], float(costs[best])
