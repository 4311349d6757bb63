"""Policy and critic networks of a reinforcement learning agent, trained with PPO.

The agent walks through a search space by changing knobs (Schulman et al., 2017). The networks are
small multilayer perceptrons with tanh units. JAX differentiates them and optax's Adam trains them.
Only `search.ppo.Agent` imports this module, and only when an agent is created, because JAX takes a
second to load. All computations are in float32 on one CPU thread. Array shapes stay the same during
a run, so that JAX compiles only three programs.
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
        # Several threads would add numbers in an order that depends on the machine.
        "xla_cpu_multi_thread_eigen": False,
        # Saves a third of the compile time; programs this small run equally fast.
        "xla_backend_optimization_level": 1,
    },
)
_MOMENTS = {"first_moments": "mu", "second_moments": "nu"}
"""Adam's two moment estimates: the name of their array in a tuner's state, and their name in
optax."""


class LearnedError(TilewrightError):
    """The stored weights cannot be loaded because they belong to networks of a different size."""


class LearnedPolicy(NamedTuple):
    """Weights of the policy and critic networks, and the state of the optimiser Adam.

    Attributes:
        weights: all weights as one float32 vector of shape (numbers,). The policy network comes
            first, then the critic. Each layer has a matrix of shape (outputs, inputs), followed by
            its biases.
        adam: optax's state of Adam: both moment estimates and the number of updates.
    """

    weights: jax.Array
    adam: optax.OptState


class PolicySteps(NamedTuple):
    """Training data for `ActorCritic.improve`: the steps that the agent took during its walks.

    Attributes:
        seen: knob positions before each step, divided by the number of values of the knob, float32,
            shape (steps, knobs).
        done: action per knob: 0 (down), 1 (stay) or 2 (up), int32, shape (steps, knobs).
        log_chance: log probability of the actions under the policy that drew them, float32, shape
            (steps,).
        gain: advantage of the actions, float32, shape (steps,).
        goal: returns, which are the critic's training targets, float32, shape (steps,).
    """

    seen: NDArray[np.float32]
    done: NDArray[np.int32]
    log_chance: NDArray[np.float32]
    gain: NDArray[np.float32]
    goal: NDArray[np.float32]


def on_cpu() -> AbstractContextManager[None]:
    """Return a context manager that makes JAX compute on the CPU rather than an accelerator."""
    device: AbstractContextManager[None] = jax.default_device(jax.local_devices(backend="cpu")[0])
    return device


@dataclass(frozen=True)
class ActorCritic:
    """A policy network that moves each knob down, up or not at all, and a critic network.

    The object holds only sizes and hyperparameters; its methods take the weights as an argument.
    Objects with equal attributes share their compiled code.

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
        """Initialise the networks, or restore them from `arrays`.

        Args:
            seed: seed of the initial weights; unused if networks are restored.
            arrays: result of the method `arrays` of an earlier agent; empty for new networks.

        Returns:
            The weights and the optimiser's state.

        Raises:
            LearnedError: the stored networks have a different size.
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
        """Convert the networks and the optimiser's state to arrays that `begin` can restore.

        Args:
            learned: the weights and the state of Adam.

        Returns:
            float32 arrays by name: the weights and both moment estimates of Adam, each of shape
                (numbers,), and the number of updates, shape (1,).
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
        """Draw one action per knob for each walker, and predict the return of each walker.

        A walker is one of several configs that the agent moves through the search space in
        parallel.

        Args:
            weights: all weights, as in `LearnedPolicy.weights`.
            seed: seed of the walk.
            step: index of the step within the walk. `seed` and `step` together determine the draw.
            seen: knob positions as in `PolicySteps.seen`, shape (walkers, knobs).

        Returns:
            Actions 0 (down), 1 (stay) or 2 (up), shape (walkers, knobs); the log probability of
            each walker's actions, shape (walkers,); and the critic's predictions of the return,
            shape (walkers,).
        """
        log_policy, expected = self._networks(weights, seen)
        draw = jax.random.fold_in(_key(seed), step)
        done = jax.random.categorical(draw, log_policy).astype(jnp.int32)
        return done, self._log_chance(log_policy, done), expected

    @_compiled
    def improve(
        self, learned: LearnedPolicy, steps: PolicySteps, parts: ArrayLike, count: ArrayLike
    ) -> LearnedPolicy:
        """Update the networks with one optimiser step per minibatch, in the given order.

        Args:
            learned: networks and optimiser state before the updates.
            steps: the recorded steps of the agent, from which to learn.
            parts: indices into `steps`, one minibatch per row, shape (updates, minibatch). -1 marks
                padding, which keeps the array shape constant so that nothing is recompiled.
            count: number of minibatches to use; the rows of `parts` after them are ignored.

        Returns:
            Networks and optimiser state after the updates.
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
        """Compute PPO's loss: clipped surrogate objective, critic's squared error and entropy.

        Args:
            weights: all weights, as in `LearnedPolicy.weights`.
            steps: one minibatch of steps.
            counted: bool array of shape (steps,), False for padding, which does not contribute to
                the loss.

        Returns:
            The mean loss of the steps that are not padding, a scalar.
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
        """Evaluate the policy network and the critic network.

        Args:
            weights: all weights, as in `LearnedPolicy.weights`.
            seen: knob positions as in `PolicySteps.seen`, shape (rows, knobs).

        Returns:
            Log probabilities of the actions down, stay and up, shape (rows, knobs, 3), and
            predicted returns, shape (rows,).
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
        """Initialise both networks and Adam.

        Weights are drawn uniformly within ±1/√inputs of their layer.

        Args:
            seed: seed of the initial weights.
        """
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
        return 6  # a matrix and biases for each of three layers


def layers(parts: list[jax.Array], x: ArrayLike) -> jax.Array:
    """Evaluate a multilayer perceptron: linear layers with tanh between them.

    Args:
        parts: matrices (outputs, inputs) and biases (outputs,), alternating, one pair per layer.
        x: input of the first layer, shape (…, inputs).

    Returns:
        Output of the last layer, shape (…, outputs).
    """
    for k in range(0, len(parts), 2):
        x = (jnp.tanh(x) if k else x) @ parts[k].T + parts[k + 1]
    return x


def _key(seed: ArrayLike) -> jax.Array:
    # The generator is given explicitly, because the user can change JAX's default.
    return jax.random.key(seed, impl="threefry2x32")
