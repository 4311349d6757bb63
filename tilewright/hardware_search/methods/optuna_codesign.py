"""The methods `nsga2` and `tpe`: a sampler of the library Optuna chooses machines.

The samplers are NSGA-II (Deb et al., 2002) and multi-objective TPE (Ozaki et al., 2020). They
minimise the area of a machine and the objective. A machine violates a constraint if it cannot be
built, is too large, or has a layer without a valid trial. Machines that cannot be built or are too
large cost no measurements.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from tilewright.core.lazy_module import lazy_module
from tilewright.hardware_search.evaluator import BudgetedEvaluator
from tilewright.hardware_search.layer_tuning import LayerTuning
from tilewright.hardware_search.methods import MethodOptions
from tilewright.hardware_search.objectives import totals
from tilewright.hardware_search.problem import CodesignProblem

if TYPE_CHECKING:
    import optuna
else:
    optuna = lazy_module("optuna")

Worth = tuple[float, float]
NOTHING: Worth = (1e9, 1e9)
IDLE = 2000
"""Number of draws in a row without a new machine after which sampling stops."""


class LibraryOptions(MethodOptions):
    """Options of the co-design methods `nsga2` and `tpe`.

    There is no published method to take the defaults from, so we chose them.
    """

    tuner: str = Field("default", description="tuner for the layers of a machine")
    trials: int = Field(2, ge=1, description="measurements per layer of a machine")


class _OptunaSearch:
    """Base class of co-design methods in which a sampler of Optuna chooses machines.

    A tuner for single layers chooses the schedules on each machine.

    Args:
        options: options of the method.
    """

    def __init__(self, options: LibraryOptions) -> None:
        self.options = options

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the Optuna sampler that draws machines. Subclasses implement this method.

        Args:
            seed: seed of the sampler.
        """
        raise NotImplementedError

    def search(self, problem: CodesignProblem, evaluator: BudgetedEvaluator, seed: int) -> None:
        """Let the sampler choose machines, and tune the layers of each new machine.

        When the sampler finds no new machines any more, the known machines are tuned further until
        all schedules were tried.

        Args:
            problem: the co-design problem.
            evaluator: measures schedules within the budget.
            seed: seed of the random numbers.

        Raises:
            BudgetSpent: no measurements are left.
        """
        study, knobs = self._study(problem, seed)
        worth: dict[int, Worth] = {}
        tunings: list[LayerTuning] = []
        idle = 0
        while idle < IDLE and len(worth) < len(problem.hardware.points):
            trial = study.ask(knobs)
            row = problem.hardware.row_of(np.array([trial.params[name] for name in knobs]))
            idle += 1
            if row is not None and row not in worth:
                tunings.append(
                    LayerTuning(problem.design(row), evaluator, seed, self.options.tuner)
                )
                idle, worth[row] = 0, self._tune_machine(tunings[-1])
            result = NOTHING if row is None else worth[row]
            trial.set_constraint("runs", float(result == NOTHING))
            study.tell(trial, result)
        # There are no new machines: spend the remaining budget on the schedules of known machines.
        tried = -1
        while tried < evaluator.spent + evaluator.compiled:
            tried = evaluator.spent + evaluator.compiled
            for tuning in tunings:
                self._tune_machine(tuning)

    def _study(
        self, problem: CodesignProblem, seed: int
    ) -> tuple[optuna.Study, dict[str, optuna.distributions.BaseDistribution]]:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=self.sampler(seed), directions=["minimize", "minimize"])
        return study, {
            knob.name: optuna.distributions.IntDistribution(0, len(knob.values) - 1)
            for knob in problem.hardware.space.knobs
        }

    def _tune_machine(self, tuning: LayerTuning) -> Worth:
        """Tune each layer of a machine for another round of trials.

        Args:
            tuning: the machine with the tuners of its layers.

        Returns:
            Area of the machine and value of the objective. If a layer has no valid trial, the
            result is `NOTHING`.
        """
        design = tuning.design
        layers = [tuning.advance(k, self.options.trials) for k in range(len(design.layers))]
        objective = tuning.evaluator.objective
        cost = float(totals(design, objective, np.stack(layers, axis=1)).prod())
        return (design.area, cost) if math.isfinite(cost) else NOTHING


class Nsga2Options(LibraryOptions):
    """Options of the co-design method `nsga2`, which uses Optuna's `NSGAIISampler`."""

    population: int = Field(
        12, ge=2, description="machines per generation; few, because measurements are few"
    )


class Nsga2(_OptunaSearch):
    """Co-design method in which the genetic algorithm NSGA-II chooses machines."""

    Options = Nsga2Options

    def __init__(self, options: Nsga2Options) -> None:
        super().__init__(options)
        self.population = options.population

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return Optuna's NSGA-II sampler."""
        return optuna.samplers.NSGAIISampler(population_size=self.population, seed=seed)


class TpeOptions(LibraryOptions):
    """Options of the co-design method `tpe`, which uses Optuna's `TPESampler`."""

    startup: int = Field(10, ge=1, description="random draws before the densities are used")


class Tpe(_OptunaSearch):
    """Co-design method in which a tree-structured Parzen estimator (TPE) chooses machines."""

    Options = TpeOptions

    def __init__(self, options: TpeOptions) -> None:
        super().__init__(options)
        self.startup = options.startup

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return Optuna's multivariate TPE sampler."""
        return optuna.samplers.TPESampler(
            n_startup_trials=self.startup, multivariate=True, seed=seed
        )
