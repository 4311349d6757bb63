"""CHAMELEON: exploration by reinforcement learning, sampling by clustering (Ahn et al., ICLR 2020).

An agent walks through the space. Its reward is the score that AutoTVM's cost model predicts. The
visited configs are clustered, and one config per cluster is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.core.lazy_module import lazy_module
from tilewright.search import candidates
from tilewright.search.cost_model_protocols import CostModel
from tilewright.search.explorer import BaseExplorer, Candidates, ExplorerState
from tilewright.search.history import History
from tilewright.search.ppo import Agent, Places, PPOOptions
from tilewright.search.problem import Problem
from tilewright.search.registry import register
from tilewright.search.tuners.autotvm import knob_features, scorer
from tilewright.targets.base import Space

cluster = lazy_module("sklearn.cluster")

_CLUSTERS = range(8, 65, 8)


class ChameleonOptions(PPOOptions):
    """Options of CHAMELEON.

    If neither the paper nor the published code specifies a value, the option's description says so.
    """

    first: int = Field(64, ge=1, description="random trials before the first fit of the cost model")
    starts: int = Field(128, ge=1, description="random configs from which the agent starts walking")
    episodes: int = Field(2, ge=1, description="episodes between two fits (not given in the paper)")
    clip: float = Field(0.2, gt=0, description="PPO's clip of the probability ratio (paper: 0.3)")
    entropy: float = Field(0.3, ge=0, description="weight of the policy's entropy (paper: 0.1)")
    temperature: float = Field(
        0.1, gt=0, description="temperature of the softmax over down, stay and up"
    )
    kept: int = Field(
        64,
        ge=1,
        description="number of best visited, untried configs to cluster (not given in the paper)",
    )
    knee: float = Field(
        2.5, gt=1, description="factor by which 8 more clusters must reduce the error"
    )
    others: Literal["mode", "random"] = Field(
        "mode",
        description="values of the knobs that are not clustered: the most frequent one of "
        "the cluster (paper), or random",
    )
    greed: float = Field(0.05, ge=0, le=1, description="fraction of a plan that is random")


class Chameleon(BaseExplorer[ChameleonOptions]):
    """CHAMELEON: PPO walks on AutoTVM's cost model; one config per cluster is measured."""

    def generate(
        self, problem: Problem, state: ExplorerState, history: History, n: int
    ) -> Candidates:
        """Propose the next untried configs of the plan, filled up with random configs.

        The plan is the list of configs that `learn` chose, one per cluster. There is none before
        the first fit of the cost model. The arguments are those of `Explorer.generate`.
        """
        space, tried = problem.space, history.tried_indices(problem.space)
        plan = state.arrays.get("plan", np.empty(0, np.int64)).astype(np.int64)
        plan = plan[: len(plan) - int(self.options.greed * len(plan))]
        fresh = plan[~np.isin(plan, tried)][:n]
        rng = problem.rng(history.round, "generate")
        lucky = candidates.sample(space, n - len(fresh), np.union1d(tried, fresh), rng)
        return Candidates(space.unravel(np.concatenate([fresh, lucky])))

    def learn(self, problem: Problem, state: ExplorerState, history: History) -> ExplorerState:
        """Once the current plan has been measured, refit the cost model and make a new plan.

        The agent walks through the space with the cost model as its reward, and one config per
        cluster of visited configs enters the plan. Before that, the state is returned unchanged.
        The arguments are those of `Explorer.learn`.
        """
        due = int(state.arrays.get("due", np.array([self.options.first]))[0])
        if len(history) < due or not history.valid.any():
            return state
        space, rng = problem.space, problem.rng(history.round, "learn")
        model = self._model(space, history, int(rng.integers(1 << 31)))
        agent = Agent(
            self.options, space.cardinalities, int(rng.integers(1 << 31)), state.arrays
        )  # fmt: skip
        tried = history.tried_indices(space)
        met = self._walks(space, agent, model, tried, rng)
        plan = adaptive_sample(space, met, tried, self.options.others, self.options.knee, rng)
        # If the plan is empty, the tuner continues with a few random configs, as many as the
        # smallest number of clusters.
        wait = max(len(plan), _CLUSTERS.start)
        arrays = agent.arrays() | {"plan": plan, "due": np.array([len(history) + wait])}
        return ExplorerState({"P": model}, arrays)

    def _model(self, space: Space, history: History, seed: int) -> CostModel:
        """Fit AutoTVM's cost model to the trials, and return it.

        The targets are throughputs relative to the best trial, and 0 for invalid trials.

        Args:
            space: the search space.
            history: trials so far; at least one must be valid.
            seed: seed of the model.
        """
        throughput = history.throughput
        model = self.learners.regressor("autotvm-ranker", seed)
        model.fit(knob_features(space, history.configs), throughput / throughput.max())
        return model

    def _walks(
        self,
        space: Space,
        agent: Agent,
        model: CostModel,
        tried: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Let the agent walk for several episodes, and return the best untried configs it visited.

        Args:
            space: the search space.
            agent: the agent, whose networks are trained after each episode.
            model: cost model, whose predicted scores are the rewards.
            tried: flat indices of the configs that were tried.
            rng: random generator.

        Returns:
            Flat indices, ascending. A config that was visited k times is repeated k times.
        """
        score = scorer(space, lambda configs: model.predict(knob_features(space, configs)))

        def earned(places: Places) -> NDArray[np.float64]:
            return score(space.ravel(places.astype(np.int32)))

        met = []
        for _ in range(self.options.episodes):
            start = candidates.sample(space, self.options.starts, np.empty(0, np.int64), rng)
            met.append(agent.explore(space.unravel(start).astype(np.int64), earned))
        flat, times = np.unique(
            space.ravel(np.concatenate(met).astype(np.int32)), return_counts=True
        )
        fresh = ~np.isin(flat, tried)
        flat, times = flat[fresh], times[fresh]
        best = np.sort(np.argsort(-score(flat), kind="stable")[: self.options.kept])
        return np.repeat(flat[best], times[best])


def adaptive_sample(
    space: Space,
    met: NDArray[np.int64],
    tried: NDArray[np.int64],
    others: Literal["mode", "random"],
    knee: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Choose one untried config per cluster of visited configs.

    The configs are clustered by k-means over the two knobs with the most values. The number of
    clusters is increased from 8 to 64 in steps of 8, until the inertia (the sum of squared
    distances to the centres) no longer falls by the factor `knee`. The centre of a cluster
    determines the chosen config's values of these two knobs.

    Args:
        space: the search space.
        met: flat indices of the visited configs, repeated once per visit.
        tried: flat indices of the configs that were tried.
        others: rule for the values of all other knobs: "mode" takes the most frequent value in the
            cluster, "random" takes the values of a random config of the cluster.
        knee: factor by which more clusters must reduce the inertia.
        rng: random generator.

    Returns:
        Flat indices of the configs to measure, at most one per cluster.
    """
    flat, times = np.unique(met, return_counts=True)
    if not len(flat):
        return flat
    configs = space.unravel(flat)
    two = np.sort(np.argsort(-space.cardinalities, kind="stable")[:2])
    points = configs[:, two].astype(np.float64)
    label, centres = clusters(points, times, _CLUSTERS, knee, rng)
    allowed = None if space.listed is None else np.asarray(space.listed)
    plan: list[int] = []
    for cluster, centre in enumerate(centres):
        rows = np.flatnonzero(label == cluster)
        made = representatives(configs[rows], times[rows], two, centre, others, rng)
        result = space.ravel(made)
        fresh = result[~np.isin(result, tried) & ~np.isin(result, plan)]
        if allowed is not None:
            fresh = fresh[np.isin(fresh, allowed)]
        plan += fresh[:1].tolist()
    return np.array(plan, dtype=np.int64)


def clusters(
    points: NDArray[np.float64],
    times: NDArray[np.int64],
    counts: Iterable[int],
    knee: float,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Cluster points by k-means, increasing the number of clusters until the fit hardly improves.

    Args:
        points: points of shape (n, axes).
        times: weight of each point (its number of visits), shape (n,).
        counts: numbers of clusters to try, ascending.
        knee: factor by which the inertia, the sum of squared distances to the centres, must fall
            for the next number of clusters to be tried.
        rng: random generator.

    Returns:
        Index of each point's cluster, shape (n,), and the centres, shape (clusters, axes).
    """
    distinct, last = len(np.unique(points, axis=0)), np.inf
    for k in counts:
        k = min(k, distinct)
        means = cluster.KMeans(k, n_init=1, random_state=int(rng.integers(1 << 31)))
        label = means.fit_predict(points, sample_weight=times)
        if k == distinct or means.inertia_ >= last / knee:
            break
        last = means.inertia_
    return label, means.cluster_centers_


def representatives(
    members: NDArray[np.int32],
    times: NDArray[np.int64],
    two: NDArray[np.int64],
    centre: NDArray[np.float64],
    others: Literal["mode", "random"],
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Return configs that can represent a cluster, the preferred config first.

    The preferred config has the centre's values of the two clustered knobs. All members of the
    cluster follow in random order, as replacements if the preferred config was already tried.

    Args:
        members: configs of the cluster, shape (n, knobs).
        times: number of visits of each member, shape (n,).
        two: indices of the two knobs by which the configs were clustered.
        centre: values of these two knobs at the cluster's centre, shape (2,).
        others: rule for the values of all other knobs: "mode" takes the most frequent value in the
            cluster, "random" takes the values of a random member.
        rng: random generator.

    Returns:
        Configs of shape (n + 1, knobs).
    """
    drawn = members[rng.permutation(len(members))]
    first = drawn[:1].copy()
    if others == "mode":
        for knob in range(members.shape[1]):
            first[0, knob] = np.argmax(np.bincount(members[:, knob], weights=times))
    first[0, two] = np.rint(centre)
    return np.concatenate([first, drawn])


register(
    "chameleon", Chameleon, ChameleonOptions,
    summary="CHAMELEON: reinforcement learning explores, one measurement per cluster",
    extra="neural", modules=("jax", "optax"),
)  # fmt: skip
