"""Policy and critic networks of an agent that walks through a search space, with PPO updates.

The networks are small, have tanh units, and are differentiated by JAX and trained with optax's Adam
(Schulman et al., 2017). Only `search.ppo.Agent` imports this module, when an agent is made, because
JAX takes a second to load. All computations are float32 on one CPU thread. Every array shape stays
the same during a run, so only three programs are compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from numpy.typing import NDArray
from optax import tree_utils

from tilewright.core.errors import TilewrightError

_UNITS = 20
_compiled = partial(
    jax.jit,
    static_argnums=0,
    compiler_options={
        # Sums of several threads would be taken in another order on another machine.
        "xla_cpu_multi_thread_eigen": False,
        # A third less to compile, and programs this small run no slower.
        "xla_backend_optimization_level": 1,
    },
)
_MOMENTS = {"first_moments": "mu", "second_moments": "nu"}
"""Names of Adam's moment estimates in an explorer's state, and their names in optax."""


class LearnedError(TilewrightError):
    """The stored weights cannot be loaded because they belong to networks of another size."""


class LearnedPolicy(NamedTuple):
    """Weights of the policy and critic networks, and the state of their optimiser Adam.

    Attributes:
        weights: all weights as one vector of shape (numbers,). The policy network comes first; each
            layer has a matrix (outputs, inputs) and its biases.
        adam: state of the optimiser.
    """

    weights: jax.Array
    adam: optax.OptState


class PolicySteps(NamedTuple):
    """Steps that the agent took during its walks, as training data for `ActorCritic.improve`.

    Attributes:
        seen: position of each knob that the agent observed before the step, float32, shape
            (steps, knobs).
        done: action per knob: 0 (down), 1 (stay) or 2 (up), int32, shape (steps, knobs).
        log_chance: log probability of the actions when they were drawn, float32, shape (steps,).
        gain: advantage of the actions, float32, shape (steps,).
        goal: returns, which the critic learns to predict, float32, shape (steps,).
    """

    seen: NDArray[np.float32]
    done: NDArray[np.int32]
    log_chance: NDArray[np.float32]
    gain: NDArray[np.float32]
    goal: NDArray[np.float32]


def on_cpu() -> AbstractContextManager[None]:
    """Return a context in which JAX computes on the CPU, whatever devices it has."""
    device: AbstractContextManager[None] = jax.default_device(jax.local_devices(backend="cpu")[0])
    return device


@dataclass(frozen=True)
class ActorCritic:
    """Policy network, which moves each knob down, up or not at all, and a critic network.

    The object holds only sizes and hyperparameters. The weights are passed to its methods. Equal
    objects share their compiled code.

    Attributes:
        knobs: number of knobs of the search space.
        temperature: divisor of the policy's logits; higher values make actions more random.
        clip: PPO's limit on the change of a probability ratio.
        entropy: weight of the policy's entropy in the loss.
        value: weight of the critic's squared error in the loss.
        learning_rate: learning rate of Adam.
    """

    knobs: int
    temperature: float
    clip: float
    entropy: float
    value: float
    learning_rate: float

    def begin(self, seed: int, arrays: Mapping[str, NDArray[np.generic]]) -> LearnedPolicy:
        """Return newly initialised networks, or restore the networks stored in `arrays`.

        Args:
            seed: seed of the initial weights; unused if networks are restored.
            arrays: result of the method `arrays` of an earlier agent; empty for new networks.

        Raises:
            LearnedError: the stored networks have another size.
        """
        fresh: LearnedPolicy = self._fresh(np.uint32(seed))
        if "weights" not in arrays:
            return fresh
        vectors = {name: arrays[name].astype(np.float32) for name in ("weights", *_MOMENTS)}
        if any(vector.shape != fresh.weights.shape for vector in vectors.values()):
            raise LearnedError(
                f"the state has {vectors['weights'].size} weights, but networks for "
                f"{self.knobs} knobs have {fresh.weights.size}; start without this state"
            )
        moments = {its: vectors[ours] for ours, its in _MOMENTS.items()}
        count = arrays["updates"].astype(np.int32)[0]
        return LearnedPolicy(
            vectors["weights"], tree_utils.tree_set(fresh.adam, count=count, **moments)
        )

    def arrays(self, learned: LearnedPolicy) -> dict[str, NDArray[np.generic]]:
        """Serialise networks and optimiser as arrays, from which `begin` restores them.

        Args:
            learned: the networks and the state of Adam.

        Returns:
            By name, float32 vectors of shape (numbers,), and the number of updates, shape (1,).
        """
        vectors = {"weights": learned.weights} | {
            ours: tree_utils.tree_get(learned.adam, its) for ours, its in _MOMENTS.items()
        }
        count = tree_utils.tree_get(learned.adam, "count")
        numbers = vectors | {"updates": np.atleast_1d(count)}
        return {name: np.array(vector, np.float32) for name, vector in numbers.items()}

    @_compiled
    def act(
        self, weights: ArrayLike, seed: ArrayLike, step: ArrayLike, seen: ArrayLike
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draw one action per knob for each walker, and predict the walkers' returns.

        Args:
            weights: all weights, as in `LearnedPolicy.weights`.
            seed: seed of the walk.
            step: index of the step within the walk; together with `seed`, it determines the draw.
            seen: observed positions of the knobs, shape (walkers, knobs).

        Returns:
            Actions 0 (down), 1 (stay) or 2 (up), shape (walkers, knobs); their log probabilities
            and the critic's predictions of the return, both of shape (walkers,).
        """
        log_policy, expected = self._networks(weights, seen)
        draw = jax.random.fold_in(_key(seed), step)
        done = jax.random.categorical(draw, log_policy).astype(jnp.int32)
        return done, self._log_chance(log_policy, done), expected

    @_compiled
    def improve(
        self, learned: LearnedPolicy, steps: PolicySteps, parts: ArrayLike, count: ArrayLike
    ) -> LearnedPolicy:
        """Return the networks after one optimiser update per minibatch, in the given order.

        Args:
            learned: networks and optimiser state before the updates.
            steps: the recorded steps to learn from.
            parts: indices into `steps`, one minibatch per row, shape (updates, minibatch). -1 is
                padding, which keeps the array shape constant so that nothing is recompiled.
            count: number of minibatches to use, from the first on.

        Returns:
            New networks and optimiser state.
        """

        def update(k: jax.Array, learned: LearnedPolicy) -> LearnedPolicy:
            rows = parts[k]
            slope = jax.grad(self._loss)(
                learned.weights, PolicySteps(*(step[rows] for step in steps)), rows >= 0
            )
            change, adam = optax.adam(self.learning_rate).update(slope, learned.adam)
            return LearnedPolicy(optax.apply_updates(learned.weights, change), adam)

        parts, steps = jnp.asarray(parts), PolicySteps(*map(jnp.asarray, steps))
        result: LearnedPolicy = jax.lax.fori_loop(0, count, update, learned)
        return result

    def _loss(self, weights: jax.Array, steps: PolicySteps, counted: jax.Array) -> jax.Array:
        """Compute PPO's loss: clipped surrogate, critic's squared error and policy's entropy.

        Args:
            weights: all weights.
            steps: one minibatch of steps.
            counted: which steps count, shape (steps,); the others are padding.
        """
        log_policy, expected = self._networks(weights, steps.seen)
        ratio = jnp.exp(self._log_chance(log_policy, steps.done) - steps.log_chance)
        surrogate = self._surrogate(ratio, steps.gain)
        error = (expected - steps.goal) ** 2
        entropy = -(jnp.exp(log_policy) * log_policy).sum(axis=2).mean(axis=1)
        loss = self.value * error - surrogate - self.entropy * entropy
        return jnp.where(counted, loss, 0.0).sum() / counted.sum()

    def _surrogate(self, ratio: jax.Array, gain: jax.Array) -> jax.Array:
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        return jnp.minimum(ratio * gain, clipped * gain)

    def _log_chance(self, log_policy: jax.Array, done: ArrayLike) -> jax.Array:
        chosen = jnp.take_along_axis(log_policy, done[..., None], axis=2)
        return chosen.sum(axis=(1, 2))

    def _networks(self, weights: ArrayLike, seen: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Return log probabilities of down, stay, up (rows, knobs, 3) and predicted returns.

        Predicted returns have shape (rows,).
        """
        ends = np.cumsum([prod(shape) for shape in self._shapes])
        parts = [
            part.reshape(shape)
            for part, shape in zip(jnp.split(weights, ends[:-1]), self._shapes, strict=True)
        ]
        policy, critic = parts[: self._policy_parts], parts[self._policy_parts :]
        logits = layers(policy, seen).reshape(-1, self.knobs, 3) / self.temperature
        return jax.nn.log_softmax(logits), layers(critic, seen)[:, 0]

    @_compiled
    def _fresh(self, seed: ArrayLike) -> LearnedPolicy:
        """Draw initial weights, uniform within ±1/√inputs of each layer."""
        bounds = [
            np.full(prod(shape), matrix[1] ** -0.5, np.float32)
            for matrix, biases in zip(self._shapes[::2], self._shapes[1::2], strict=True)
            for shape in (matrix, biases)
        ]
        bound = np.concatenate(bounds)
        weights = bound * jax.random.uniform(_key(seed), bound.shape, jnp.float32, -1, 1)
        return LearnedPolicy(weights, optax.adam(self.learning_rate).init(weights))

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        policy = [self.knobs, _UNITS, _UNITS, 3 * self.knobs]
        critic = [self.knobs, _UNITS, _UNITS, _UNITS, 1]
        return [
            shape
            for sizes in (policy, critic)
            for inputs, outputs in pairwise(sizes)
            for shape in ((outputs, inputs), (outputs,))
        ]

    @property
    def _policy_parts(self) -> int:
        return 6  # three layers


def layers(parts: list[jax.Array], x: ArrayLike) -> jax.Array:
    """Apply linear layers with tanh between them.

    Args:
        parts: matrices (outputs, inputs) and biases (outputs,), alternating.
        x: input; its last axis has the inputs of the first layer.
    """
    for k in range(0, len(parts), 2):
        x = (jnp.tanh(x) if k else x) @ parts[k].T + parts[k + 1]
    return x


def _key(seed: ArrayLike) -> jax.Array:
    # The generator is named, since JAX's default may be set from outside.
    return jax.random.key(seed, impl="threefry2x32")
