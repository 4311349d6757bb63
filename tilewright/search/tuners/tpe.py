"""Optuna's TPE sampler with constraints.

TPE models the density of good configs and the density of bad configs, and proposes configs for
which the ratio of the two is high (Bergstra et al., NeurIPS 2011). Constraints and batches are
handled as in Optuna's `TPESampler`. The Optuna study exists in memory for one batch only. It is
rebuilt from the history in every round, so no state has to be stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.core.lazy_module import lazy_module
from tilewright.search import candidates
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Space

if TYPE_CHECKING:
    import optuna
    from optuna import Study
    from optuna.distributions import BaseDistribution
else:
    optuna = lazy_module("optuna")

Distributions = dict[str, "BaseDistribution"]


class OptunaOptions(Options):
    """Options of Optuna's `TPESampler`. The first three defaults are Optuna's."""

    startup: int = Field(10, ge=1, description="random trials before the densities are used")
    candidates: int = Field(
        24, ge=1, description="number of draws, of which the one with the best ratio is taken"
    )
    multivariate: bool = Field(
        True, description="use one joint density of all knobs instead of one per knob"
    )
    knobs: Literal["int", "categorical", "mixed"] = Field(
        "mixed",
        description="how TPE sees a knob: 'int' (the rank of its value), 'categorical' (a "
        "category without order), or 'mixed' (a category if the knob has only "
        "two values; the best choice on the replayed tables)",
    )
    redraws: int = Field(
        8,
        ge=0,
        description="additional draws to find an untried config, before a random one is taken",
    )


class Optuna(BaseExplorer[OptunaOptions]):
    """Optuna's tree-structured Parzen estimator; invalid trials are violated constraints."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose `n` untried configs that Optuna's sampler suggests.

        If the sampler repeats tried configs too often, random configs fill the batch. The arguments
        are those of `Explorer.generate`.
        """
        space, rng = problem.space, problem.rng(history.round, "generate")
        tried = history.tried_indices(space)
        n = min(n, space.size - len(tried))
        distributions = _distributions(space, self.options.knobs)
        study = self._study(history, distributions, int(rng.integers(1 << 31)))
        known, batch = set(tried.tolist()), list[int]()
        members = None if space.listed is None else set(space.listed)
        for _ in range(n * (1 + self.options.redraws)):
            if len(batch) == n:
                break
            # Every drawn config, even an unusable one, stays a running trial of the study until the
            # batch ends. The sampler avoids running trials (constant liar), so draws differ.
            drawn = study.ask(distributions).params
            config = np.array([[drawn[knob.name] for knob in space.knobs]], dtype=np.int32)
            flat = int(space.ravel(config)[0])
            if flat not in known and (members is None or flat in members):
                known.add(flat)
                batch.append(flat)
        rest = candidates.sample(space, n - len(batch), np.array(sorted(known), np.int64), rng)
        return Candidates(space.unravel(np.concatenate([np.array(batch, np.int64), rest])))

    def _study(self, history: History, distributions: Distributions, seed: int) -> Study:
        """Build an Optuna study from all trials so far.

        Configs that other processes are measuring are added as running trials.

        Args:
            history: trials so far.
            distributions: distribution of each knob's value index, by knob name.
            seed: seed of the sampler.
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=self.options.startup,
            n_ei_candidates=self.options.candidates,
            multivariate=self.options.multivariate,
            seed=seed,
        )
        study = optuna.create_study(sampler=sampler, direction="minimize")
        cost = np.where(history.valid, history.log_latency, 0.0)
        for config, valid, value in zip(history.configs, history.valid, cost, strict=True):
            study.add_trial(
                optuna.trial.create_trial(
                    params=_params(config, distributions),
                    distributions=distributions,
                    value=float(value),
                    constraints={"invalid": 0.0 if valid else 1.0},
                )
            )
        for config in [] if history.pending is None else history.pending:
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING,
                    params=_params(config, distributions),
                    distributions=distributions,
                )
            )
        return study


def _distributions(space: Space, kind: str) -> Distributions:
    """Return the Optuna distribution of each knob's value index, by knob name.

    Args:
        space: the search space.
        kind: "categorical" for categorical distributions, "mixed" for categorical distributions
            only of knobs with two values, otherwise integer distributions.
    """
    distributions: Distributions = {}
    for knob in space.knobs:
        count = len(knob.values)
        named = kind == "categorical" or (kind == "mixed" and count == 2)
        distributions[knob.name] = (
            optuna.distributions.CategoricalDistribution(range(count))
            if named
            else optuna.distributions.IntDistribution(0, count - 1)
        )
    return distributions


def _params(config: NDArray[np.int32], distributions: Distributions) -> dict[str, int]:
    return {name: int(index) for name, index in zip(distributions, config, strict=True)}


register(
    "optuna", Optuna, OptunaOptions,
    summary="Optuna's TPE, with invalid trials as violated constraints",
)  # fmt: skip
