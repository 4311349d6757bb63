"""Implements a small graph network in JAX, which predicts what each layer adds.

Layers exchange messages a few times with those they feed and follow. Needs the extra `neural`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from tilewright.core.files import write_atomically
from tilewright.fusion.learned.graph_model import ModelError, layer_labels
from tilewright.fusion.model_features import EDGE, GraphTable
from tilewright.models.transfer.weights import NamedWeights, Shapes, pack_weights, unpack_weights
from tilewright.search.actor_critic import on_cpu

UNITS, ROUNDS = 32, 3
_STEPS, _CORRECTING = 1500, 120
_RATE, _CORRECTING_RATE = 3e-3, 1e-3
_GRAPHS = 8
"""Graphs of a step."""
_Params = Mapping[str, jax.Array]
_Batch = tuple[jax.Array, ...]


class GraphNetwork:
    """Keeps `fusion.learned.graph_model.GraphModel`."""

    kind = "graph-network"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._weights: NamedWeights = {}
        self._scale: NamedWeights = {}
        self._frozen = False

    def fit(self, graphs: Sequence[GraphTable]) -> None:
        rng = np.random.default_rng(self.seed)
        if not self._frozen:
            rows = np.concatenate([graph.nodes for graph in graphs])
            deviation = rows.std(axis=0)
            self._scale = {
                "mean": rows.mean(axis=0).astype(np.float32),
                "deviation": np.where(deviation > 1e-6, deviation, 1.0).astype(np.float32),
            }
            self._weights = _begin(_shapes(rows.shape[1]), rng)
        self._check(graphs)
        steps, rate = (_CORRECTING, _CORRECTING_RATE) if self._frozen else (_STEPS, _RATE)
        sizes = _sizes(graphs)
        packed = [self._packed(graph, sizes) for graph in graphs]
        optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps))
        with on_cpu():
            weights: Any = {name: jnp.array(each) for name, each in self._weights.items()}
            state = optimiser.init(weights)
            for _ in range(steps):
                some = rng.integers(0, len(packed), _GRAPHS)
                batch = tuple(jnp.stack([packed[k][part] for k in some]) for part in range(6))
                weights, state = _step(optimiser.update, weights, state, batch)
            self._weights = {name: np.array(each) for name, each in weights.items()}

    def predict(self, graphs: Sequence[GraphTable]) -> NDArray[np.float64]:
        self._check(graphs)
        found = np.empty(len(graphs))
        sizes = _sizes(graphs)
        with on_cpu():
            for k, graph in enumerate(graphs):
                nodes, links, edges, there, _, _ = self._packed(graph, sizes)
                said = np.asarray(_tell(self._weights, nodes, links, edges, there))
                more = said[: len(graph.prior)].astype(np.float64)
                found[k] = float((graph.prior * np.exp2(more)).sum())
        return found

    def freeze(self) -> None:
        """From now on what was learned stays but for corrections."""
        self._frozen = bool(self._weights)

    def save(self, path: Path) -> None:
        """Raises `ModelError` where nothing was learned, `OSError`."""
        if not self._weights:
            raise ModelError("this model has learned nothing; fit it before it is saved")
        write_atomically(path, pack_weights({**self._weights, **self._scale}))

    def load(self, path: Path) -> None:
        try:
            found = unpack_weights(path.read_bytes())
            self._scale = {name: found.pop(name) for name in ("mean", "deviation")}
        except (ValueError, KeyError) as error:
            raise ModelError(f"{path} holds no such model: {error}; train it again") from None
        self._weights, self._frozen = found, True

    def _check(self, graphs: Sequence[GraphTable]) -> None:
        known = len(self._scale.get("mean", ()))
        for graph in graphs:
            if graph.nodes.shape[1] != known:
                raise ModelError(
                    f"a model learned from {known} figures of a layer and is asked about "
                    f"{graph.nodes.shape[1]}; train it again"
                )

    def _packed(self, graph: GraphTable, sizes: tuple[int, int]) -> _Batch:
        """Nodes, links, edges, which nodes there are, labels and weights, of fixed sizes: unused
        edges go from and to an unused node."""
        most, edges = sizes
        n, m = len(graph.prior), len(graph.edges)
        nodes = np.zeros((most, graph.nodes.shape[1]), np.float32)
        scaled = (graph.nodes - self._scale["mean"]) / self._scale["deviation"]
        nodes[:n] = np.clip(scaled, -6, 6)
        links = np.zeros((edges, len(EDGE)), np.float32)
        links[:m] = graph.links * (1.0, 1.0, 0.05)
        ends = np.full((edges, 2), most - 1, np.int32)
        ends[:m] = graph.edges
        there, labels, share = (np.zeros(most, np.float32) for _ in range(3))
        there[:n] = 1.0
        if len(graph.stream):
            labels[:n] = layer_labels(graph)
            share[:n] = graph.stream / graph.stream.sum()
        return tuple(map(jnp.asarray, (nodes, links, ends, there, labels, share)))


def _sizes(graphs: Sequence[GraphTable]) -> tuple[int, int]:
    """Room for the nodes and edges of each, few sizes: each is compiled."""
    nodes = max(len(graph.prior) for graph in graphs) + 1
    edges = max(len(graph.edges) for graph in graphs) + 1
    return 1 << (nodes - 1).bit_length(), 1 << (edges - 1).bit_length()


def _shapes(columns: int) -> Shapes:
    found: Shapes = {"in matrix": (columns, UNITS), "in bias": (UNITS,)}
    for k in range(ROUNDS):
        found |= {
            f"told {k} matrix": (UNITS + len(EDGE), UNITS), f"told {k} bias": (UNITS,),
            f"asked {k} matrix": (UNITS + len(EDGE), UNITS), f"asked {k} bias": (UNITS,),
            f"new {k} matrix": (3 * UNITS, UNITS), f"new {k} bias": (UNITS,),
        }  # fmt: skip
    return found | {"out matrix": (UNITS, 1), "out bias": (1,)}


def _begin(shapes: Shapes, rng: np.random.Generator) -> NamedWeights:
    """Matrices normal with variance 1/inputs, the last smaller; biases 0."""
    found: NamedWeights = {}
    for name, shape in shapes.items():
        wide = shape[0] ** -0.5 * (0.1 if name.startswith("out") else 1.0)
        values = rng.normal(0.0, wide, shape) if len(shape) > 1 else np.zeros(shape)
        found[name] = values.astype(np.float32)
    return found


@jax.jit
def _tell(
    weights: _Params, nodes: jax.Array, links: jax.Array, edges: jax.Array, there: jax.Array
) -> jax.Array:
    """Of nodes (n, columns), edges (m, 2) with links (m, EDGE): (n,) log2 factors."""

    def layer(name: str, x: jax.Array) -> jax.Array:
        return x @ weights[f"{name} matrix"] + weights[f"{name} bias"]

    h = jax.nn.gelu(layer("in", nodes)) * there[:, None]
    writers, readers = edges[:, 0], edges[:, 1]
    for k in range(ROUNDS):
        told = jax.nn.gelu(layer(f"told {k}", jnp.concatenate([h[writers], links], axis=1)))
        asked = jax.nn.gelu(layer(f"asked {k}", jnp.concatenate([h[readers], links], axis=1)))
        heard = jax.ops.segment_sum(told, readers, len(nodes))
        back = jax.ops.segment_sum(asked, writers, len(nodes))
        h = h + jax.nn.gelu(layer(f"new {k}", jnp.concatenate([h, heard, back], axis=1)))
        h = h * there[:, None]
    return layer("out", h)[:, 0] * there


def _loss(weights: _Params, batch: _Batch) -> jax.Array:
    nodes, links, edges, there, labels, share = batch
    said = jax.vmap(partial(_tell, weights))(nodes, links, edges, there)
    off = (said - labels) * there
    each = (off**2).sum() / there.sum()
    whole = jnp.square((share * jnp.exp2(off) * there).sum(axis=1) - 1.0).mean()
    return each + 10.0 * whole


@partial(jax.jit, static_argnums=0)
def _step(update: Any, weights: Any, state: Any, batch: _Batch) -> tuple[Any, Any]:
    gradient = jax.grad(_loss)(weights, batch)
    change, state = update(gradient, state, weights)
    return optax.apply_updates(weights, change), state
