"""Neural transfer models in plain JAX, and their training.

A network is a function of named weights and of rows of columns. NaN marks unknown values. In the
first layer, a learned embedding of the column replaces each unknown value. All computations are in
float32.

Networks are trained with Adam on the root mean squared error, within a time limit. All rows are
kept on the device. A few hundred steps at a time run in one compiled loop, and the time limit is
checked between these loops. The learning rate falls to zero in the last part of the training, which
ends with the requested epochs or at the time limit, whichever comes first.

Only `models.transfer.neural` imports this module, and only when it needs a network, because JAX
takes a second to load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from numpy.typing import NDArray

from tilewright.models.transfer import numpy_mlp
from tilewright.models.transfer.model import LearningOutcome, Lesson
from tilewright.models.transfer.numpy_mlp import NamedWeights, Shapes, layer_shapes, read_shapes
from tilewright.models.transfer.training_data import (
    Matrix,
    is_late,
    mask_values,
    may_go,
    surely_less,
)
from tilewright.search.actor_critic import on_cpu

_Params = Mapping[str, jax.Array]


class JaxNetwork(Protocol):
    """Protocol of a neural network whose inputs are rows of columns.

    Networks must be hashable, because equal networks share their compiled code.
    """

    def shapes(self) -> Shapes:
        """Return the shape of each weight, by name."""

    def __call__(self, weights: _Params, x: jax.Array) -> jax.Array:
        """Predict the labels of rows.

        Args:
            weights: weights by name.
            x: normalised rows of shape (rows, columns); unknown values are NaN.

        Returns:
            Labels of shape (rows,).
        """


def init_weights(network: JaxNetwork, seed: int) -> NamedWeights:
    """Draw the initial weights of a network.

    Matrices are normal with variance 1/inputs, gains are 1, embeddings of unknown values are small
    random numbers, and all other weights are 0.

    Args:
        network: the network.
        seed: seed of the random generator.

    Returns:
        Weights by name.
    """
    rng = np.random.default_rng(seed)
    weights: NamedWeights = {}
    for name, shape in network.shapes().items():
        kind = name.rpartition(" ")[2]
        if kind == "matrix":
            values = rng.normal(0.0, shape[-2] ** -0.5, shape)
        elif kind == "unknown":
            values = rng.normal(0.0, 0.02, shape)
        else:
            values = np.full(shape, 1.0 if kind == "gain" else 0.0)
        weights[name] = values.astype(np.float32)
    return weights


@dataclass(frozen=True)
class Perceptron:
    """Multilayer perceptron with residual connections.

    Attributes:
        columns: number of input columns.
        units: number of units per layer.
        layers: number of hidden layers.
    """

    columns: int
    units: int
    layers: int

    def shapes(self) -> Shapes:
        """Return the shape of each weight, by name."""
        return numpy_mlp.shapes(self.columns, self.units, self.layers)

    def __call__(self, weights: _Params, x: jax.Array) -> jax.Array:
        """Predict the labels of rows.

        Args:
            weights: weights by name.
            x: normalised rows of shape (rows, columns); unknown values are NaN.

        Returns:
            Labels of shape (rows,).
        """
        h = jax.nn.gelu(_read(weights, "in", x))
        for k in range(1, self.layers):
            h = h + jax.nn.gelu(_layer(weights, f"layer {k}", h))
        return (h @ weights["out matrix"] + weights["out bias"])[:, 0]


UNROLLED = 2
"""Number of LSTM steps that are compiled as one step. This is faster and gives the same results."""


@dataclass(frozen=True)
class Decisions:
    """Bidirectional LSTMs over the tokens of a schedule, followed by self-attention.

    A token is the group of columns that describe one knob of the schedule. A second network embeds
    all columns that belong to no token, such as the hardware properties. This embedding is appended
    to every token at the input of the first LSTM.

    Attributes:
        columns: number of input columns.
        tokens: column indices of each token.
        others: indices of the columns that belong to no token.
        units: number of units per LSTM direction.
        layers: number of bidirectional LSTMs.
        heads: number of attention heads.
    """

    columns: int
    tokens: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]
    units: int
    layers: int
    heads: int

    @cached_property
    def _token_columns(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Column indices of each token, as arrays that are padded to a common length.

        Returns:
            The indices, and a mask that is False for padding, both of shape (tokens, largest number
            of columns of a token).
        """
        most = max((len(item) for item in self.tokens), default=1)
        places = np.zeros((max(len(self.tokens), 1), most), np.int64)
        there = np.zeros_like(places, dtype=np.bool_)
        for k, token in enumerate(self.tokens):
            places[k, : len(token)] = token
            there[k, : len(token)] = True
        return places, there

    @property
    def _width(self) -> int:
        return 2 * self.units

    def shapes(self) -> Shapes:
        """Return the shape of each weight, by name."""
        count, most = self._token_columns[0].shape
        wide, units = self._width, self.units
        shapes = read_shapes("others", len(self.others), 2 * wide)
        shapes |= layer_shapes("others again", 2 * wide, wide)
        shapes |= {"knob matrix": (count, most, wide), "knob unknown": (count, most, wide),
                  "knob name": (count, wide)}  # fmt: skip
        for k in range(self.layers):
            inputs = 2 * wide if k == 0 else wide
            shapes |= {
                f"lstm {k} in matrix": (2, inputs, 4 * units),
                f"lstm {k} state matrix": (2, units, 4 * units),
                f"lstm {k} bias": (2, 4 * units),
            }
        head_width = self.heads * max(wide // self.heads, 1)
        for name in ("query", "key", "value"):
            shapes[f"attention {name} matrix"] = (wide, head_width)
        shapes |= {"attention out matrix": (head_width, wide)}
        shapes |= layer_shapes("head", 3 * wide, wide)
        return shapes | {"out matrix": (wide, 1), "out bias": (1,)}

    def __call__(self, weights: _Params, x: jax.Array) -> jax.Array:
        """Predict the labels of rows.

        Args:
            weights: weights by name.
            x: normalised rows of shape (rows, columns); unknown values are NaN.

        Returns:
            Labels of shape (rows,).
        """
        others = jax.nn.gelu(_read(weights, "others", x[:, np.array(self.others, np.int64)]))
        light = jax.nn.gelu(_layer(weights, "others again", others))
        tokens, present = self._embed_tokens(weights, x)
        wide = jnp.broadcast_to(light[:, None, :], (*tokens.shape[:2], light.shape[1]))
        h = jnp.concatenate([tokens, wide], axis=2)
        for k in range(self.layers):
            result = self._lstm(weights, f"lstm {k}", h)
            h = result if k == 0 else h + result
        seen = self._attention(weights, h, present)
        last = jnp.concatenate([seen, _mean(h, present), light], axis=1)
        out = jax.nn.gelu(_layer(weights, "head", last)) @ weights["out matrix"]
        return (out + weights["out bias"])[:, 0]

    def _embed_tokens(self, weights: _Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Embed the columns of each token.

        Args:
            weights: weights by name.
            x: normalised rows of shape (rows, columns); unknown values are NaN.

        Returns:
            Embeddings of shape (rows, tokens, width), and a mask of shape (rows, tokens), which is
            False for tokens without any known value.
        """
        places, there = self._token_columns
        values = jnp.where(there, x[:, places], 0.0)
        known = ~jnp.isnan(values)
        unknown = (~known).astype(jnp.float32)
        tokens = (
            jnp.einsum("rtp,tpw->rtw", jnp.nan_to_num(values), weights["knob matrix"])
            + jnp.einsum("rtp,tpw->rtw", unknown, weights["knob unknown"])
            + weights["knob name"]
        )
        return tokens, (known & there).any(axis=2)

    def _lstm(self, weights: _Params, name: str, h: jax.Array) -> jax.Array:
        """Run both directions of an LSTM.

        Args:
            weights: weights by name.
            name: prefix of the LSTM's weights.
            h: inputs of shape (rows, tokens, inputs).

        Returns:
            Outputs of shape (rows, tokens, width).
        """
        both = jnp.stack([h, h[:, ::-1]])
        given = jnp.einsum("drti,dig->tdrg", both, weights[f"{name} in matrix"])
        given = given + weights[f"{name} bias"][:, None, :]
        matrix = weights[f"{name} state matrix"]

        def step(
            state: tuple[jax.Array, jax.Array], now: jax.Array
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            said, kept = state
            gates = now + jnp.einsum("dru,dug->drg", said, matrix)
            take, forget, new, tell = jnp.split(gates, 4, axis=2)
            kept = jax.nn.sigmoid(forget + 1.0) * kept + jax.nn.sigmoid(take) * jnp.tanh(new)
            said = jax.nn.sigmoid(tell) * jnp.tanh(kept)
            return (said, kept), said

        nothing = jnp.zeros((2, h.shape[0], self.units), jnp.float32)
        _, said = jax.lax.scan(step, (nothing, nothing), given, unroll=UNROLLED)
        forth, back = said[:, 0], said[::-1, 1]
        return jnp.concatenate([forth, back], axis=2).transpose(1, 0, 2)

    def _attention(self, weights: _Params, h: jax.Array, present: jax.Array) -> jax.Array:
        """Apply self-attention to the tokens that a row has, and average over these tokens.

        Args:
            weights: weights by name.
            h: embedded tokens, shape (rows, tokens, width).
            present: mask of the tokens that a row has, shape (rows, tokens).

        Returns:
            Array of shape (rows, width).
        """
        rows, tokens, _ = h.shape

        def heads(name: str) -> jax.Array:
            return (h @ weights[f"attention {name} matrix"]).reshape(rows, tokens, self.heads, -1)

        query, key = heads("query"), heads("key")
        match = jnp.einsum("rihe,rjhe->rhij", query, key) / np.sqrt(query.shape[3])
        match = jnp.where(present[:, None, None, :], match, -1e9)
        seen = jnp.einsum("rhij,rjhe->rihe", jax.nn.softmax(match), heads("value"))
        return _mean(seen.reshape(rows, tokens, -1) @ weights["attention out matrix"], present)


def _mean(h: jax.Array, present: jax.Array) -> jax.Array:
    """Average embeddings over the present tokens of each row.

    Args:
        h: embedded tokens, shape (rows, tokens, width).
        present: mask of the tokens that a row has, shape (rows, tokens).

    Returns:
        Array of shape (rows, width); 0 for rows without tokens.
    """
    count = jnp.maximum(present.sum(axis=1), 1)[:, None]
    return (h * present[:, :, None]).sum(axis=1) / count


def _read(weights: _Params, name: str, x: jax.Array) -> jax.Array:
    """Apply a linear input layer that replaces an unknown (NaN) value by its column's embedding.

    Args:
        weights: weights by name.
        name: prefix of the layer's weights.
        x: rows of shape (rows, columns).

    Returns:
        Array of shape (rows, units).
    """
    known = ~jnp.isnan(x)
    return (
        jnp.where(known, x, 0.0) @ weights[f"{name} matrix"]
        + (~known).astype(jnp.float32) @ weights[f"{name} unknown"]
        + weights[f"{name} bias"]
    )


def _layer(weights: _Params, name: str, h: jax.Array) -> jax.Array:
    """Apply RMS normalisation and a linear layer.

    Args:
        weights: weights by name.
        name: prefix of the layer's weights.
        h: input of shape (…, inputs).

    Returns:
        Array of shape (…, units).
    """
    h = h * jax.lax.rsqrt((h * h).mean(axis=-1, keepdims=True) + 1e-6)
    return h * weights[f"{name} gain"] @ weights[f"{name} matrix"] + weights[f"{name} bias"]


_ASKED_AT_ONCE = 4096
_LOOP_SECONDS = 4.0
_FIRST_STEPS, _MOST_STEPS = 32, 1024
_LOOK_EVERY = 0.1  # fraction of the training between two progress reports
_EPSILON = 1e-8  # keeps the gradient of the square root of an error finite at zero


class Taken(NamedTuple):
    """Settings for masking values at random during training.

    Training with masked values teaches the model to predict from incomplete rows. "Late" columns
    are known only after compilation.

    Attributes:
        program: probability that a row loses all its late columns, as if it had not been compiled.
        column: probability that any single value is lost.
        late: bool array of shape (columns,), True for late columns.
        single: bool array of shape (columns,), True for columns whose values may be lost
            individually.
    """

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
    """Train a network with Adam on the rows of a lesson.

    Args:
        network: the network.
        lesson: training and held-out rows, with the time limit of the training.
        scaled: function that normalises rows of shape (rows, columns).
        options: options of a neural model (`models.transfer.neural.NeuralOptions`) that also have a
            batch size.
        seed: seed of the random generator.
        start: weights to fine-tune, or None to start from random weights. In fine-tuning, the
            weights with the lowest error on the held-out rows are returned. Otherwise, the weights
            after the last step are returned.

    Returns:
        The weights by name, and the number of epochs, duration and reason for the end of the
        training.
    """
    rng = np.random.default_rng(seed)
    count = len(lesson.x)
    batch = min(options.batch, count)
    per_epoch = -(-count // batch)
    total = per_epoch * options.epochs
    late, single = is_late(lesson.names), may_go(lesson.names)
    taken = Taken(options.drop_program, options.drop_column, late, single)
    with on_cpu():
        x, y = jnp.asarray(scaled(lesson.x)), jnp.asarray(np.stack(lesson.y, axis=1))
        first = init_weights(network, seed) if start is None else start
        weights: Any = {name: jnp.array(item) for name, item in first.items()}
        best = None if start is None else _Best(network, lesson, scaled, options, start)
        adam = _adam().init(weights)
        done, looked = 0, 0.0
        steps = _FIRST_STEPS if best is None else min(per_epoch, _MOST_STEPS)
        draws = _Draws(count, batch, rng)
        weights, adam, _ = _loop(  # zero steps: compiles the loop before the clock starts
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
            rows = np.zeros((_MOST_STEPS, batch), np.int32)  # constant shape, compiled only once
            rows[:steps] = draws.take(steps)
            weights, adam, loss = _loop(
                network, weights, adam, x, y, rows, np.int32(steps),
                np.uint32(rng.integers(1 << 31)), np.float32(rate), taken,
            )  # fmt: skip
            loss.block_until_ready()
            done += steps
            if best is not None:
                best.offer(weights)
            took = time.monotonic() - now
            if best is None and took < _LOOP_SECONDS / 2:
                steps = min(2 * steps, _MOST_STEPS)
            if share >= looked:
                looked = share + _LOOK_EVERY
                lesson.say(
                    f"epoch {done / per_epoch:.1f} of {options.epochs}, error {float(loss):.3f}"
                )
        result = best.weights if best is not None else _as_numpy(weights)
    seconds = time.monotonic() - started
    stopped = "epochs" if done >= total else "minutes"
    return result, LearningOutcome(done / per_epoch, options.epochs, seconds, stopped)


def ask(
    network: JaxNetwork, weights: NamedWeights, x: Matrix, scaled: Callable[[Matrix], Matrix]
) -> NDArray[np.float64]:
    """Predict the labels of rows with a trained network.

    Args:
        network: the network.
        weights: its weights by name.
        x: rows of shape (rows, columns); unknown values are NaN.
        scaled: function that normalises rows of shape (rows, columns).

    Returns:
        Labels of shape (rows,).
    """
    labels_of_rows = np.empty(len(x))
    with on_cpu():
        for begin_at in range(0, len(x), _ASKED_AT_ONCE):
            part = scaled(x[begin_at : begin_at + _ASKED_AT_ONCE])
            size = _size(len(part))
            filled = np.zeros((size, part.shape[1]), np.float32)
            filled[: len(part)] = part
            labels = np.asarray(_ask(network, weights, filled))
            labels_of_rows[begin_at : begin_at + len(part)] = labels[: len(part)]
    return labels_of_rows


def _size(rows: int) -> int:
    """Return the number of rows to which a batch is padded: 64, 512 or 4096.

    There are only three sizes, because each size is compiled separately.

    Args:
        rows: number of rows of the batch, at most 4096.
    """
    return next(size for size in (64, 512, _ASKED_AT_ONCE) if rows <= size)


def _as_numpy(weights: Any) -> NamedWeights:
    return {name: np.array(weight) for name, weight in weights.items()}


class _Best:
    """Keeps the weights with the lowest error on the held-out rows.

    The error is a weighted mean of the errors with and without compilation results, weighted as in
    training.

    Args:
        network: the network.
        lesson: training data with the held-out rows.
        scaled: function that normalises rows of shape (rows, columns).
        options: options of the model, with the probability that a row loses its compilation
            results.
        start: initial weights by name.
    """

    def __init__(
        self, network: JaxNetwork, lesson: Lesson, scaled: Callable[[Matrix], Matrix], options: Any,
        start: NamedWeights,
    ) -> None:  # fmt: skip
        self.network, self.scaled, self.start, self.found = network, scaled, start, start
        shares = (1.0 - options.drop_program, options.drop_program)
        self.held = [
            (share, mask_values(lesson.held_x, lesson.names, gone, 0.0, 0)[0], y)
            for share, gone, y in zip(shares, (0.0, 1.0), lesson.held_y, strict=True)
        ]
        self.before = self.least = self._squared_errors(start)

    def offer(self, weights: Any) -> None:
        """Evaluate weights on the held-out rows, and keep them if their error is the lowest."""
        off = self._squared_errors(weights)
        if off.mean() < self.least.mean():
            self.least, self.found = off, _as_numpy(weights)

    @property
    def weights(self) -> NamedWeights:
        """The weights with the lowest held-out error.

        If their improvement over the initial weights may be due to chance, the initial weights are
        returned.
        """
        return self.found if surely_less(self.least, self.before) else self.start

    def _squared_errors(self, weights: Any) -> NDArray[np.float64]:
        """Return the squared error of each held-out row.

        It is a weighted mean of the squared errors with and without compilation results.

        Args:
            weights: weights by name.

        Returns:
            Array of shape (rows,).
        """
        off = np.zeros(len(self.held[0][1]))
        for share, x, y in self.held:
            off += share * (ask(self.network, weights, x, self.scaled) - y) ** 2
        return off


class _Draws:
    """Draws the rows of minibatches. Each epoch uses every row once, in a new random order.

    Args:
        rows: number of training rows.
        batch: number of rows per minibatch.
        rng: random generator.
    """

    def __init__(self, rows: int, batch: int, rng: np.random.Generator) -> None:
        self.rows, self.batch, self.rng = rows, batch, rng
        self.left = np.empty(0, np.int32)

    def take(self, steps: int) -> NDArray[np.int32]:
        """Return the row indices of the next minibatches.

        Args:
            steps: number of minibatches.

        Returns:
            Array of shape (steps, batch).
        """
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
    """Run the first `count` training steps in one compiled loop.

    Args:
        network: the network.
        weights: weights before the steps.
        adam: state of Adam before the steps.
        x: all training rows, normalised, shape (n, columns).
        y: labels of the rows, with and without compilation results, shape (n, 2).
        rows: row indices of each minibatch, shape (steps, batch).
        count: number of minibatches to use.
        seed: seed of the random masking.
        rate: learning rate of all these steps.
        taken: settings of the masking.

    Returns:
        The new weights, the new state of Adam and the mean loss.
    """
    adam.hyperparams["learning_rate"] = jnp.asarray(rate)
    key, rows = jax.random.key(seed, impl="threefry2x32"), jnp.asarray(rows)

    def loss(weights: Any, some: jax.Array, label: jax.Array) -> jax.Array:
        off = network(weights, some) - label
        return jnp.sqrt((off * off).mean() + _EPSILON)

    def step(k: jax.Array, carried: tuple[Any, Any, jax.Array]) -> tuple[Any, Any, jax.Array]:
        weights, adam, total = carried
        some, uncompiled = _masked_rows(x[rows[k]], jax.random.fold_in(key, k), taken)
        label = jnp.where(uncompiled, y[rows[k], 1], y[rows[k], 0])
        error, slope = jax.value_and_grad(loss)(weights, some, label)
        change, adam = _adam().update(slope, adam)
        return optax.apply_updates(weights, change), adam, total + error

    start = (weights, adam, jnp.zeros((), jnp.float32))
    weights, adam, total = jax.lax.fori_loop(0, count, step, start)
    return weights, adam, total / count


def _masked_rows(x: jax.Array, key: jax.Array, taken: Taken) -> tuple[jax.Array, jax.Array]:
    """Replace random values of rows by NaN.

    Args:
        x: rows of shape (rows, columns).
        key: JAX random key.
        taken: settings of the masking.

    Returns:
        The masked rows, and a bool array of shape (rows,), which is True for rows that lost all
        late columns, as if they had not been compiled.
    """
    rows, alone = jax.random.split(key)
    uncompiled = jax.random.uniform(rows, (x.shape[0],)) < taken.program
    gone = jax.random.uniform(alone, x.shape) < taken.column
    gone = (gone & jnp.asarray(taken.single)) | (uncompiled[:, None] & jnp.asarray(taken.late))
    return jnp.where(gone, jnp.nan, x), uncompiled
