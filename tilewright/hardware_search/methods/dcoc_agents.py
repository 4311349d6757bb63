"""The neural networks of DCOC's agents and of the critic that they share.

One agent changes the knobs of the machine. For each layer, one agent chooses the tiles (mapping)
and another agent chooses the rest of the schedule. Each agent sees only its own part of a point,
and the critic sees the whole point. The mapping agents of all layers share their weights, and so do
the scheduling agents. This module imports JAX, so it is imported only when agents are created.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from tilewright.search.actor_critic import ActorCritic, layers

Indices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Team(ActorCritic):
    """Neural networks of DCOC: the agents, which change the knobs of points, and the critic.

    One agent changes the machine. For each slot (a layer of the networks), a mapping agent and a
    scheduling agent change the layer's schedule. All mapping agents share their weights, and so do
    all scheduling agents.

    Attributes:
        machine: number of hardware knobs, which are the first knobs of a point.
        mapping: columns of the knobs that the mapping agent of each slot changes; -1 for a missing
            knob.
        scheduling: columns of the knobs that the scheduling agent of each slot changes; -1 for a
            missing knob.
        sizes: sizes of each slot's layer, which its agents see.
        units: number of units per hidden layer.
        several: use three kinds of agents. If False, a single agent sees and changes all knobs.
        critic: use a critic, which predicts the reward. If False, the predicted reward is 0.
    """

    machine: int
    mapping: Indices
    scheduling: Indices
    sizes: tuple[tuple[float, ...], ...]
    units: int
    several: bool
    critic: bool

    def _networks(self, weights: ArrayLike, seen: ArrayLike) -> tuple[jax.Array, jax.Array]:
        policies, critic = self._parts(jnp.asarray(weights))
        seen = jnp.asarray(seen)
        logits = self._logits(policies, seen) / self.temperature
        expected = layers(critic, seen)[:, 0] if self.critic else jnp.zeros(len(seen))
        return jax.nn.log_softmax(logits), expected

    def _logits(self, policies: list[list[jax.Array]], seen: jax.Array) -> jax.Array:
        """Return the logits of the three moves of each knob: down, stay and up.

        Args:
            policies: weights of the agents, one list of arrays per kind of agent.
            seen: scaled knob values that the agents see, float array of shape (rows, knobs).

        Returns:
            Float array of shape (rows, knobs, 3).
        """
        rows = seen.shape[0]
        if not self.several:
            return layers(policies[0], seen).reshape(rows, self.knobs, 3)
        # Missing knobs have the index -1 and read the additional column of zeros.
        padded = jnp.concatenate([seen, jnp.zeros((rows, 1))], axis=1)
        machine = seen[:, : self.machine]
        own = padded[:, self._layer_knobs]  # (rows, slots, knobs)
        slots = own.shape[1]
        wide = jnp.broadcast_to(machine[:, None], (rows, slots, self.machine))
        told = jnp.broadcast_to(jnp.array(self.sizes), (rows, slots, len(self.sizes[0])))
        of_layer = jnp.concatenate([wide, own, told], axis=2)
        of_machine = jnp.concatenate([machine, own.mean(axis=1)], axis=1)
        moves = [
            layers(policy, x).reshape(rows, -1, 3)
            for policy, x in zip(policies, (of_machine, of_layer, of_layer), strict=True)
        ]
        return jnp.concatenate(moves, axis=1)[:, self._order]

    def _surrogate(self, ratio: jax.Array, gain: jax.Array) -> jax.Array:
        """Return PPO's clipped objective, averaged over the agents.

        All agents have the same advantage, because they share the reward.

        Args:
            ratio: new probability of each agent's moves divided by the old one, shape (rows,
                agents).
            gain: advantage of each row, shape (rows,).

        Returns:
            Float array of shape (rows,).
        """
        return super()._surrogate(ratio, gain[:, None]).mean(axis=1)

    def _log_chance(self, log_policy: jax.Array, done: ArrayLike) -> jax.Array:
        """Return the log-probability of the moves that each agent made.

        Args:
            log_policy: log-probabilities of all moves, shape (rows, knobs, 3).
            done: index of each knob's move (down, stay or up), int array of shape (rows, knobs).

        Returns:
            Float array of shape (rows, agents).
        """
        chosen = jnp.take_along_axis(log_policy, jnp.asarray(done)[..., None], axis=2)[..., 0]
        return chosen @ jnp.asarray(self._members)

    @cached_property
    def _layer_knobs(self) -> NDArray[np.int64]:
        return np.concatenate([np.array(self.mapping), np.array(self.scheduling)], axis=1)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Index of each knob in the joined outputs of the machine, mapping and scheduling agents.

        Int array of shape (knobs,).
        """
        moved = [np.arange(self.machine), np.array(self.mapping), np.array(self.scheduling)]
        place = np.zeros(self.knobs, np.int64)
        flat = np.concatenate([item.ravel() for item in moved])
        place[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
        return place

    @cached_property
    def _members(self) -> NDArray[np.float32]:
        """Matrix that assigns knobs to agents, float array of shape (knobs, agents).

        An element is 1 if the agent changes the knob, else 0.
        """
        if not self.several:
            return np.ones((self.knobs, 1), np.float32)
        agents = [tuple(range(self.machine)), *self.mapping, *self.scheduling]
        agents = [tuple(knob for knob in agent if knob >= 0) for agent in agents]
        agents = [agent for agent in agents if agent]
        members = np.zeros((self.knobs, len(agents)), np.float32)
        for agent, knobs in enumerate(agents):
            members[list(knobs), agent] = 1
        return members

    def _parts(self, weights: jax.Array) -> tuple[list[list[jax.Array]], list[jax.Array]]:
        ends = np.cumsum([prod(shape) for shape in self._shapes])
        parts = [
            part.reshape(shape)
            for part, shape in zip(jnp.split(weights, ends[:-1]), self._shapes, strict=True)
        ]
        policies = [parts[6 * k : 6 * k + 6] for k in range(len(self._widths))]
        return policies, parts[6 * len(policies) :]

    @property
    def _widths(self) -> list[tuple[int, int]]:
        """Number of inputs and number of outputs (changed knobs) of each agent's network.

        There is one pair per kind of agent: machine, mapping, scheduling. With a single agent,
        there is one pair.
        """
        if not self.several:
            return [(self.knobs, self.knobs)]
        maps, schedules = len(self.mapping[0]), len(self.scheduling[0])
        layer = self.machine + maps + schedules + len(self.sizes[0])
        machine = self.machine + maps + schedules
        return [(machine, self.machine), (layer, maps), (layer, schedules)]

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all weight matrices and biases, in the order of the flat weight vector."""
        networks = [[inputs, self.units, self.units, 3 * knobs] for inputs, knobs in self._widths]
        networks.append([self.knobs, self.units, self.units, self.units, 1])
        return [
            shape
            for sizes in networks
            for inputs, outputs in pairwise(sizes)
            for shape in ((outputs, inputs), (outputs,))
        ]
