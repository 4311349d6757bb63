"""Machines and schedules drawn evenly: what every other method has to beat."""

from __future__ import annotations

from codesign.lab import Lab
from codesign.method import MethodOptions, generator
from codesign.problem import Problem


class Random:
    """A machine at a time, so many schedules of each of its layers."""

    class Options(MethodOptions):
        """Ours: nothing is published of a random rival."""

        trials: int = 4
        """Schedules of a layer."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def search(self, problem: Problem, lab: Lab, seed: int) -> None:
        """Raises `BudgetSpent`, or ends when every machine was drawn."""
        rows = generator(seed, 0).permutation(len(problem.hardware.points))
        for row in rows.tolist():
            design = problem.design(row)
            for place, layer in enumerate(design.layers):
                space = design.target.space(layer.workload)
                count = min(self.options.trials, space.size)
                flat = generator(seed, 1, row, place).choice(space.size, count, replace=False)
                lab.evaluate(design, layer.workload, space.unravel(flat))
