"""AutoTVM's XGBTuner: simulated annealing on a cost model plans the next configs.

When all configs of a plan have been measured, the model is refitted and a new plan is made (TVM
0.14, autotvm/tuner/model_based_tuner.py, sa_model_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numba as nb
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.search import candidates
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState
from tilewright.search.history import History
from tilewright.search.problem import Problem
from tilewright.search.registry import Options, register
from tilewright.targets.base import Configs, Space
from tilewright.targets.features import Features

Points = NDArray[np.int64]
Score = Callable[[NDArray[np.int64]], NDArray[np.float64]]


class AutoTVMOptions(Options):
    """Options of XGBTuner. The defaults are TVM's, except for `features`.

    TVM's default for `features` is `itervar`, which TVM reads from the lowered program of each
    config. Tilewright computes these features from the knobs (`models.features.loop_features`), so
    no config has to be lowered for them.
    """

    features: Literal["knob", "itervar"] = Field("knob", description="features that the model uses")

    plan: int = Field(64, ge=1, description="configs planned between two fits of the model")
    chains: int = Field(
        128, ge=1, description="parallel annealing chains, which continue in the next plan"
    )
    steps: int = Field(500, ge=1, description="largest number of annealing steps")
    patience: int = Field(
        50, ge=1, description="steps without a change of the best set, after which annealing stops"
    )
    greed: float = Field(0.05, ge=0, le=1, description="fraction of a plan that is random")


class AutoTVM(BaseExplorer[AutoTVMOptions]):
    """XGBTuner: boosted trees on knob features, simulated annealing and ε-greedy exploration."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose the next untried configs of the plan, filled up with random configs.

        The plan is the list of configs that `learn` found by simulated annealing. There is none
        before the first fit of the cost model. The arguments are those of `Explorer.generate`.
        """
        tried = history.tried_indices(problem.space)
        plan = state.arrays.get("plan", np.empty(0, np.int64)).astype(np.int64)
        # As in TVM, the last int(greed · plan) configs of a plan are replaced by random configs.
        usable = len(plan) - int(self.options.greed * self.options.plan)
        fresh = plan[: max(usable, 0)]
        fresh = fresh[~np.isin(fresh, tried)][:n]
        rng = problem.rng(history.round, "generate")
        known = np.union1d(tried, fresh)
        lucky = candidates.sample(problem.space, n - len(fresh), known, rng)
        return Candidates(problem.space.unravel(np.concatenate([fresh, lucky])))

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Once the current plan has been measured, refit the cost model and make a new plan.

        Simulated annealing on the cost model finds the configs of the plan. Before that, the state
        is returned unchanged. The arguments are those of `Explorer.learn`.
        """
        fits = int(state.arrays.get("fits", np.zeros(1, np.int64))[0])
        if len(history) < self.options.plan * (fits + 1) or not history.valid.any():
            return state
        rng = problem.rng(history.round, "learn")
        model = self.learners.regressor(
            "autotvm-ranker", int(rng.integers(1 << 31)), plan=self.options.plan
        )
        throughput = history.throughput
        shuffled = rng.permutation(len(history))
        features = self._features(problem, history.configs)
        model.fit(features.rows(shuffled), (throughput / throughput.max())[shuffled])
        plan, chains = anneal(
            problem.space,
            scorer(problem.space, lambda configs: model.predict(self._features(problem, configs))),
            self.options,
            history.tried_indices(problem.space),
            state.arrays.get("chains"),
            rng,
        )
        arrays = {"plan": plan, "chains": chains, "fits": np.array([fits + 1])}
        return ExplorerState({"P": model}, arrays)

    def _features(self, problem: Problem, configs: Configs) -> Features:
        if self.options.features == "itervar":
            return self.learners.loop_features(problem, configs)
        return knob_features(problem.space, configs)


def knob_features(space: Space, configs: Configs) -> Features:
    """Compute AutoTVM's "knob" features of configs.

    They are the inner and outer extent of each split (`tile_*` knobs), and the values of the other
    knobs.

    Args:
        space: the search space.
        configs: knob indices, int array of shape (n, knobs).

    Returns:
        Features with one row per config.
    """
    values = space.values(configs).astype(np.float64)
    columns = {}
    for index, knob in enumerate(space.knobs):
        if knob.name.startswith("tile_"):
            columns[f"outer {knob.name}"] = max(knob.values) / values[:, index]
        columns[knob.name] = values[:, index]
    return Features.from_names(np.stack(list(columns.values()), axis=1), list(columns))


