"""Searches labels at random and exhaustively: the control, and the ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from tilewright.core.errors import TilewrightError
from tilewright.fusion.label_search import Objective
from tilewright.fusion.problem import Labelling


class TooMany(TilewrightError):
    """More decisions than a method can go through."""


MOST = 20
"""Decisions whose labellings can be gone through, a million of them."""
_BATCH = 64


class RandomFusion:
    """Labels drawn evenly, no start looked at."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `FusionBudgetSpent`, or ends when as many were drawn as there are labellings."""
        n = objective.decisions
        for _ in range(1 << min(n, 24)):
            objective.one(tuple(rng.random(n) < 0.5))


class Exhaustive:
    """All labellings."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Raises `TooMany` for more than 20 decisions, and `FusionBudgetSpent`."""
        if objective.decisions > MOST:
            raise TooMany(
                f"{objective.decisions} decisions have {2.0**objective.decisions:.3g} labellings; "
                f"go through at most {MOST}, or choose another method"
            )
        every = list(product((False, True), repeat=objective.decisions))
        for begin in range(0, len(every), _BATCH):
            objective(every[begin : begin + _BATCH])
