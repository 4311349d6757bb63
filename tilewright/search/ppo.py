"""Reinforcement learning agent that explores a search space with PPO.

PPO is proximal policy optimisation (Schulman et al., 2017). The tuner CHAMELEON explores in this
way (Ahn et al., ICLR 2020). The agent observes the position of every knob and moves each knob by at
most one value per step. Its reward is the score of the new config. The agent's networks are in
`search.actor_critic`, which loads JAX and is therefore imported only when an agent is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tilewright.search.registry import Options

if TYPE_CHECKING:
    from tilewright.search.actor_critic import ActorCritic

Places = NDArray[np.int64]
"""Configs as knob indices (the index of each knob's value), shape (configs, knobs)."""
Score = Callable[[Places], NDArray[np.float64]]
"""Function that maps configs of shape (configs, knobs) to rewards of shape (configs,). A reward of
-inf marks configs that the agent must not enter."""
Number = TypeVar("Number", np.float32, np.int32)
_QUERIED = 128
"""Number of configs that the critic evaluates at a time. Smaller batches are padded to this size,
so that JAX compiles the network only once."""


class PPOOptions(Options):
    """Hyperparameters of an agent. The defaults are those of CHAMELEON's source code or paper."""

    steps: int = Field(500, ge=1, description="largest number of steps of an episode")
    held: float = Field(
        0.75,
        gt=0,
        description="fraction of knobs that stay unchanged in a step, at which a walk ends",
    )
    learned: int = Field(
        1024,
        ge=2,
        description="randomly drawn steps of an episode to learn from (not given in the paper)",
    )
    clip: float = Field(0.2, gt=0, description="PPO's clipping of the probability ratio")
    discount: float = Field(0.9, ge=0, le=1, description="γ")
    trace: float = Field(0.99, ge=0, le=1, description="λ of the advantage estimates")
    entropy: float = Field(0.1, ge=0, description="weight of the policies' entropy")
    value: float = Field(1.0, ge=0, description="weight of the critic's error")
    learning_rate: float = Field(1e-3, gt=0, description="learning rate of Adam")
    temperature: float = Field(
        1.0, gt=0, description="temperature of the softmax over down, stay and up"
    )
    epochs: int = Field(3, ge=1, description="passes over the steps of an episode")
    minibatch: int = Field(32, ge=1, description="steps per update")


@dataclass(frozen=True)
class _Walk:
    """Recorded steps of all walkers in one episode. The first axis is time, the second the walker.

    Attributes:
        seen: knob positions before each step, divided by the numbers of values, shape (steps,
            walkers, knobs).
        done: action per knob: 0 (down), 1 (stay) or 2 (up), shape (steps, walkers, knobs).
        log_chance: log probability of the actions, shape (steps, walkers).
        earned: rewards, shape (steps, walkers).
        expected: the critic's predictions of the return, shape (steps, walkers).
        walking: False once a walker has stopped, shape (steps, walkers).
    """

    seen: NDArray[np.float32]
    done: NDArray[np.int32]
    log_chance: NDArray[np.float32]
    earned: NDArray[np.float64]
    expected: NDArray[np.float64]
    walking: NDArray[np.bool_]


class Agent:
    """Agent that walks through a search space and trains its networks on the recorded walks.

    Args:
        options: hyperparameters.
        cardinalities: number of values of each knob, int array of shape (knobs,).
        seed: seed of the random generator.
        arrays: result of the method `arrays` of an earlier agent, whose training this agent
            continues; empty for a new agent.
        networks: networks to use instead of the default ones.

    Raises:
        LearnedError: `arrays` belongs to networks of another size.
    """

    def __init__(
        self, options: PPOOptions, cardinalities: NDArray[np.int64], seed: int,
        arrays: Mapping[str, NDArray[np.generic]], networks: ActorCritic | None = None,
    ) -> None:  # fmt: skip
        from tilewright.search import actor_critic

        self._jax = actor_critic
        self.options, self.cardinalities, self.seed = options, cardinalities, seed
        self._networks = networks or actor_critic.ActorCritic(
            len(cardinalities), options.temperature, options.clip, options.entropy, options.value,
            options.learning_rate,
        )  # fmt: skip
        with actor_critic.on_cpu():
            self._learned = self._networks.begin(seed, arrays)

    def explore(self, start: Places, score: Score) -> Places:
        """Walk one episode from each start config, then train the networks on the recorded steps.

        Args:
            start: initial configs as knob indices, int array of shape (walkers, knobs).
            score: function that returns the reward of configs.

        Returns:
            All visited configs as knob indices, including the initial ones, shape (visits, knobs).
        """
        rng = np.random.default_rng(self.seed)
        with self._jax.on_cpu():
            walk, met = self._episode(start, score, _seed(rng))
            self._learn(walk, rng)
        self.seed = _seed(rng)
        return met

    def predict_returns(self, places: Places) -> NDArray[np.float64]:
        """Predict the return of a walk that starts at each config, with the critic network.

        Args:
            places: configs as knob indices, int array of shape (n, knobs).

        Returns:
            Predicted returns, shape (n,).
        """
        result, size = [], _QUERIED
        with self._jax.on_cpu():
            for begin in range(0, len(places), size):
                seen = (places[begin : begin + size] / self.cardinalities).astype(np.float32)
                asked = _padded_rows(seen, size)  # a constant shape is compiled only once
                act = self._networks.act(self._learned.weights, np.uint32(0), 0, asked)
                result.append(np.asarray(act[2], np.float64)[: len(seen)])
        return np.concatenate(result) if result else np.empty(0)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the weights and the optimiser's state as float32 arrays by name.

        A later `Agent` can continue from this result.
        """
        return self._networks.arrays(self._learned)

    def _episode(self, start: Places, score: Score, seed: int) -> tuple[_Walk, Places]:
        places, walking = start, np.ones(len(start), dtype=np.bool_)
        movable = self.cardinalities > 1
        steps: list[tuple[NDArray[Any], ...]] = []
        met = [start]
        for step in range(self.options.steps):
            seen = (places / self.cardinalities).astype(np.float32)
            act = self._networks.act(self._learned.weights, np.uint32(seed), step, seen)
            done, log_chance, expected = map(np.asarray, act)
            moved = np.clip(places + done - 1, 0, self.cardinalities - 1)
            barred = np.isneginf(score(moved))
            moved[barred] = places[barred]
            expected = expected.astype(np.float64)
            steps.append((seen, done, log_chance, score(moved), expected, walking))
            met.append(moved[walking])
            held = (moved == places)[:, movable].mean(axis=1) if movable.any() else np.ones(1)
            walking = walking & (held < self.options.held)
            places = moved
            if not walking.any():
                break
        return _Walk(*(np.stack(item) for item in zip(*steps, strict=True))), np.concatenate(met)

    def _learn(self, walk: _Walk, rng: np.random.Generator) -> None:
        """Train the actor and the critic on the steps of one episode.

        Args:
            walk: the recorded steps.
            rng: random generator, which chooses the steps and their order.
        """
        options = self.options
        # The largest possible number of steps, so that every episode has the same array shapes and
        # nothing is recompiled.
        most = min(options.learned, options.steps * walk.walking.shape[1])
        gain = _advantages(walk, options.discount, options.trace)
        rows = rng.permutation(np.flatnonzero(walk.walking))[:most]
        goal = (gain + walk.expected).ravel()[rows]
        gain = gain.ravel()[rows]
        count = walk.walking.size
        steps = self._jax.PolicySteps(
            _padded_rows(walk.seen.reshape(count, -1)[rows], most),
            _padded_rows(walk.done.reshape(count, -1)[rows], most),
            _padded_rows(walk.log_chance.reshape(count, *walk.log_chance.shape[2:])[rows], most),
            _padded_rows(((gain - gain.mean()) / (gain.std() + 1e-8)).astype(np.float32), most),
            _padded_rows(goal.astype(np.float32), most),
        )
        orders = [rng.permutation(len(rows)) for _ in range(options.epochs)]
        parts = np.concatenate([_parts(order, options.minibatch) for order in orders])
        updates = options.epochs * -(-most // options.minibatch)
        self._learned = self._networks.improve(
            self._learned, steps, _padded_rows(parts, updates), len(parts)
        )


def _parts(order: NDArray[np.int64], size: int) -> NDArray[np.int32]:
    """Split row indices into minibatches.

    Args:
        order: row indices in the order of training, shape (rows,).
        size: number of rows per minibatch.

    Returns:
        Row indices of shape (minibatches, size); the last minibatch is padded with -1.
    """
    parts = np.full((-(-len(order) // size), size), -1, np.int32)
    parts.ravel()[: len(order)] = order
    return parts


def _padded_rows(rows: NDArray[Number], count: int) -> NDArray[Number]:
    """Append rows of zeros until there are `count` rows."""
    return np.concatenate([rows, np.zeros((count - len(rows), *rows.shape[1:]), rows.dtype)])


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 31))


def _advantages(walk: _Walk, discount: float, trace: float) -> NDArray[np.float64]:
    """Compute generalised advantage estimates (Schulman et al., 2016), shape (steps, walkers).

    The value after a walker's last step is taken as zero.

    Args:
        walk: steps of all walkers, with rewards and the critic's predictions.
        discount: discount factor of later rewards per step (γ).
        trace: weight of longer estimates against shorter ones (λ).
    """
    gain = np.zeros_like(walk.earned)
    later, after = np.zeros(gain.shape[1]), np.zeros(gain.shape[1])
    for step in reversed(range(len(gain))):
        surprise = walk.earned[step] + discount * after - walk.expected[step]
        gain[step] = np.where(walk.walking[step], surprise + discount * trace * later, 0.0)
        later, after = gain[step], np.where(walk.walking[step], walk.expected[step], 0.0)
    return gain
