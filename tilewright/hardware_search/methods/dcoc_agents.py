"""The neural networks of DCOC's agents, and of their one critic.

One agent moves the machine's knobs. Two for every layer map it (tiles) and schedule it. Each sees
its own part, the critic all. The agents of all layers share their parameters, by kind. Imported
when agents are made, because it loads JAX.
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
    """Actors and a critic over the knobs of points; `knobs` is how many there are, of which the
    first `machine` are the hardware's. `mapping` and `scheduling` are, by slot, the knobs that an
    agent moves, -1 for none; `sizes` is what is told of each slot's layer. Without `several` one
    agent sees and moves all, without `critic` nothing is expected."""

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
        """Of down, stay, up, shape (rows, knobs, 3)."""
        rows = seen.shape[0]
        if not self.several:
            return layers(policies[0], seen).reshape(rows, self.knobs, 3)
        padded = jnp.concatenate([seen, jnp.zeros((rows, 1))], axis=1)  # -1 is the column of none
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
        """Each agent's own clipped ratio, with the gain of all; their mean, shape (rows,)."""
        return super()._surrogate(ratio, gain[:, None]).mean(axis=1)

    def _log_chance(self, log_policy: jax.Array, done: ArrayLike) -> jax.Array:
        """Of what each agent did, shape (rows, agents)."""
        chosen = jnp.take_along_axis(log_policy, jnp.asarray(done)[..., None], axis=2)[..., 0]
        return chosen @ jnp.asarray(self._members)

    @cached_property
    def _layer_knobs(self) -> NDArray[np.int64]:
        return np.concatenate([np.array(self.mapping), np.array(self.scheduling)], axis=1)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Where the moves of each knob are among those of the three actors."""
        moved = [np.arange(self.machine), np.array(self.mapping), np.array(self.scheduling)]
        place = np.zeros(self.knobs, np.int64)
        flat = np.concatenate([each.ravel() for each in moved])
        place[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
        return place

    @cached_property
    def _members(self) -> NDArray[np.float32]:
        """Which knobs are which agent's, shape (knobs, agents)."""
        if not self.several:
            return np.ones((self.knobs, 1), np.float32)
        agents = [tuple(range(self.machine)), *self.mapping, *self.scheduling]
        agents = [tuple(knob for knob in each if knob >= 0) for each in agents]
        agents = [each for each in agents if each]
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
        """Inputs and knobs of each kind of actor."""
        if not self.several:
            return [(self.knobs, self.knobs)]
        maps, schedules = len(self.mapping[0]), len(self.scheduling[0])
        layer = self.machine + maps + schedules + len(self.sizes[0])
        machine = self.machine + maps + schedules
        return [(machine, self.machine), (layer, maps), (layer, schedules)]

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        networks = [[inputs, self.units, self.units, 3 * knobs] for inputs, knobs in self._widths]
        networks.append([self.knobs, self.units, self.units, self.units, 1])
        return [
            shape
            for sizes in networks
            for inputs, outputs in pairwise(sizes)
            for shape in ((outputs, inputs), (outputs,))
        ]
