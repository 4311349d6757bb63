"""Drops tensors without elements from concatenations.

`torch.zeros(n, 0, c)` leaves such a tensor behind; a library cannot store one.
"""

from __future__ import annotations

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph


def drop_empty_parts(normal: NormalGraph) -> None:
    """Remove the inputs of Concat whose length along its axis is 0, in place. A Concat of the one
    tensor that is left is an Identity."""
    shapes = normal.shapes()
    for node in normal.graph.node:
        if node.op_type != "Concat" or node.domain not in STANDARD_DOMAINS:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        full = [
            name for name in node.input
            if not (shape := shapes.get(name)) or shape[axis % len(shape)]
        ]  # fmt: skip
        if not full or len(full) == len(node.input):
            continue
        del node.input[:]
        node.input.extend(full)
        if len(full) == 1:
            node.op_type = "Identity"
            del node.attribute[:]
