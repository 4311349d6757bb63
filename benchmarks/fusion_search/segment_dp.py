"""Searches labels by dynamic programming over segments.

Labels of one segment hardly change what labels of another save. So the best of each make the best
of all, up to the error of adding them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from tilewright.fusion.label_search import Objective, flip_labels
from tilewright.fusion.problem import Labelling

MOST = 6
"""Decisions of a segment whose labellings are all looked at; of a larger one single moves."""


class Programming:
    """From the best start. `found` is the labelling with the best of each segment, `expected` what
    the sum of all gains promises of it."""

    def __init__(self) -> None:
        self.expected = np.inf
        self.found: Labelling = ()

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `FusionBudgetSpent`, or ends when every segment was looked at once."""
        costs = objective(starts)
        base, before = starts[int(np.argmin(costs))], float(costs.min())
        best, gain = list(base), 0.0
        for places in objective.segments:
            ways = self._ways(objective, base, places)
            found = objective(ways)
            least = int(np.argmin(found))
            if found[least] < before:
                gain += before - float(found[least])
                for place in places:
                    best[place] = ways[least][place]
        self.expected, self.found = before - gain, tuple(best)
        objective.one(self.found)

    @staticmethod
    def _ways(objective: Objective, base: Labelling, places: Sequence[int]) -> list[Labelling]:
        """The base with other labels of a segment."""
        if len(places) > MOST:
            moves = [move for move in objective.moves if set(move) <= set(places)]
            return [base, *(flip_labels(base, move) for move in moves)]
        found = []
        for own in product((False, True), repeat=len(places)):
            labels = list(base)
            for place, label in zip(places, own, strict=True):
                labels[place] = label
            found.append(tuple(labels))
        return found
