"""Writes sums of several tensors as additions, which are fused with the layers before them.

TVM's importer stacks what a Sum adds, which fuses with nothing.
"""

from __future__ import annotations

import onnx
from onnx import helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph


def as_additions(normal: NormalGraph) -> None:
    """A Sum of two tensors becomes an Add, one of more a chain of them, one of one an Identity. It
    keeps its name."""
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        if node.op_type == "Sum" and node.domain in STANDARD_DOMAINS and not node.attribute:
            nodes += _additions(normal, node)
        else:
            nodes.append(node)
    normal.replace_nodes(nodes)


def _additions(normal: NormalGraph, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    if len(node.input) == 1:
        node.op_type = "Identity"
        return [node]
    before = []
    total, *others = node.input
    for place, other in enumerate(others[:-1], 1):
        name = f"{node.name}/{place}"
        before.append(helper.make_node("Add", [total, other], [name], name=name))
        normal.add_operator(before[-1])
        total = name
    del node.input[:]
    node.input.extend([total, others[-1]])
    node.op_type = "Add"
    return [*before, node]
