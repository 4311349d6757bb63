"""Searches labels by beam search: decisions in the network's order, on the best labellings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.fusion.label_search import Objective, flip_labels
from tilewright.fusion.problem import Labelling

WIDTH = 8
SWEEPS = 2


class Beam:
    """What is not yet decided is as in the labelling that it began with."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `FusionBudgetSpent`, or ends when each decision was looked at twice."""
        kept = list(dict.fromkeys(starts))
        kept = self._best(objective, kept)
        for _ in range(SWEEPS):
            before = kept
            for places in objective.moves:
                both = [*kept, *(flip_labels(labels, places) for labels in kept)]
                kept = self._best(objective, list(dict.fromkeys(both)))
            if kept == before:
                return

    @staticmethod
    def _best(objective: Objective, several: Sequence[Labelling]) -> list[Labelling]:
        costs = objective(several)
        return [several[row] for row in np.argsort(costs, kind="stable")[:WIDTH].tolist()]
