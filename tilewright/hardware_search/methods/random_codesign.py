"""Random search as a co-design method: draws machines and schedules uniformly, as a baseline."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from tilewright.hardware_search.evaluator import RETRIES, BudgetedEvaluator
from tilewright.hardware_search.methods import MethodOptions, generator
from tilewright.hardware_search.problem import CodesignProblem, Design


class RandomCodesignOptions(MethodOptions):
    """Options of the co-design method `random`.

    There is no published method to take the defaults from, so we chose them.
    """

    trials: int = 4
    """Number of measurements per layer in a turn."""


class RandomCodesign:
    """Co-design by random search.

    The machines take turns in a random order. In a turn, some random schedules of each layer are
    measured.

    Args:
        options: options of the method.
    """

    Options = RandomCodesignOptions

    def __init__(self, options: RandomCodesignOptions) -> None:
        self.options = options

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Search until every schedule of every machine was tried.

        Args:
            problem: the co-design problem.
            evaluator: measures schedules within the budget.
            seed: seed of the random numbers.

        Raises:
            BudgetSpent: no measurements are left.
        """
        rows = generator(seed, 0).permutation(len(problem.hardware.points)).tolist()
        for turn in count(1):
            before = evaluator.compiled
            for row in rows:
                self._measure(problem.design(row), evaluator, seed, turn)
            if evaluator.compiled == before:
                return

    def _measure(self, design: Design, evaluator: BudgetedEvaluator, seed: int, turn: int) -> None:
        for place, layer in enumerate(design.layers):
            space, tried = (
                design.target.space(layer.workload),
                evaluator.layer_trials(design, layer.workload),
            )
            rng = generator(seed, turn, design.row, place)
            flat = _draw_untried(rng, space.size, list(tried.trials), RETRIES)
            configs = space.unravel(flat)
            evaluator.evaluate_until(design, layer.workload, configs, self.options.trials)


def _draw_untried(
    rng: np.random.Generator, size: int, tried: list[int], most: int
) -> NDArray[np.int64]:
    """Draw random configs that were not tried yet.

    Args:
        rng: random generator.
        size: number of configs in the space.
        tried: flat indices of the configs that were tried.
        most: maximum number of configs to draw.

    Returns:
        Flat indices of the configs, int array of shape (n,) with n ≤ `most`.
    """
    left = np.delete(np.arange(size), tried) if tried else size
    return rng.choice(left, min(most, size - len(tried)), replace=False)
