"""DCOC as a co-design method (Fayyazi et al., ASP-DAC 2025; its first version is called ARCO).

Three kinds of agents change the machine, the tiles and the rest of the schedules. They are trained
by multi-agent PPO with one critic (`dcoc_agents`). Confidence sampling (`dcoc_confidence_sampling`)
selects the points to measure. Details that the paper does not specify are options, whose defaults
we chose.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from tilewright.hardware_search.methods.chameleon_codesign import best_untried_points
from tilewright.hardware_search.methods.dcoc_confidence_sampling import sample_by_confidence
from tilewright.hardware_search.methods.joint_space import SHAPE, JointSpace, Places
from tilewright.hardware_search.methods.ppo_codesign_options import CodesignPpoOptions
from tilewright.hardware_search.methods.published_method import PublishedMethod
from tilewright.hardware_search.methods.reward import LayerMeasurements, RewardModel
from tilewright.search.ppo import Agent


def _to_integer(value: object) -> object:
    """Convert the text of a whole number, which a command line passes, to an integer."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class DcocOptions(CodesignPpoOptions):
    """Options of the co-design method `dcoc`.

    The paper does not give all values. We chose the defaults, where possible those of CHAMELEON.
    """

    entropy: float = Field(0.01, ge=0, description="weight of the policies' entropy (MAPPO's)")
    epochs: int = Field(10, ge=1, description="passes over the steps of an episode (MAPPO's)")
    agents: Annotated[Literal[1, 3], BeforeValidator(_to_integer)] = Field(
        3,
        description="number of agents, each for one kind of knobs; 1: a single agent moves "
        "all knobs",
    )
    critic: bool = Field(True, description="let a critic predict the expected score")
    confidence: bool = Field(
        True,
        description="use confidence sampling; otherwise measure the points with the best scores",
    )
    units: int = Field(32, ge=1, description="width of the layers of actors and critic")
    elite: float = Field(
        0.5, ge=0, le=1, description="fraction of walks that begin at the best measured points"
    )
    explored: int = Field(
        256,
        ge=1,
        description="number of visited points with the best scores that the critic scores",
    )
    sharpness: float = Field(
        1.0,
        ge=0,
        description="sharpness (inverse temperature) of the softmax over the critic's "
        "standardised scores",
    )
    threshold: float = Field(
        0.5, ge=0, le=1,
        description="quantile of the critic's scores below which a drawn point is replaced; "
            "0.5 is the median",
    )  # fmt: skip


