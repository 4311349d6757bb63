"""How large the built-in networks are, read off their graphs without weights and without TVM."""

from __future__ import annotations

import math
from dataclasses import dataclass

from networks.zoo import drawn


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
    macs = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            _, *taps = sizes[node.input[1]]  # output channels come first, Gemm's too
            macs += math.prod(net.shapes[node.output[0]]) * math.prod(taps)
        elif node.op_type == "MatMul":
            macs += math.prod(net.shapes[node.output[0]]) * net.shapes[node.input[0]][-1]
    return NetworkFacts(
        name, net.shapes[net.input], len(model.graph.node), macs, sum(map(math.prod, learned))
    )
