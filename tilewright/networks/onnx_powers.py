"""Writes powers in the forms that are compiled: operands of one type, or products of integers.

The standard lets the exponent have a type of its own since opset 12. TVM's importer wants one type,
and its `power` does not compile for integers.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph
from tilewright.networks.onnx_file import is_stub

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
MAX_EXPONENT = 16
"""Larger powers of integers leave 64 bits for most numbers; four multiplications at most."""


def simplify_powers(normal: NormalGraph) -> None:
    """Rewrite every Pow that has a simpler form, in place. It keeps its name."""
    types, tensors, shapes = normal.types(), normal.tensors(), normal.shapes()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        if node.op_type != "Pow" or node.domain not in STANDARD_DOMAINS:
            nodes.append(node)
            continue
        base, exponent = (types.get(name, 0) for name in node.input)
        whole = _whole_exponent(tensors.get(node.input[1]), len(shapes.get(node.input[0], ())))
        result = node.output[0]
        if base and base not in FLOATS and whole is not None:
            nodes += _products(normal, node, whole)
        elif base in FLOATS and exponent and exponent != base:
            name = f"{result}/exponent"
            cast = helper.make_node(
                "Cast", [node.input[1]], [name], name=f"{node.name}/exponent", to=base
            )
            node.input[1] = name
            if (known := tensors.get(cast.input[0])) is not None and not is_stub(known):
                dtype = helper.tensor_dtype_to_np_dtype(base)
                normal.add_tensor(
                    numpy_helper.from_array(numpy_helper.to_array(known).astype(dtype), name)
                )
            else:
                normal.add_operator(cast)
                nodes.append(cast)
            nodes.append(node)
        else:
            nodes.append(node)
    normal.replace_nodes(nodes)


def _whole_exponent(tensor: onnx.TensorProto | None, rank: int) -> int | None:
    """Return a constant exponent of data of that rank, one small positive whole number for all."""
    if tensor is None or is_stub(tensor):
        return None
    values = numpy_helper.to_array(tensor)
    if values.size != 1 or values.ndim > rank:
        return None
    value = values.item()
    return int(value) if 1 <= value <= MAX_EXPONENT and value == int(value) else None


def _products(normal: NormalGraph, node: onnx.NodeProto, exponent: int) -> list[onnx.NodeProto]:
    """Return the multiplications that a power is, by repeated squaring."""
    data, result = node.input[0], node.output[0]
    made: list[onnx.NodeProto] = []

    def multiply(left: str, right: str) -> str:
        product = f"{result}/product{len(made)}"
        made.append(
            helper.make_node("Mul", [left, right], [product], name=f"{node.name}/{product}")
        )
        return product

    power, square = "", data
    while exponent:
        if exponent & 1:
            power = multiply(power, square) if power else square
        exponent >>= 1
        if exponent:
            square = multiply(square, square)
    if not made:
        made.append(helper.make_node("Identity", [data], [result], name=node.name))
    else:
        made[-1].output[0], made[-1].name = result, node.name
    for each in made[:-1]:
        normal.add_operator(each)
    return made