def anneal(
    space: Space,
    score: Score,
    options: AutoTVMOptions,
    tried: NDArray[np.int64],
    chains: NDArray[np.generic] | None,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Search for the untried configs with the highest predicted scores by simulated annealing.

    Args:
        space: the search space.
        score: function that predicts scores of flat indices; higher is better.
        options: options of the tuner, such as the number of chains and steps.
        tried: flat indices of the configs that were tried, ascending.
        chains: flat indices at which the chains of the previous search ended, shape (chains,). The
            new chains start there. None starts them at random configs.
        rng: random generator.

    Returns:
        Two arrays of flat indices: the best untried configs, best first, shape (at most `plan`,),
            and the end points of the chains, shape (chains,).
    """
    if chains is None:
        points = candidates.sample(space, options.chains, np.empty(0, np.int64), rng)
    else:
        points = chains.astype(np.int64)
    top = np.full(options.plan, -1, dtype=np.int64)
    top_scores = np.full(options.plan, -np.inf)
    points = run_annealing(
        points, score, lambda flat: random_walk(space, flat, rng),
        lambda flat, scores: keep_best(flat, scores, tried, top, top_scores),
        options.steps, options.patience, rng,
    )  # fmt: skip
    order = np.argsort(-top_scores, kind="stable")
    return top[order][top_scores[order] >= 0], points


def run_annealing(
    points: Points, score: Callable[[Points], NDArray[np.float64]],
    move: Callable[[Points], Points], keep: Callable[[Points, NDArray[np.float64]], bool],
    steps: int, patience: int, rng: np.random.Generator,
) -> Points:  # fmt: skip
    """Run several chains of simulated annealing and return their end points.

    The visited points are not returned. The callback `keep` collects the best of them.

    Args:
        points: start points, shape (chains, …).
        score: function that returns the scores of points, shape (chains,); higher is better.
        move: function that returns a changed copy of each point.
        keep: callback that receives all visited points and their scores, stores the best ones, and
            returns whether the stored set changed.
        steps: maximum number of steps.
        patience: number of steps without a change of the stored set after which to stop.
        rng: random generator.

    Returns:
        Last point of each chain, shape (chains, …).
    """
    scores = score(points)
    keep(points, scores)
    cooling = 1.0 / (steps + 1)
    temperature, step, last_change = 1.0, 0, 0
    while step < min(steps, last_change + patience):
        moved = move(points)
        moved_scores = score(moved)
        gain = np.minimum((moved_scores - scores) / (temperature + 1e-5), 1.0)
        accepted = rng.random(len(points)) < np.exp(gain)
        points = np.where(accepted.reshape(-1, *[1] * (points.ndim - 1)), moved, points)
        scores = np.where(accepted, moved_scores, scores)
        if keep(moved, moved_scores):
            last_change = step
        step += 1
        temperature -= cooling
    return points


def random_walk(
    space: Space, flat: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Change one random knob of each config to a different value.

    A knob is drawn with a weight of 1 - 1/cardinality. This equals AutoTVM's procedure, which draws
    a knob and a value uniformly and repeats this until the value changes.

    Args:
        space: the search space.
        flat: flat indices of shape (n,).
        rng: random generator.

    Returns:
        Flat indices of the changed configs, shape (n,).
    """
    count = space.cardinalities
    weight = 1.0 - 1.0 / count
    if not weight.any():
        return flat
    configs = space.unravel(flat).astype(np.int64)
    knob = rng.choice(len(count), size=len(flat), p=weight / weight.sum())
    rows = np.arange(len(flat))
    step = rng.integers(1, np.maximum(count[knob], 2))
    configs[rows, knob] = (configs[rows, knob] + step) % count[knob]
    return space.ravel(configs.astype(np.int32))


def scorer(space: Space, predict: Callable[[Configs], NDArray[np.float64]]) -> Score:
    """Return a function that predicts the scores of configs from their flat indices.

    If the space is small, all scores are computed once and then looked up in a table. Configs that
    the space does not list get the score -inf.

    Args:
        space: the search space.
        predict: model that maps configs of shape (n, knobs) to scores of shape (n,).
    """
    total = int(np.prod(space.cardinalities))
    if total > candidates.ENUMERABLE:
        return lambda flat: predict(space.unravel(flat))
    scores = predict(space.unravel(np.arange(total)))
    if space.listed is not None:
        unlisted = np.ones(total, dtype=np.bool_)
        unlisted[np.asarray(space.listed)] = False
        scores[unlisted] = -np.inf
    return lambda flat: scores[flat]


@nb.njit(cache=True, nogil=True)
def keep_best(
    points: NDArray[np.int64],
    scores: NDArray[np.float64],
    tried: NDArray[np.int64],
    top: NDArray[np.int64],
    top_scores: NDArray[np.float64],
) -> bool:
    """Insert points into the set of the best points so far, and update the set in place.

    A point replaces the worst point of the set if its score is higher, unless it was tried or is
    already in the set.

    Args:
        points: new points: flat indices of shape (n,).
        scores: scores of the new points, shape (n,).
        tried: flat indices that were tried and must not enter the set, ascending, shape (m,).
        top: flat indices of the best points so far; updated in place.
        top_scores: scores of the best points so far; updated in place.

    Returns:
        Whether any point was inserted.
    """
    changed = False
    worst = np.argmin(top_scores)
    for i in range(len(points)):
        if scores[i] <= top_scores[worst]:
            continue
        place = np.searchsorted(tried, points[i])
        if place < len(tried) and tried[place] == points[i]:
            continue
        known = False
        for j in range(len(top)):
            if top[j] == points[i]:
                known = True
                break
        if known:
            continue
        top[worst], top_scores[worst] = points[i], scores[i]
        worst = np.argmin(top_scores)
        changed = True
    return changed


register(
    "autotvm", AutoTVM, AutoTVMOptions,
    summary="AutoTVM's tuner: boosted trees, simulated annealing, ε-greedy",
)  # fmt: skip
