"""Computes neural models in plain JAX: functions of named weights and of rows with NaN for
unknowns. A learned embedding of the column replaces each unknown value.

Only `models.transfer.neural` imports this module, when a network is asked for: JAX takes a second
to load. All is float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tilewright.models.transfer import numpy_mlp
from tilewright.models.transfer.weights import NamedWeights, Shapes, layer_shapes, read_shapes

_Params = Mapping[str, jax.Array]


class JaxNetwork(Protocol):
    """A network over rows of columns; equal ones share what was compiled."""

    def shapes(self) -> Shapes:
        """The weights by name."""

    def __call__(self, weights: _Params, x: jax.Array) -> jax.Array:
        """Rows (rows, columns) to labels (rows,)."""


def begin(network: JaxNetwork, seed: int) -> NamedWeights:
    """Weights of the network's shapes to start from: matrices normal with variance 1/inputs, gains
    1, all else 0."""
    rng = np.random.default_rng(seed)
    found: NamedWeights = {}
    for name, shape in network.shapes().items():
        kind = name.rpartition(" ")[2]
        if kind == "matrix":
            values = rng.normal(0.0, shape[-2] ** -0.5, shape)
        elif kind == "unknown":
            values = rng.normal(0.0, 0.02, shape)
        else:
            values = np.full(shape, 1.0 if kind == "gain" else 0.0)
        found[name] = values.astype(np.float32)
    return found


@dataclass(frozen=True)
class Perceptron:
    """Layers of so many units, each added to what it is given."""

    columns: int
    units: int
    layers: int

    def shapes(self) -> Shapes:
        return numpy_mlp.shapes(self.columns, self.units, self.layers)

    def __call__(self, weights: _Params, x: jax.Array) -> jax.Array:
        h = jax.nn.gelu(_read(weights, "in", x))
        for k in range(1, self.layers):
            h = h + jax.nn.gelu(_layer(weights, f"layer {k}", h))
        return (h @ weights["out matrix"] + weights["out bias"])[:, 0]


UNROLLED = 2
"""Steps of an LSTM that are compiled as one: faster, and the same numbers."""


@dataclass(frozen=True)
class Decisions:
    """Bidirectional LSTMs over tokens, attention over what they say, all in the light of the
    `others`. `tokens` are the places of each token's columns."""

    columns: int
    tokens: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]
    units: int
    layers: int
    heads: int

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Columns of each token and which are some, both of shape (tokens, most columns)."""
        most = max((len(each) for each in self.tokens), default=1)
        places = np.zeros((max(len(self.tokens), 1), most), np.int64)
        there = np.zeros_like(places, dtype=np.bool_)
        for k, each in enumerate(self.tokens):
            places[k, : len(each)] = each
            there[k, : len(each)] = True
        return places, there

    @property
    def _width(self) -> int:
        return 2 * self.units

    def shapes(self) -> Shapes:
        count, most = self._places[0].shape
        wide, units = self._width, self.units
        found = read_shapes("others", len(self.others), 2 * wide)
        found |= layer_shapes("others again", 2 * wide, wide)
        found |= {"knob matrix": (count, most, wide), "knob unknown": (count, most, wide),
                  "knob name": (count, wide)}  # fmt: skip
        for k in range(self.layers):
            inputs = 2 * wide if k == 0 else wide
            found |= {
                f"lstm {k} in matrix": (2, inputs, 4 * units),
                f"lstm {k} state matrix": (2, units, 4 * units),
                f"lstm {k} bias": (2, 4 * units),
            }
        each = self.heads * max(wide // self.heads, 1)
        for name in ("query", "key", "value"):
            found[f"attention {name} matrix"] = (wide, each)
        found |= {"attention out matrix": (each, wide)}
        found |= layer_shapes("head", 3 * wide, wide)
        return found | {"out matrix": (wide, 1), "out bias": (1,)}

    def __call__(self, weights: _Params, x: jax.Array) -> jax.Array:
        others = jax.nn.gelu(_read(weights, "others", x[:, np.array(self.others, np.int64)]))
        light = jax.nn.gelu(_layer(weights, "others again", others))
        tokens, present = self._embedded(weights, x)
        wide = jnp.broadcast_to(light[:, None, :], (*tokens.shape[:2], light.shape[1]))
        h = jnp.concatenate([tokens, wide], axis=2)
        for k in range(self.layers):
            found = self._lstm(weights, f"lstm {k}", h)
            h = found if k == 0 else h + found
        seen = self._attention(weights, h, present)
        last = jnp.concatenate([seen, _mean(h, present), light], axis=1)
        out = jax.nn.gelu(_layer(weights, "head", last)) @ weights["out matrix"]
        return (out + weights["out bias"])[:, 0]

    def _embedded(self, weights: _Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tokens (rows, tokens, width), and whether a row has such a knob (rows, tokens)."""
        places, there = self._places
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
        """Both directions at once: (rows, tokens, inputs) → (rows, tokens, width)."""
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
        """What the heads see of all tokens that are there, mean over tokens: (rows, width)."""
        rows, tokens, _ = h.shape

        def heads(name: str) -> jax.Array:
            return (h @ weights[f"attention {name} matrix"]).reshape(rows, tokens, self.heads, -1)

        query, key = heads("query"), heads("key")
        match = jnp.einsum("rihe,rjhe->rhij", query, key) / np.sqrt(query.shape[3])
        match = jnp.where(present[:, None, None, :], match, -1e9)
        seen = jnp.einsum("rhij,rjhe->rihe", jax.nn.softmax(match), heads("value"))
        return _mean(seen.reshape(rows, tokens, -1) @ weights["attention out matrix"], present)


def _mean(h: jax.Array, present: jax.Array) -> jax.Array:
    """Mean over the tokens that are there, 0 without any."""
    count = jnp.maximum(present.sum(axis=1), 1)[:, None]
    return (h * present[:, :, None]).sum(axis=1) / count


def _read(weights: _Params, name: str, x: jax.Array) -> jax.Array:
    """Values of columns, and in place of an unknown one its column's embedding."""
    known = ~jnp.isnan(x)
    return (
        jnp.where(known, x, 0.0) @ weights[f"{name} matrix"]
        + (~known).astype(jnp.float32) @ weights[f"{name} unknown"]
        + weights[f"{name} bias"]
    )


def _layer(weights: _Params, name: str, h: jax.Array) -> jax.Array:
    """A linear layer of what is put on one scale first."""
    h = h * jax.lax.rsqrt((h * h).mean(axis=-1, keepdims=True) + 1e-6)
    return h * weights[f"{name} gain"] @ weights[f"{name} matrix"] + weights[f"{name} bias"]
