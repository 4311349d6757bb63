"""Lists searches for labels that the product does not ship, by name, to compare `descend` with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.fusion_search.basic_search import Exhaustive, RandomFusion, TooMany
from benchmarks.fusion_search.segment_dp import Programming
from tilewright.fusion.learned.descent import descend
from tilewright.fusion.objective import Objective, Search, search_all
from tilewright.fusion.problem import Labelling

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
