"""Counts the multiply-accumulates of the operators of an ONNX graph."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.networks.graph import NormalGraph
from tilewright.networks.macs import Operands, count
from tilewright.networks.recurrent.operators import GATES


def graph_macs(normal: NormalGraph, names: Collection[str]) -> dict[str, int]:
    """Return the multiply-accumulates of operators of a graph, for those that do any."""
    shapes = normal.shapes()
    found = {}
    for node in normal.graph.node:
        known = node.output[0] in shapes or node.op_type in GATES
        if node.name not in names or not known:
            continue
        operator = node.op_type
        if operator == "Attention":
            operator = f"{node.domain or 'ai.onnx'}.{operator}"
        equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
        operands = Operands(
            [shapes.get(name) for name in node.input], shapes.get(node.output[0], ()), equation
        )
        found[node.name] = count(operator, operands)
    return {name: macs for name, macs in found.items() if macs}
