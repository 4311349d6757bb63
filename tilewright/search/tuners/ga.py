"""AutoTVM's genetic tuner. An individual is a config, and its genes are the knob indices.

Parents are combined by one-point crossover, and each knob of a child is mutated with a certain
probability (TVM 0.14, autotvm/tuner/ga_tuner.py). Unlike TVM's tuner, this one never measures a
config twice, which makes it a stronger competitor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.search import candidates
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Space

Flat = NDArray[np.int64]


class GeneticOptions(Options):
    """Options of GATuner. The defaults are TVM's."""

    population: int = Field(100, ge=2, description="configs per generation")
    elites: int = Field(3, ge=1, description="number of best configs that stay parents")
    mutation: float = Field(0.1, ge=0, le=1, description="probability that a knob is redrawn")


class Genetic(BaseExplorer[GeneticOptions]):
    """Genetic search with elites, one-point crossover and uniform mutation."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose configs of the current population that have not been tried yet.

        The arguments are those of `Explorer.generate`.
        """
        genes = self._genes(problem, state)
        waiting = genes[~np.isin(genes, history.tried_indices(problem.space))]
        return Candidates(problem.space.unravel(waiting[:n]))

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Breed the next population when all configs of the current one have been tried.

        Until then, the population is only stored in the state. The arguments are those of
        `Explorer.learn`.
        """
        space, genes = problem.space, self._genes(problem, state)
        tried = history.tried_indices(space)
        if not np.isin(genes, tried).all():
            return ExplorerState(arrays=dict(state.arrays) | {"genes": genes})
        elites = state.arrays.get("elites", np.empty(0, np.int64)).astype(np.int64)
        parents = np.unique(np.concatenate([genes, elites]))
        fitness = _throughput(space, history, parents)
        best = parents[np.argsort(-fitness, kind="stable")[: self.options.elites]]
        rng = problem.rng(history.round, "learn")
        if space.size - len(tried) <= self.options.population:
            genes = rng.permutation(candidates.sample(space, space.size, tried, rng))
        else:
            genes = self._offspring(space, parents, fitness, tried, rng)
        return ExplorerState(arrays={"genes": genes, "elites": best})

    def _genes(self, problem: Problem, state: ExplorerState) -> Flat:
        if "genes" in state.arrays:
            return state.arrays["genes"].astype(np.int64)
        rng = problem.rng(0, "population")
        return candidates.sample(problem.space, self.options.population, np.empty(0, np.int64), rng)

    def _offspring(
        self,
        space: Space,
        parents: Flat,
        fitness: NDArray[np.float64],
        tried: Flat,
        rng: np.random.Generator,
    ) -> Flat:
        """Breed the next population, which consists of untried configs.

        Parents are drawn with probabilities proportional to their fitness and combined by one-point
        crossover. Each knob of a child is mutated with the probability given by the option
        `mutation`. If the child was already tried, random knobs are redrawn until it is a new
        config.

        Args:
            space: the search space.
            parents: flat indices of the parents, shape (p,).
            fitness: fitness of the parents, shape (p,).
            tried: flat indices of the configs that were tried, ascending.
            rng: random generator.

        Returns:
            Flat indices of the new population.
        """
        chance = (fitness + 1e-8) / (fitness + 1e-8).sum()
        genomes, count = space.unravel(parents), space.cardinalities
        known = {int(i) for i in tried}
        born: list[int] = []
        while len(born) < self.options.population:
            one, other = rng.choice(len(parents), size=2, replace=False, p=chance)
            cut = int(rng.integers(len(count)))
            child = np.concatenate([genomes[one, :cut], genomes[other, cut:]])
            drawn = rng.integers(0, count)
            child = np.where(rng.random(len(count)) < self.options.mutation, drawn, child)
            while (flat := int(space.ravel(child[None].astype(np.int32))[0])) in known or not (
                _is_listed(space, flat)
            ):
                knob = int(rng.integers(len(count)))
                child[knob] = rng.integers(count[knob])
            known.add(flat)
            born.append(flat)
        return np.array(born, dtype=np.int64)


def _throughput(space: Space, history: History, parents: Flat) -> NDArray[np.float64]:
    """Return the fitness of the parents: their throughput relative to the fastest parent.

    Args:
        space: the search space.
        history: trials so far.
        parents: flat indices of the parents, shape (p,).

    Returns:
        Array of shape (p,); 0 for parents without a valid trial.
    """
    speed = history.throughput
    by_config = dict(zip(space.ravel(history.configs).tolist(), speed.tolist(), strict=True))
    result = np.array([by_config.get(int(i), 0.0) for i in parents])
    return result / max(float(result.max(initial=0.0)), 1e-12)


def _is_listed(space: Space, flat: int) -> bool:
    if space.listed is None:
        return True
    place = int(np.searchsorted(space.listed, flat))
    return place < len(space.listed) and space.listed[place] == flat


register(
    "ga", Genetic, GeneticOptions,
    summary="AutoTVM's genetic tuner: elites, one-point crossover, mutation",
)  # fmt: skip
