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
    """Error: there are more decisions than a method can enumerate."""


MOST_DECISIONS = 20
"""Maximum number of decisions of an exhaustive search; it evaluates about a million labellings."""
_BATCH = 64


class RandomFusion:
    """Random search: labellings are drawn uniformly, and the starts are ignored."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Evaluate random labellings, as many as there are different labellings.

        Raises:
            FusionBudgetSpent: the budget of the objective is spent.
        """
        n = objective.decisions
        for _ in range(1 << min(n, 24)):
            objective.one(tuple(rng.random(n) < 0.5))


class Exhaustive:
    """Exhaustive search over all labellings."""

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
"""Maximum number of decisions of a segment whose labellings are all evaluated. In a larger segment,
only single moves are evaluated."""


class Programming:
    """Search that optimises each segment separately, beginning with the best start.

    After a search, `found` is the labelling that combines the best labels of all segments, and
    `expected` is the cost that it would have if the gains of the segments added up.
    """

    def __init__(self) -> None:
        self.expected = np.inf
        self.found: Labelling = ()

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Optimise each segment once, and evaluate the combination of the best labels.

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
        """Return copies of `base` with different labels of one segment."""
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
"""All search methods by name."""


def search(
    name: str, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
) -> None:
    """Run a method until it ends or the budget is spent. Raise `TooMany` if it cannot run."""
    search_all(METHODS[name], objective, starts, rng)


__all__ = ["METHODS", "TooMany", "search"]
