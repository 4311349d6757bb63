"""Reference search methods for fusion labels: random, exhaustive, and segment by segment.

Benchmarks compare the built-in search with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.fusion.label_search import Objective, Search, descend, search_all
from tilewright.fusion.label_search import flip_labels as moved
from tilewright.fusion.problem import Labelling


class TooMany(TilewrightError):
    """More decisions than a method can go through."""


MOST_DECISIONS = 20
"""Decisions whose labellings can be gone through, a million of them."""
_BATCH = 64


class RandomFusion:
    """Labels drawn evenly, no start looked at."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Evaluate random labellings until as many were drawn as there are labellings.

        Raises:
            FusionBudgetSpent: the budget of the objective is spent.
        """
        n = objective.decisions
        for _ in range(1 << min(n, 24)):
            objective.one(tuple(rng.random(n) < 0.5))


class Exhaustive:
    """All labellings."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Evaluate every labelling.

        Raises:
            TooMany: there are more than 20 decisions.
            FusionBudgetSpent: the budget of the objective is spent.
        """
        if objective.decisions > MOST_DECISIONS:
            raise TooMany(
                f"{objective.decisions} decisions have {2.0**objective.decisions:.3g} "
                f"labellings; enumerate at most {MOST_DECISIONS} decisions, or choose "
                "another method"
            )
        every = list(product((False, True), repeat=objective.decisions))
        for begin in range(0, len(every), _BATCH):
            objective(every[begin : begin + _BATCH])


MOST_OF_SEGMENT = 6
"""Decisions of a segment whose labellings are all looked at; of a larger one single moves."""


class Programming:
    """From the best start.

    `found` is the labelling with the best of each segment, `expected` what the sum of all gains
    promises of it.
    """

    def __init__(self) -> None:
        self.expected = np.inf
        self.found: Labelling = ()

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Optimise each segment once, and combine the best labels of all segments.

        Raises:
            FusionBudgetSpent: the budget of the objective is spent.
        """
        costs = objective(starts)
        base, before = starts[int(np.argmin(costs))], float(costs.min())
        best, gain = list(base), 0.0
        for places in objective.segments:
            ways = self._ways(objective, base, places)
            result = objective(ways)
            least = int(np.argmin(result))
            if result[least] < before:
                gain += before - float(result[least])
                for place in places:
                    best[place] = ways[least][place]
        self.expected, self.found = before - gain, tuple(best)
        objective.one(self.found)

    @staticmethod
    def _ways(objective: Objective, base: Labelling, places: Sequence[int]) -> list[Labelling]:
        """Return copies of the base with other labels of a segment."""
        if len(places) > MOST_OF_SEGMENT:
            moves = [move for move in objective.moves if set(move) <= set(places)]
            return [base, *(moved(base, move) for move in moves)]
        results = []
        for own in product((False, True), repeat=len(places)):
            labels = list(base)
            for place, label in zip(places, own, strict=True):
                labels[place] = label
            results.append(tuple(labels))
        return results


METHODS: dict[str, Search] = {
    "random": RandomFusion().search,
    "descent": descend,
    "exhaustive": Exhaustive().search,
    "segments": Programming().search,
}
"""Each by its name."""


def search(
    name: str, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
) -> None:
    """Let a method search until it ends or all may be asked was. Raises `TooMany`."""
    search_all(METHODS[name], objective, starts, rng)


__all__ = ["METHODS", "TooMany", "search"]
