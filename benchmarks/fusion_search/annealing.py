"""Searches labels by simulated annealing: chains from the starts, each step makes a move or two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.fusion.label_search import Objective, flip_labels
from tilewright.fusion.problem import Labelling

CHAINS = 8
STEPS = 400
WARMEST, COLDEST = 3e-3, 1e-5
"""Temperatures, as shares of the cost of the best start: a label is worth about as much."""
PAIRS = 0.25
"""Steps that make two moves."""


class Annealing:
    """Chains side by side, so that a model is asked about all of them at once."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `FusionBudgetSpent`, or ends after so many steps."""
        first = objective(starts)
        order = np.argsort(first, kind="stable")
        rows = [int(order[k % len(order)]) for k in range(CHAINS)]
        labels, costs = [starts[row] for row in rows], first[rows]
        if not objective.moves:
            return
        scale = float(first.min())
        for step in range(STEPS):
            temperature = scale * WARMEST * (COLDEST / WARMEST) ** (step / STEPS)
            asked = [self._moved(objective, each, rng) for each in labels]
            new = objective(asked)
            chance = np.exp(np.clip((costs - new) / temperature, -700.0, 0.0))
            for k in np.flatnonzero(rng.random(CHAINS) < chance).tolist():
                labels[k], costs[k] = asked[k], new[k]

    @staticmethod
    def _moved(objective: Objective, labels: Labelling, rng: np.random.Generator) -> Labelling:
        for _ in range(1 + (rng.random() < PAIRS)):
            labels = flip_labels(labels, objective.moves[rng.integers(len(objective.moves))])
        return labels