class Dcoc(PublishedMethod):
    """Co-design with DCOC: several agents explore points, and confidence sampling selects some.

    A point is a machine with a schedule for every layer. The agents keep their weights from batch
    to batch.
    """

    Options = DcocOptions

    def __init__(self, options: DcocOptions) -> None:
        super().__init__(options)
        self.options = options

    def begin(self, points: JointSpace, seed: int) -> None:
        """Create untrained agents for hardware, mapping and scheduling, and the critic.

        If the option `agents` is 1, a single agent changes all knobs.
        """
        from tilewright.hardware_search.methods.dcoc_agents import Team

        options = self.options
        mapping, scheduling = knobs_by_agent(points)
        networks = Team(
            len(points.cardinalities), options.temperature, options.clip, options.entropy,
            options.value, options.learning_rate, len(points.machine), mapping, scheduling,
            _sizes(points), options.units, options.agents == 3, options.critic,
        )  # fmt: skip
        self.agent = Agent(options, points.cardinalities, seed, {}, networks)

    def promising(
        self,
        points: JointSpace,
        rewards: RewardModel,
        seen: LayerMeasurements,
        tried: NDArray[np.int64],
        count: int,
        rng: np.random.Generator,
    ) -> Places:
        """Train the agents with the reward model, and return untried points.

        Without the option `confidence`, these are the visited points with the highest predicted
        reward, best first.

        With the option `confidence`, confidence sampling draws visited points and replaces the weak
        ones by mixtures of good points, which no agent may have visited. If drawn points or
        mixtures were tried, are repeated or need a machine that cannot be built, other visited
        points fill up the result. Points whose tiles overflow a scratchpad come last, so that other
        visited points can take their place.

        The arguments and the shape of the result are those of `PublishedMethod.promising`.
        """
        met = []
        for _ in range(self.options.episodes):
            met.append(self.agent.explore(self._start(points, rewards, seen, rng), rewards))
        most = max(self.options.explored, count)
        places, _, scores = best_untried_points(points, rewards, np.concatenate(met), tried, most)
        if not self.options.confidence or not len(places):
            return places[:count]
        if self.options.critic:
            scores = self.agent.predict_returns(places)
        drawn = sample_by_confidence(
            places, scores, count, self.options.sharpness, self.options.threshold, rng
        )
        result = np.concatenate([drawn, places])
        # Points that overflow a scratchpad come last: a mixture of good points need not fit.
        result = result[np.argsort(rewards.overflowing(result) > 0, kind="stable")]
        return _first_untried(points, result, tried, count)

    def _start(
        self,
        points: JointSpace,
        rewards: RewardModel,
        seen: LayerMeasurements,
        rng: np.random.Generator,
    ) -> Places:
        """Return the points at which the agents start: good measured points and random points.

        At most a fraction `elite` of the points are measured points. They are the measured points
        with the highest predicted reward. All other points are random.

        Args:
            points: the search space.
            rewards: predicts the rewards of points.
            seen: the measurements so far.
            rng: random generator.

        Returns:
            Int array of shape (starts, knobs).
        """
        start = points.random(self.options.starts, rng)
        known = np.unique(np.array(seen.places), axis=0)
        best = known[np.argsort(-rewards(known), kind="stable")]
        best = best[: int(self.options.elite * len(start))]
        start[: len(best)] = best
        return start


def knobs_by_agent(
    points: JointSpace,
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Divide the schedule knobs of each slot between its mapping agent and its scheduling agent.

    A slot is a layer of the networks. The mapping agent gets the knobs of the tile sizes.

    Args:
        points: the search space.

    Returns:
        The knobs of the mapping agents and of the scheduling agents, as columns of a point. Both
        have the shape (slots, knobs), with -1 for a knob that the layer does not have or that has a
        single value.
    """
    tile = np.array([name.startswith("tile_") for name in points.slots.knobs])
    mapping, scheduling = points.column[:, tile], points.column[:, ~tile]
    return tuple(map(tuple, mapping.tolist())), tuple(map(tuple, scheduling.tolist()))


def _sizes(points: JointSpace) -> tuple[tuple[float, ...], ...]:
    """Return the sizes of each slot's layer, which the agents see as inputs.

    A slot is a layer of the networks. Each size is on a logarithmic scale from 0 to 1, relative to
    its largest value among all layers.

    Returns:
        One tuple per slot, with one number per size in `SHAPE`.
    """
    shapes = np.log2(np.nanmax(points.slots.shapes, axis=0) + 1)
    scaled = shapes / np.maximum(shapes.max(axis=0), 1)
    assert scaled.shape[1] == len(SHAPE)
    return tuple(map(tuple, np.round(scaled, 6).tolist()))


def _first_untried(
    points: JointSpace, places: Places, tried: NDArray[np.int64], count: int
) -> Places:
    """Return the first `count` distinct points that were not tried and whose machine can be built.

    Args:
        points: the search space.
        places: points in the order of preference, int array of shape (points, knobs).
        tried: keys of the points that were tried, int array of shape (tried,).
        count: maximum number of points.
    """
    keys = points.keys(places)
    _, first = np.unique(keys, return_index=True)
    kept = np.zeros(len(places), np.bool_)
    kept[first] = True
    kept &= ~np.isin(keys, tried) & (points.rows(places) >= 0)
    return places[kept][:count]
