"""Simulated annealing: chains from the starts, each move flips a label or two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusion.method import Objective
from fusion.problem import Labels

CHAINS = 8
STEPS = 400
WARMEST, COLDEST = 3e-3, 1e-5
"""Temperatures, as shares of the cost of the best start: a label is worth about as much."""
PAIRS = 0.25
"""Moves that flip two labels."""


class Annealing:
    """Chains side by side, so that a model is asked about all of them at once."""

    def search(
        self, objective: Objective, starts: Sequence[Labels], rng: np.random.Generator
    ) -> None:
        """Raises `BudgetSpent`, or ends after so many steps."""
        n = objective.decisions
        first = objective(starts)
        order = np.argsort(first, kind="stable")
        rows = [int(order[k % len(order)]) for k in range(CHAINS)]
        labels = np.array([starts[row] for row in rows], np.bool_).reshape(CHAINS, n)
        costs = first[rows]
        if not n:
            return
        scale = float(first.min())
        for step in range(STEPS):
            temperature = scale * WARMEST * (COLDEST / WARMEST) ** (step / STEPS)
            moved = labels.copy()
            moved[np.arange(CHAINS), rng.integers(0, n, CHAINS)] ^= True
            again = np.flatnonzero(rng.random(CHAINS) < PAIRS)
            moved[again, rng.integers(0, n, len(again))] ^= True
            new = objective([tuple(row) for row in moved.tolist()])
            with np.errstate(over="ignore", invalid="ignore"):
                chance = np.exp(np.minimum((costs - new) / temperature, 0.0))
            taken = rng.random(CHAINS) < chance
            labels[taken], costs[taken] = moved[taken], new[taken]
