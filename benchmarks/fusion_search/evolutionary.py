"""Searches labels by evolution.

Parents win tournaments, crossover exchanges stretches of the network, some labels are flipped, the
best survive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.label_search import Objective
from tilewright.fusion.problem import Labelling

POPULATION = 32
GENERATIONS = 60
RIVALS = 3
FLIPS = 1.5
"""Labels that a child has flipped, on average."""


class Evolutionary:
    """Neighbours in the order of decisions are neighbours in the network, so they stay together."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `FusionBudgetSpent`, or ends after so many generations."""
        n = objective.decisions
        if not n:
            objective(starts)
            return
        people = np.array(starts, np.bool_).reshape(-1, n)
        while len(people) < POPULATION:
            child = people[len(people) % len(starts)] ^ (rng.random(n) < max(FLIPS / n, 0.1))
            people = np.concatenate([people, child[None]])
        costs = self._ask(objective, people)
        for _ in range(GENERATIONS):
            children = self._children(people, costs, rng)
            everyone = np.unique(np.concatenate([people, children]), axis=0)
            costs = self._ask(objective, everyone)
            best = np.argsort(costs, kind="stable")[:POPULATION]
            people, costs = everyone[best], costs[best]

    @staticmethod
    def _ask(objective: Objective, people: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Costs (people,) of labels (people, decisions)."""
        return objective([tuple(row) for row in people.tolist()])

    @staticmethod
    def _children(
        people: NDArray[np.bool_], costs: NDArray[np.float64], rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Of people (people, decisions) with costs (people,); as many as they."""
        count, n = people.shape
        rivals = rng.integers(0, count, (2, count, RIVALS))
        winners = rivals[
            np.arange(2)[:, None], np.arange(count)[None, :], costs[rivals].argmin(axis=2)
        ]
        cuts = np.sort(rng.integers(0, n + 1, (count, 2)), axis=1)
        place = np.arange(n)
        inside = (place >= cuts[:, :1]) & (place < cuts[:, 1:])
        children = np.where(inside, people[winners[1]], people[winners[0]])
        flips: NDArray[np.bool_] = rng.random((count, n)) < FLIPS / n
        found: NDArray[np.bool_] = np.logical_xor(children, flips)
        return found
