"""Converts one-element vectors to scalars where an operator wants scalars.

Runtimes accept files that have vectors there.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph

SCALARS: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2), "CumSum": (1,), "DequantizeLinear": (1, 2), "Dropout": (1, 2), "If": (0,),
    "Loop": (0, 1), "NonMaxSuppression": (2, 3, 4), "OneHot": (1,), "Pad": (2,),
    "QuantizeLinear": (1, 2), "Range": (0, 1, 2), "SequenceAt": (1,), "SequenceErase": (1,),
    "SequenceInsert": (2,), "Trilu": (1,),
}  # fmt: skip
"""The inputs that the standard calls scalars; of quantisation those that are one number for the
whole tensor, as each vector of one number is."""
BLOCKED = "block_size"
"""The attribute of quantisation in blocks, whose scales keep the rank of the data."""


def make_scalars(normal: NormalGraph) -> None:
    """Constants of one element become scalars where an operator wants one; what is computed goes
    through a Reshape."""
    shapes, tensors = normal.shapes(), normal.tensors()
    known: dict[str, str] = {}
    nodes = []
    for node in normal.graph.node:
        places = SCALARS.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()
        if any(attribute.name == BLOCKED and attribute.i for attribute in node.attribute):
            places = ()
        for place in places:
            name = node.input[place] if place < len(node.input) else ""
            shape = shapes.get(name)
            if not name or not shape or set(shape) != {1}:
                continue
            if name not in known:
                known[name] = f"{name}/scalar"
                if name in tensors:
                    scalar = onnx.TensorProto()
                    scalar.CopyFrom(tensors[name])
                    scalar.name = known[name]
                    del scalar.dims[:]
                    normal.add_tensor(scalar)
                else:
                    nodes.append(_reshape(normal, name, known[name], node.name))
            node.input[place] = known[name]
        nodes.append(node)
    normal.replace_nodes(nodes)


def _reshape(normal: NormalGraph, name: str, scalar: str, reader: str) -> onnx.NodeProto:
    empty = f"{scalar}/shape"
    normal.add_tensor(helper.make_tensor(empty, onnx.TensorProto.INT64, [0], []))
    node = helper.make_node("Reshape", [name, empty], [scalar], name=f"{reader}/{scalar}")
    normal.add_operator(node)
    return node
