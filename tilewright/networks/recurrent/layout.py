"""Transposes recurrent operators whose data begin with the batch, so that they begin with the
steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from tilewright.networks.recurrent.operators import (
    GATES,
    INITIAL_C,
    INITIAL_H,
    attributes_of,
    input_at,
)


def steps_first(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Give recurrent operators whose data begin with the batch (layout=1) the other form, between
    transpositions, in place; those transpositions. onnxruntime runs that form alone."""
    nodes: list[onnx.NodeProto] = []
    added: list[onnx.NodeProto] = []
    for position, node in enumerate(graph.node):
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        if node.op_type in GATES and attributes_of(node).get("layout"):
            name = node.name or f"{node.op_type}_{position}"
            for attribute in [a for a in node.attribute if a.name == "layout"]:
                node.attribute.remove(attribute)
            for place in (0, INITIAL_H, INITIAL_C):
                if given := input_at(node, place):
                    node.input[place] = f"{name}/{given}/steps_first"
                    before.append(_transposed(given, node.input[place], [1, 0, 2]))
            for place, result in enumerate(node.output):
                if result:
                    node.output[place] = f"{name}/{result}/steps_first"
                    order = [1, 0, 2] if place else [2, 0, 1, 3]
                    after.append(_transposed(node.output[place], result, order))
        nodes += [*before, node, *after]
        added += [*before, *after]
    if added:
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return added


def _transposed(source: str, result: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], name=f"{result}/transpose", perm=order)
