"""Trains neural models: Adam on the root of the mean squared error, within a time limit.

Rows lie on the device as a whole. A few hundred steps at a time are one compiled loop, and the
clock is looked at between loops. The learning rate falls to nothing in the last part of whatever
ends first, the epochs or the minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from numpy.typing import NDArray

from tilewright.models.transfer.jax_networks import JaxNetwork, begin
from tilewright.models.transfer.model import LearningOutcome, Lesson
from tilewright.models.transfer.preprocessing import Matrix, is_late, masked, may_go, surely_less
from tilewright.models.transfer.weights import NamedWeights
from tilewright.search.actor_critic import on_cpu

_ASKED_AT_ONCE = 4096
_LOOP_SECONDS = 4.0
_FIRST_STEPS, _MOST_STEPS = 32, 1024
_LOOK_EVERY = 0.1  # of the training: how far it is from the rows kept back
_EPSILON = 1e-8


class Taken(NamedTuple):
    """What is taken away at random: the chance that a row loses its late columns, that any value is
    lost, which columns are late, and which may go alone, both (columns,)."""

    program: float
    column: float
    late: ArrayLike
    single: ArrayLike


def descend(
    network: JaxNetwork,
    lesson: Lesson,
    scaled: Callable[[Matrix], Matrix],
    options: Any,
    seed: int,
    start: NamedWeights | None = None,
) -> tuple[NamedWeights, LearningOutcome]:
    """Weights of the network's shapes that fit a lesson, and how far the training came. `options`
    are those of `models.transfer.neural.NeuralOptions` with a batch. With weights to `start` from,
    those are returned that are least off on the rows kept back, after whichever epoch."""
    rng = np.random.default_rng(seed)
    count = len(lesson.x)
    batch = min(options.batch, count)
    per_epoch = -(-count // batch)
    total = per_epoch * options.epochs
    late, single = is_late(lesson.names), may_go(lesson.names)
    taken = Taken(options.drop_program, options.drop_column, late, single)
    with on_cpu():
        x, y = jnp.asarray(scaled(lesson.x)), jnp.asarray(np.stack(lesson.y, axis=1))
        first = begin(network, seed) if start is None else start
        weights: Any = {name: jnp.array(each) for name, each in first.items()}
        best = None if start is None else _Best(network, lesson, scaled, options, start)
        adam = _adam().init(weights)
        done, looked = 0, 0.0
        steps = _FIRST_STEPS if best is None else min(per_epoch, _MOST_STEPS)
        draws = _Draws(count, batch, rng)
        weights, adam, _ = _loop(  # no step: compiled, and the clock has seen none of it
            network, weights, adam, x, y, np.zeros((_MOST_STEPS, batch), np.int32), np.int32(0),
            np.uint32(0), np.float32(0.0), taken,
        )  # fmt: skip
        started = time.monotonic()
        while done < total:
            now = time.monotonic()
            if now > lesson.until:
                break
            steps = min(steps, total - done)
            share = max(done / total, _share(now, started, lesson.until))
            rate = options.learning_rate * min(1.0, (1.0 - share) / max(options.fall, 1e-9))
            rows = np.zeros((_MOST_STEPS, batch), np.int32)  # of one shape: compiled once
            rows[:steps] = draws.take(steps)
            weights, adam, loss = _loop(
                network, weights, adam, x, y, rows, np.int32(steps),
                np.uint32(rng.integers(1 << 31)), np.float32(rate), taken,
            )  # fmt: skip
            loss.block_until_ready()
            done += steps
            if best is not None:
                best.look(weights)
            took = time.monotonic() - now
            if best is None and took < _LOOP_SECONDS / 2:
                steps = min(2 * steps, _MOST_STEPS)
            if share >= looked:
                looked = share + _LOOK_EVERY
                lesson.say(
                    f"epoch {done / per_epoch:.1f} of {options.epochs}, error {float(loss):.3f}"
                )
        found = best.weights if best is not None else _kept(weights)
    seconds = time.monotonic() - started
    stopped = "epochs" if done >= total else "minutes"
    return found, LearningOutcome(done / per_epoch, options.epochs, seconds, stopped)


def ask(
    network: JaxNetwork, weights: NamedWeights, x: Matrix, scaled: Callable[[Matrix], Matrix]
) -> NDArray[np.float64]:
    """Labels of rows (rows, columns), shape (rows,)."""
    found = np.empty(len(x))
    with on_cpu():
        for begin_at in range(0, len(x), _ASKED_AT_ONCE):
            part = scaled(x[begin_at : begin_at + _ASKED_AT_ONCE])
            size = _size(len(part))
            filled = np.zeros((size, part.shape[1]), np.float32)
            filled[: len(part)] = part
            labels = np.asarray(_ask(network, weights, filled))
            found[begin_at : begin_at + len(part)] = labels[: len(part)]
    return found


def _size(rows: int) -> int:
    """So many rows are asked about: few sizes, since each is compiled."""
    return next(size for size in (64, 512, _ASKED_AT_ONCE) if rows <= size)


def _kept(weights: Any) -> NamedWeights:
    return {name: np.array(each) for name, each in weights.items()}


class _Best:
    """Of the weights it is shown those that are least off on the rows kept back, compiled and not,
    as both are learned."""

    def __init__(
        self, network: JaxNetwork, lesson: Lesson, scaled: Callable[[Matrix], Matrix], options: Any,
        start: NamedWeights,
    ) -> None:  # fmt: skip
        self.network, self.scaled, self.start, self.found = network, scaled, start, start
        shares = (1.0 - options.drop_program, options.drop_program)
        self.held = [
            (share, masked(lesson.held_x, lesson.names, gone, 0.0, 0)[0], y)
            for share, gone, y in zip(shares, (0.0, 1.0), lesson.held_y, strict=True)
        ]
        self.before = self.least = self._off(start)

    def look(self, weights: Any) -> None:
        """Keep these if they are better than all before."""
        off = self._off(weights)
        if off.mean() < self.least.mean():
            self.least, self.found = off, _kept(weights)

    @property
    def weights(self) -> NamedWeights:
        """The best, or those to start from where the best may be so by chance."""
        return self.found if surely_less(self.least, self.before) else self.start

    def _off(self, weights: Any) -> NDArray[np.float64]:
        """Squared errors, (rows,)."""
        off = np.zeros(len(self.held[0][1]))
        for share, x, y in self.held:
            off += share * (ask(self.network, weights, x, self.scaled) - y) ** 2
        return off


class _Draws:
    """Rows of minibatches, each epoch all of them in another order."""

    def __init__(self, rows: int, batch: int, rng: np.random.Generator) -> None:
        self.rows, self.batch, self.rng = rows, batch, rng
        self.left = np.empty(0, np.int32)

    def take(self, steps: int) -> NDArray[np.int32]:
        """Shape (steps, batch)."""
        wanted = steps * self.batch
        parts, count = [self.left], len(self.left)
        while count < wanted:
            parts.append(self.rng.permutation(self.rows).astype(np.int32))
            count += self.rows
        whole = np.concatenate(parts)
        self.left = whole[wanted:]
        return whole[:wanted].reshape(steps, self.batch)


def _share(now: float, started: float, until: float) -> float:
    return min((now - started) / max(until - started, 1e-9), 1.0)


def _adam() -> Any:
    return optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)


@partial(jax.jit, static_argnums=0)
def _ask(network: JaxNetwork, weights: Any, x: ArrayLike) -> jax.Array:
    return network(weights, jnp.asarray(x))


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def _loop(
    network: JaxNetwork, weights: Any, adam: Any, x: jax.Array, y: jax.Array, rows: ArrayLike,
    count: ArrayLike, seed: ArrayLike, rate: ArrayLike, taken: Taken,
) -> tuple[Any, Any, jax.Array]:  # fmt: skip
    """Weights and Adam's averages after a step for each of the first `count` rows of `rows`,
    (steps, batch), and the mean error on the way."""
    adam.hyperparams["learning_rate"] = jnp.asarray(rate)
    key, rows = jax.random.key(seed, impl="threefry2x32"), jnp.asarray(rows)

    def loss(weights: Any, some: jax.Array, label: jax.Array) -> jax.Array:
        off = network(weights, some) - label
        return jnp.sqrt((off * off).mean() + _EPSILON)

    def step(k: jax.Array, carried: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        weights, adam, total = carried
        some, uncompiled = _without(x[rows[k]], jax.random.fold_in(key, k), taken)
        label = jnp.where(uncompiled, y[rows[k], 1], y[rows[k], 0])
        error, slope = jax.value_and_grad(loss)(weights, some, label)
        change, adam = _adam().update(slope, adam)
        return optax.apply_updates(weights, change), adam, total + error

    start = (weights, adam, jnp.zeros((), jnp.float32))
    weights, adam, total = jax.lax.fori_loop(0, count, step, start)
    return weights, adam, total / count


def _without(x: jax.Array, key: jax.Array, taken: Taken) -> tuple[jax.Array, jax.Array]:
    """Rows with values taken away, and which of them look as if they were not compiled."""
    rows, alone = jax.random.split(key)
    uncompiled = jax.random.uniform(rows, (x.shape[0],)) < taken.program
    gone = jax.random.uniform(alone, x.shape) < taken.column
    gone = (gone & jnp.asarray(taken.single)) | (uncompiled[:, None] & jnp.asarray(taken.late))
    return jnp.where(gone, jnp.nan, x), uncompiled
