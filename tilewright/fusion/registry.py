"""The contract of a search for labels, and which there are.

A method asks an `Objective` until it has no more to ask or the objective raises
`FusionBudgetSpent`, which it lets pass. All it draws comes from the generator that it is given.
What it asks may be answered by exact simulation or by a model: it does not know."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.fusion.independent_groups import Segments
from tilewright.fusion.problem import Labelling

CostsOf = Callable[[Sequence[Labelling]], Sequence[float]]
"""What labelled networks take, in any unit; infinite where one cannot run."""


class FusionBudgetSpent(Exception):
    """No more labellings may be asked about: the search is over."""


class TooMany(TilewrightError):
    """More decisions than a method can go through."""


class Objective:
    """Answers what labellings cost, each distinct one once, at most `budget` of them. `asked` are
    they in order with their costs. `segments` are decisions that have to do with each other,
    `moves` those that are worth changing together: each by itself, and groups."""

    def __init__(
        self, costs: CostsOf, budget: int, segments: Segments, groups: Segments = ()
    ) -> None:
        self.decisions = sum(map(len, segments))
        self.segments = segments
        self.moves: Segments = (*((k,) for k in range(self.decisions)), *groups)
        self.budget = budget
        self.asked: dict[Labelling, float] = {}
        self._costs = costs

    def __call__(self, several: Sequence[Labelling]) -> NDArray[np.float64]:
        """Costs of labellings, shape (several,). Raises `FusionBudgetSpent` where they are too
        many; as many as may be are asked all the same."""
        new = [each for each in dict.fromkeys(several) if each not in self.asked]
        some = new[: self.budget - len(self.asked)]
        if some:
            self.asked.update(zip(some, map(float, self._costs(some)), strict=True))
        if len(some) < len(new):
            raise FusionBudgetSpent
        return np.array([self.asked[each] for each in several])

    def one(self, labels: Labelling) -> float:
        """Of one. Raises `FusionBudgetSpent`."""
        return float(self([labels])[0])

    @property
    def best(self) -> Labelling:
        """The cheapest so far, the first of equals."""
        return min(self.asked, key=self.asked.__getitem__)

    @property
    def least(self) -> float:
        """What that costs."""
        return self.asked[self.best]


def moved(labels: Labelling, places: Sequence[int]) -> Labelling:
    """The labels at these places fused, or none of them if all are: one label flipped."""
    new = not all(labels[place] for place in places)
    return tuple(new if k in places else label for k, label in enumerate(labels))


class FusionMethod(Protocol):
    """Searches labellings."""

    def search(
        self, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
    ) -> None:
        """Ask what tells most, `starts` first. Raises `FusionBudgetSpent` when no more may be
        asked, and `TooMany`."""
        ...


_METHODS = {
    "random": ("tilewright.fusion.methods.basic_search:RandomFusion", "labels drawn evenly"),
    "descent": (
        "tilewright.fusion.methods.basic_search:Descent",
        "the best single flip until none helps",
    ),
    "exhaustive": (
        "tilewright.fusion.methods.basic_search:Exhaustive",
        "all labellings of at most 20 decisions",
    ),
    "annealing": (
        "tilewright.fusion.methods.annealing:Annealing",
        "simulated annealing of single flips",
    ),
    "segments": (
        "tilewright.fusion.methods.segment_dp:Programming",
        "each segment's labels by themselves",
    ),
    "beam": ("tilewright.fusion.methods.beam:Beam", "a beam over decisions in the network's order"),
    "evolutionary": (
        "tilewright.fusion.methods.evolutionary:Evolutionary",
        "crossover and mutation",
    ),
}


def method_names() -> list[str]:
    """All there are."""
    return list(_METHODS)


def method_summary(name: str) -> str:
    """What it is, in half a line."""
    return _METHODS[name][1]


def make_method(name: str) -> FusionMethod:
    """The method of that name. Raises `UnknownName`."""
    if name not in _METHODS:
        raise UnknownName("method", name, method_names())
    module, _, attribute = _METHODS[name][0].partition(":")
    return cast(FusionMethod, getattr(importlib.import_module(module), attribute)())


def search(
    name: str, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
) -> None:
    """Let a method search until it ends or all may be asked was. Raises `UnknownName` and
    `TooMany`."""
    with suppress(FusionBudgetSpent):
        make_method(name).search(objective, starts, rng)
