"""Counts how large the built-in networks are, read off their graphs without weights and without
TVM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.networks.macs import Operands, count
from tilewright.networks.zoo import drawn


@dataclass(frozen=True)
class NetworkFacts:
    """A network in figures: its input, (batch, channels, height, width) of images or (batch,
    tokens), operators, their multiply-accumulates in one inference, and learned numbers."""

    name: str
    input_shape: tuple[int, ...]
    operators: int
    macs: int
    parameters: int


def facts(name: str) -> NetworkFacts:
    """Of a built-in network. Raises `UnknownName`."""
    net, model = drawn(name, weights=False)
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    learned = [size for each, size in sizes.items() if each.endswith((".weight", ".bias"))]
    shapes = {**sizes, **net.shapes}
    macs = sum(
        count(node.op_type, Operands(list(map(shapes.get, node.input)), shapes[node.output[0]]))
        for node in model.graph.node
    )
    return NetworkFacts(
        name, net.shapes[net.input], len(model.graph.node), macs, sum(map(math.prod, learned))
    )
