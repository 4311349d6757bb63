"""Search algorithms over labellings: a cost function with a budget, and steepest descent.

A labelling holds one bool per possible fusion: whether it is applied. The cost function evaluates
labellings, by exact simulation or with a model, until its budget is spent; then it raises
`FusionBudgetSpent`. A search algorithm must not catch this exception, and must take all random
numbers from the generator that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tilewright.fusion.problem import Labelling, Segments

CostsOf = Callable[[Sequence[Labelling]], Sequence[float]]
"""Function that returns one cost per labelling, in any unit. The cost is infinite if the labelled
network cannot run."""


class FusionBudgetSpent(Exception):
    """Raised when the cost function has evaluated the maximum number of labellings."""


class Objective:
    """Cost function of a search over labellings, with a limit on the number of distinct labellings.

    A labelling holds one bool per possible fusion (a "decision"). Costs are cached, so that a
    labelling counts only once.

    Args:
        costs: computes the costs of labellings.
        budget: maximum number of distinct labellings.
        segments: groups of decisions that influence each other, as indices.
        groups: decisions that only have an effect together, as indices.

    Attributes:
        decisions: number of decisions.
        moves: sets of decisions that a search changes together: each single decision, and each of
            `groups`.
        asked: the costs so far, by labelling.
    """

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
        """Return the costs of several labellings.

        Args:
            several: the labellings, each with one bool per possible fusion.

        Returns:
            Float array of shape (labellings,).

        Raises:
            FusionBudgetSpent: the budget does not suffice for all of the labellings. As many as it
                allows were evaluated and are stored in `asked`.
        """
        new = [labels for labels in dict.fromkeys(several) if labels not in self.asked]
        some = new[: self.budget - len(self.asked)]
        if some:
            self.asked.update(zip(some, map(float, self._costs(some)), strict=True))
        if len(some) < len(new):
            raise FusionBudgetSpent
        return np.array([self.asked[labels] for labels in several])

    def one(self, labels: Labelling) -> float:
        """Return the cost of a single labelling.

        Args:
            labels: the labelling: one bool per possible fusion.

        Raises:
            FusionBudgetSpent: the labelling was not evaluated before, and the budget is spent.
        """
        return float(self([labels])[0])

    @property
    def best(self) -> Labelling:
        """The cheapest labelling so far; the first one if several have the same cost."""
        return min(self.asked, key=self.asked.__getitem__)

    @property
    def least(self) -> float:
        """The cost of the cheapest labelling."""
        return self.asked[self.best]


def flip_labels(labels: Labelling, places: Sequence[int]) -> Labelling:
    """Return a labelling in which several decisions are changed together.

    If all of them are fused already, they are set to not fused; otherwise, all are set to fused.

    Args:
        labels: the labelling: one bool per possible fusion.
        places: indices of the decisions to change.
    """
    new = not all(labels[place] for place in places)
    return tuple(new if k in places else label for k, label in enumerate(labels))


Search = Callable[[Objective, Sequence[Labelling], np.random.Generator], None]
"""A search algorithm. It evaluates the given labellings first and then other labellings, by calling
the objective. It raises `FusionBudgetSpent` when the budget of the objective is spent."""


def search_all(
    search: Search, objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator
) -> None:
    """Run a search until it ends by itself or until the budget of the objective is spent.

    The search returns nothing; the costs of all evaluated labellings are stored in `objective`.

    Args:
        search: the search algorithm.
        objective: cost function; it stores the costs of all labellings.
        starts: labellings (one bool per possible fusion) to start from.
        rng: random generator.
    """
    with suppress(FusionBudgetSpent):
        search(objective, starts, rng)


def descend(objective: Objective, starts: Sequence[Labelling], rng: np.random.Generator) -> None:
    """Search for a cheaper labelling by steepest descent, starting from each given labelling.

    The descent returns nothing; the costs of all evaluated labellings are stored in `objective`. It
    is deterministic and does not use `rng`.

    Args:
        objective: cost function; it stores the costs of all labellings.
        starts: labellings (one bool per possible fusion) to start from. The cheapest one comes
            first.
        rng: random generator.

    Raises:
        FusionBudgetSpent: the budget is spent.
    """
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
