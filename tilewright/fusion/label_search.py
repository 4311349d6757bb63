"""Searches of labellings: a budgeted objective, and descent by single moves.

An objective answers by exact simulation or by a model, as long as its budget lasts. A search draws
all from the generator that it is given, and lets `FusionBudgetSpent` pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.problem import Labelling, Segments

CostsOf = Callable[[Sequence[Labelling]], Sequence[float]]
"""What labelled networks take, in any unit; infinite where one cannot run."""


class FusionBudgetSpent(Exception):
    """No more labellings may be asked about: the search is over."""


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
        """Return the cost of one labelling. Raises `FusionBudgetSpent`."""
        return float(self([labels])[0])

    @property
    def best(self) -> Labelling:
        """The cheapest labelling so far; of equal ones the first."""
        return min(self.asked, key=self.asked.__getitem__)

    @property
    def least(self) -> float:
        """The cost of the cheapest labelling."""
        return self.asked[self.best]


def flip_labels(labels: Labelling, places: Sequence[int]) -> Labelling:
    """Return the labels with all of these places fused, or with none of them if all are. One place
    is one flipped label."""
    new = not all(labels[place] for place in places)
    return tuple(new if k in places else label for k, label in enumerate(labels))


Search = Callable[[Objective, Sequence[Labelling], np.random.Generator], None]
"""Asks what tells most, the given labellings first. Raises `FusionBudgetSpent` when no more may be
asked."""


def search_all(
    search: Search, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
) -> None:
    """Run a search until it ends or its budget is spent."""
    with suppress(FusionBudgetSpent):
        search(objective, starts, rng)


def descend(objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator) -> None:
    """Descend from each start, the best first. Raises `FusionBudgetSpent`."""
    costs = objective(starts)
    for row in np.argsort(costs, kind="stable").tolist():
        _descend_from(objective, starts[row], float(costs[row]))


def _descend_from(objective: Objective, labels: Labelling, cost: float) -> None:
    while True:
        around = [flip_labels(labels, places) for places in objective.moves]
        if not around:
            return
        costs = objective(around)
        best = int(np.argmin(costs))
        if costs[best] >= cost:
            return
        labels, cost = around[best], float(costs[best])
