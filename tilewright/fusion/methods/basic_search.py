"""Searches that know nothing: what others have to beat, and the truth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from tilewright.fusion.problem import Labelling
from tilewright.fusion.registry import Objective, TooMany, moved

MOST = 20
"""Decisions whose labellings can be gone through, a million of them."""
_BATCH = 64


class RandomFusion:
    """Labels drawn evenly, no start looked at."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `BudgetSpent`, or ends when as many were drawn as there are labellings."""
        n = objective.decisions
        for _ in range(1 << min(n, 24)):
            objective.one(tuple(rng.random(n) < 0.5))


class Descent:
    """From the best start, the best move until none helps; then from the next start."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `BudgetSpent`."""
        costs = objective(starts)
        for row in np.argsort(costs, kind="stable").tolist():
            self._descend(objective, starts[row], float(costs[row]))

    @staticmethod
    def _descend(objective: Objective, labels: Labelling, cost: float) -> None:
        while True:
            around = [moved(labels, places) for places in objective.moves]
            if not around:
                return
            costs = objective(around)
            best = int(np.argmin(costs))
            if costs[best] >= cost:
                return
            labels, cost = around[best], float(costs[best])


class Exhaustive:
    """All labellings."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `TooMany` for more than 20 decisions, and `BudgetSpent`."""
        if objective.decisions > MOST:
            raise TooMany(
                f"{objective.decisions} decisions have {2.0**objective.decisions:.3g} labellings; "
                f"go through at most {MOST}, or choose another method"
            )
        every = list(product((False, True), repeat=objective.decisions))
        for begin in range(0, len(every), _BATCH):
            objective(every[begin : begin + _BATCH])
