"""Lists searches for labels that the product does not ship, by name, to compare `descend` with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.fusion_search.annealing import Annealing
from benchmarks.fusion_search.basic_search import Exhaustive, RandomFusion, TooMany
from benchmarks.fusion_search.beam import Beam
from benchmarks.fusion_search.evolutionary import Evolutionary
from benchmarks.fusion_search.segment_dp import Programming
from tilewright.fusion.label_search import Objective, Search, descend, search_all
from tilewright.fusion.problem import Labelling

METHODS: dict[str, Search] = {
    "random": RandomFusion().search,
    "descent": descend,
    "exhaustive": Exhaustive().search,
    "annealing": Annealing().search,
    "segments": Programming().search,
    "beam": Beam().search,
    "evolutionary": Evolutionary().search,
}
"""Each by its name."""


def search(
    name: str, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
) -> None:
    """Let a method search until it ends or all may be asked was. Raises `TooMany`."""
    search_all(METHODS[name], objective, starts, rng)


__all__ = ["METHODS", "TooMany", "search"]
