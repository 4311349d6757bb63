"""Proximal policy optimisation of a walk through a space of knobs (Schulman et al., 2017), as
CHAMELEON explores (Ahn et al., ICLR 2020): the agent sees the place of every knob, moves all of
them by at most one value a step, and earns the score of where it arrives.

PyTorch is loaded when an agent is made. Its random numbers come from the agent's seed and leave
those of the process alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
"""Value index of every knob of some configs, shape (configs, knobs)."""
Score = Callable[[Places], NDArray[np.float64]]
"""What the agent earns at places, shape (configs,); -inf where it must not go."""

_UNITS = 20


class PPOOptions(Protocol):
    """The numbers an agent needs."""

    @property
    def steps(self) -> int:
        """Steps of an episode at most."""
        ...

    @property
    def clip(self) -> float:
        """PPO's clip of the probability ratio."""
        ...

    @property
    def discount(self) -> float:
        """γ."""
        ...

    @property
    def trace(self) -> float:
        """λ of the advantage estimates."""
        ...

    @property
    def entropy(self) -> float:
        """Weight of the policy's entropy."""
        ...

    @property
    def value(self) -> float:
        """Weight of the critic's error."""
        ...

    @property
    def learning_rate(self) -> float:
        """Of Adam."""
        ...

    @property
    def temperature(self) -> float:
        """Of the softmax over down, stay, up."""
        ...

    @property
    def epochs(self) -> int:
        """Passes over the steps of an episode."""
        ...

    @property
    def minibatch(self) -> int:
        """Steps an update."""
        ...

    @property
    def held(self) -> float:
        """Share of knobs not moving that ends a walk."""
        ...

    @property
    def learned(self) -> int:
        """Steps of an episode to learn from."""
        ...


@dataclass(frozen=True)
class _Walk:
    """Steps of all walkers, first axis time: what each saw, did (0, 1, 2 a knob), how likely that
    was, what it earned, what the critic expected, and whether it was still walking."""

    seen: NDArray[np.float32]
    done: NDArray[np.int64]
    log_chance: NDArray[np.float32]
    earned: NDArray[np.float64]
    expected: NDArray[np.float64]
    walking: NDArray[np.bool_]


