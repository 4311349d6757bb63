"""BaCO: Bayesian optimisation with hidden constraints (Hellsten et al., ASPLOS 2023).

The score of a config is the expected improvement under a Gaussian process, multiplied by the
probability of being valid, which a random forest predicts.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from pydantic import Field

from tilewright.search import candidates
from tilewright.search.cost_model_protocols import Surrogate
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState, ModelInput
from tilewright.search.history import History, noise_of
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Configs, Lowered, Space
from tilewright.targets.features import Features


class BacoOptions(Options):
    """Options of BaCO that apply to knobs with finitely many values.

    The Gaussian process sees the knobs on a log scale.
    """

    first: int = Field(10, ge=1, description="random trials before the models are used")
    pool: int = Field(
        4096,
        ge=64,
        description="number of candidates to score where a space is too large to score completely",
    )
    trees: int = Field(100, ge=1, description="trees of the feasibility forest")


class Baco(BaseExplorer[BacoOptions]):
    """BaCO: a Gaussian process of the latency and a random forest of the validity."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose the configs with the largest score, or random configs before the first fit.

        The score is the expected improvement times the probability of being valid. The arguments
        are those of `Explorer.generate`.
        """
        space, tried = problem.space, history.tried_indices(problem.space)
        rng = problem.rng(history.round, "generate")
        if "P" not in state.models or history.best is None:
            return Candidates(space.unravel(candidates.sample(space, n, tried, rng)))
        best = history.configs[history.best][None]
        configs = candidates.pool(space, tried, best, self.options.pool, rng)
        if not len(configs):
            return Candidates(configs)
        x, model = _knobs(space, configs), cast(Surrogate, state.models["P"])
        chance = state.models["V"].predict(x)
        goal = float(history.log_latency[history.best])
        if not problem.deterministic:  # the lowest measurement may be a lucky one
            goal = float(model.predict(_knobs(space, history.configs[history.valid])).min())
        log_chance = np.log(np.maximum(chance, 1e-6))
        rows = model.propose(x, np.zeros(len(x)), goal, log_chance, n)
        scores = {"P": model.predict(x.rows(rows)), "V": chance[rows]}
        return Candidates(configs[rows], scores)

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Fit the Gaussian process of the latency and the random forest of the validity.

        Both are fitted to all trials. The state is returned unchanged until there are enough
        trials. The arguments are those of `Explorer.learn`.
        """
        valid = history.valid
        if len(history) < self.options.first or valid.sum() < 2:
            return state
        x = _knobs(problem.space, history.configs)
        performance = self.learners.surrogate(problem.seed)
        noise = noise_of(problem, history)
        performance.fit(x.rows(valid), history.log_latency[valid], noise)
        forest = self.learners.classifier("forest", problem.seed, trees=self.options.trees)
        forest.fit(x, valid.astype(np.float64))
        return ExplorerState({"P": performance, "V": forest})

    def model_inputs(
        self, problem: Problem, state: ExplorerState, history: History, lowered: Lowered
    ) -> dict[str, ModelInput]:
        """Return the knobs of the configs, which are the input of both models."""
        known = ModelInput.without_offset(_knobs(problem.space, lowered.configs))
        return dict.fromkeys(state.models, known)


def _knobs(space: Space, configs: Configs) -> Features:
    """Return log2 of every knob's value as features, one row per config.

    Each column has mean 0 and standard deviation 1 over the knob's values. If a knob has a value
    below 1, log2(value + 1) is used.

    Args:
        space: the search space.
        configs: knob indices, int array of shape (n, knobs).
    """
    columns = []
    for knob, values in zip(space.knobs, space.values(configs).T, strict=True):
        shift = 1.0 if min(knob.values) < 1 else 0.0
        levels = np.log2(np.array(knob.values, dtype=np.float64) + shift)
        columns.append((np.log2(values + shift) - levels.mean()) / max(levels.std(), 1e-9))
    return Features.from_names(np.stack(columns, axis=1), [knob.name for knob in space.knobs])


register(
    "baco", Baco, BacoOptions,
    summary="BaCO: Gaussian process × random-forest feasibility, using knobs only",
)  # fmt: skip
