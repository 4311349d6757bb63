"""Counts the operators, multiply-accumulates and parameters of built-in networks.

The counts come from the graphs, without weights and without TVM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.networks.macs import Operands, count
from tilewright.networks.zoo import build_with_builder


@dataclass(frozen=True)
class NetworkFacts:
    """Size of a network.

    Attributes:
        name: name of the network.
        input_shape: shape of the input: (batch, channels, height, width) for images, and (batch,
            tokens) for text.
        operators: number of operators.
        macs: multiply-accumulates of one inference.
        parameters: number of weights and biases.
    """

    name: str
    input_shape: tuple[int, ...]
    operators: int
    macs: int
    parameters: int


def facts(name: str) -> NetworkFacts:
    """Return the size of a built-in network.

    Args:
        name: name of the network.

    Returns:
        The size.

    Raises:
        UnknownName: there is no network with this name.
    """
    net, model = build_with_builder(name, weights=False)
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    learned = [size for tensor, size in sizes.items() if tensor.endswith((".weight", ".bias"))]
    shapes = {**sizes, **net.shapes}
    macs = sum(
        count(node.op_type, Operands(list(map(shapes.get, node.input)), shapes[node.output[0]]))
        for node in model.graph.node
    )
    return NetworkFacts(
        name, net.shapes[net.input], len(model.graph.node), macs, sum(map(math.prod, learned))
    )