class Agent:
    """Actor and critic with their optimiser. `arrays` are those of an earlier agent, if any."""

    def __init__(
        self, options: PPOOptions, cardinalities: NDArray[np.int64], seed: int,
        arrays: Mapping[str, NDArray[np.generic]],
    ) -> None:  # fmt: skip
        import torch

        self.torch: Any = torch
        self.options, self.cardinalities, self.seed = options, cardinalities, seed
        knobs = len(cardinalities)
        with self._own_randomness():
            self.actor = self._network(knobs, 3 * knobs, layers=2)
            self.critic = self._network(knobs, 1, layers=3)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=options.learning_rate)
        if "weights" in arrays:
            self._restore(arrays)

    def explore(self, start: Places, score: Score) -> Places:
        """One episode from each row of `start`, and what is learned from them. Returns all places
        met, shape (visits, knobs)."""
        with self._own_randomness():
            walk, met = self._episode(start, score)
            self._learn(walk)
            self.seed = int(self.torch.randint(1 << 31, (1,)))
        return met

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All it has learned, as float32 vectors, shape (numbers,)."""
        state = [self.optimizer.state[p] for p in self.parameters]
        vectors = {
            "weights": [p.detach() for p in self.parameters],
            "first_moments": [each["exp_avg"] for each in state],
            "second_moments": [each["exp_avg_sq"] for each in state],
        }
        found = {name: self._vector(parts) for name, parts in vectors.items()}
        return found | {"updates": np.array([float(state[0]["step"])], np.float32)}

    def _episode(self, start: Places, score: Score) -> tuple[_Walk, Places]:
        places, walking = start, np.ones(len(start), dtype=np.bool_)
        movable = self.cardinalities > 1
        steps: list[tuple[NDArray[Any], ...]] = []
        met = [start]
        for _ in range(self.options.steps):
            seen = (places / self.cardinalities).astype(np.float32)
            done, log_chance, expected = self._act(seen)
            moved = np.clip(places + done - 1, 0, self.cardinalities - 1)
            barred = np.isneginf(score(moved))
            moved[barred] = places[barred]
            steps.append((seen, done, log_chance, score(moved), expected, walking))
            met.append(moved[walking])
            held = (moved == places)[:, movable].mean(axis=1) if movable.any() else np.ones(1)
            walking = walking & (held < self.options.held)
            places = moved
            if not walking.any():
                break
        return _Walk(*(np.stack(each) for each in zip(*steps, strict=True))), np.concatenate(met)

    def _act(
        self, seen: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64]]:
        with self.torch.no_grad():
            x = self.torch.from_numpy(seen)
            policy = self._policy(x)
            done = policy.sample()
            chance = policy.log_prob(done).sum(dim=1)
            expected = self.critic(x)[:, 0]
        return done.numpy(), chance.numpy(), expected.numpy().astype(np.float64)

    def _learn(self, walk: _Walk) -> None:
        """Some epochs of minibatches over the steps of one episode."""
        torch, options = self.torch, self.options
        gain = _advantages(walk, options.discount, options.trace)
        rows = np.flatnonzero(walk.walking)
        rows = rows[torch.randperm(len(rows))[: options.learned].numpy()]
        goal = torch.from_numpy((gain + walk.expected).ravel()[rows].astype(np.float32))
        gain = gain.ravel()[rows]
        gain = torch.from_numpy(((gain - gain.mean()) / (gain.std() + 1e-8)).astype(np.float32))
        seen, done, before = (
            torch.from_numpy(each.reshape(walk.walking.size, -1)[rows])
            for each in (walk.seen, walk.done, walk.log_chance)
        )
        for _ in range(options.epochs):
            for part in torch.randperm(len(seen)).split(options.minibatch):
                policy = self._policy(seen[part])
                ratio = (policy.log_prob(done[part]).sum(dim=1) - before[part, 0]).exp()
                clipped = ratio.clamp(1 - options.clip, 1 + options.clip)
                surrogate = torch.minimum(ratio * gain[part], clipped * gain[part]).mean()
                error = ((self.critic(seen[part])[:, 0] - goal[part]) ** 2).mean()
                spread = policy.entropy().mean()
                loss = options.value * error - surrogate - options.entropy * spread
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

    def _policy(self, seen: Any) -> Any:
        """Of every knob: down, stay, up."""
        logits = self.actor(seen).reshape(len(seen), -1, 3) / self.options.temperature
        return self.torch.distributions.Categorical(logits=logits)

    def _network(self, inputs: int, outputs: int, layers: int) -> Any:
        nn = self.torch.nn
        sizes = [inputs, *[_UNITS] * layers]
        hidden = [
            part
            for width, units in pairwise(sizes)
            for part in (nn.Linear(width, units), nn.Tanh())
        ]
        return nn.Sequential(*hidden, nn.Linear(_UNITS, outputs))

    def _restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        split = {
            name: self._split(arrays[name])
            for name in ("weights", "first_moments", "second_moments")
        }
        step = self.torch.tensor(float(arrays["updates"][0]))
        with self.torch.no_grad():
            for parameter, value in zip(self.parameters, split["weights"], strict=True):
                parameter.copy_(value)
        state = {
            k: {"step": step.clone(), "exp_avg": first, "exp_avg_sq": second}
            for k, (first, second) in enumerate(
                zip(split["first_moments"], split["second_moments"], strict=True)
            )
        }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _vector(self, parts: list[Any]) -> NDArray[np.generic]:
        vector = self.torch.cat([part.reshape(-1) for part in parts])
        return np.array(vector.numpy(), dtype=np.float32)

    def _split(self, vector: NDArray[np.generic]) -> list[Any]:
        whole = self.torch.from_numpy(np.array(vector, dtype=np.float32))
        parts = whole.split([p.numel() for p in self.parameters])
        return [
            part.reshape(p.shape).clone() for part, p in zip(parts, self.parameters, strict=True)
        ]

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        with self.torch.random.fork_rng(devices=[]):
            self.torch.manual_seed(self.seed)
            threads = self.torch.get_num_threads()
            self.torch.set_num_threads(1)  # layers this small only wait for each other
            try:
                yield
            finally:
                self.torch.set_num_threads(threads)


def _advantages(walk: _Walk, discount: float, trace: float) -> NDArray[np.float64]:
    """Generalised advantage estimates (Schulman et al., 2016), shape (steps, walkers). What comes
    after a walker's last step is worth nothing."""
    gain = np.zeros_like(walk.earned)
    later, after = np.zeros(gain.shape[1]), np.zeros(gain.shape[1])
    for step in reversed(range(len(gain))):
        surprise = walk.earned[step] + discount * after - walk.expected[step]
        gain[step] = np.where(walk.walking[step], surprise + discount * trace * later, 0.0)
        later, after = gain[step], np.where(walk.walking[step], walk.expected[step], 0.0)
    return gain
