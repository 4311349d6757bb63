"""Simplify an ONNX graph: sums, powers, scalars, empty inputs and unread outputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from tilewright.networks.onnx.files import is_stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph
from tilewright.networks.onnx.opset import opset_of


def as_additions(normal: NormalGraph) -> None:
    """Replace each Sum by Add operators, in place.

    A Sum of n tensors becomes a chain of n − 1 Adds, and a Sum of one tensor an Identity. The last
    operator keeps the name of the Sum.
    """
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
    total, *addends = node.input
    for index, addend in enumerate(addends[:-1], 1):
        name = f"{node.name}/{index}"
        before.append(helper.make_node("Add", [total, addend], [name], name=name))
        normal.add_operator(before[-1])
        total = name
    del node.input[:]
    node.input.extend([total, addends[-1]])
    node.op_type = "Add"
    return [*before, node]


FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Floating-point element types of ONNX."""
MAX_EXPONENT = 16
"""Largest exponent of an integer power that is replaced by multiplications. Repeated squaring needs
at most six multiplications for it. Larger powers of most integers would exceed 64 bits."""


def simplify_powers(normal: NormalGraph) -> None:
    """Replace each Pow that has a simpler form, in place.

    A Pow of integers with a small constant exponent becomes multiplications. In a Pow of floats,
    the exponent is cast to the type of the base.
    """
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
            # A constant exponent is cast here, so that it stays a constant.
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
    """Return a constant exponent as an int, or None if it is not a whole number from 1 to 16.

    Args:
        tensor: the exponent, None if it is not a constant.
        rank: number of dimensions of the base. An exponent with more dimensions would change the
            shape of the result, so that None is returned.
    """
    if tensor is None or is_stub(tensor):
        return None
    values = numpy_helper.to_array(tensor)
    if values.size != 1 or values.ndim > rank:
        return None
    value = values.item()
    return int(value) if 1 <= value <= MAX_EXPONENT and value == int(value) else None


def _products(normal: NormalGraph, node: onnx.NodeProto, exponent: int) -> list[onnx.NodeProto]:
    """Return the multiplications that compute an integer power by repeated squaring.

    Args:
        normal: the graph.
        node: the Pow operator.
        exponent: the exponent, from 1 to 16.
    """
    data, result = node.input[0], node.output[0]
    multiplications: list[onnx.NodeProto] = []

    def multiply(left: str, right: str) -> str:
        product = f"{result}/product{len(multiplications)}"
        multiplications.append(
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
    if not multiplications:
        multiplications.append(helper.make_node("Identity", [data], [result], name=node.name))
    else:
        multiplications[-1].output[0], multiplications[-1].name = result, node.name
    for multiplication in multiplications[:-1]:
        normal.add_operator(multiplication)
    return multiplications


SCALARS: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2), "CumSum": (1,), "DequantizeLinear": (1, 2), "Dropout": (1, 2), "If": (0,),
    "Loop": (0, 1), "NonMaxSuppression": (2, 3, 4), "OneHot": (1,), "Pad": (2,),
    "QuantizeLinear": (1, 2), "Range": (0, 1, 2), "SequenceAt": (1,), "SequenceErase": (1,),
    "SequenceInsert": (2,), "Trilu": (1,),
}  # fmt: skip
"""Indices of the inputs that are scalars according to the ONNX standard, by operator. For
quantisation operators, they are the scale and the zero point of a whole tensor."""
BLOCKED = "block_size"
"""Attribute of quantisation operators with one scale per block of elements. The scales then have as
many dimensions as the data."""


def make_scalars(normal: NormalGraph) -> None:
    """Convert one-element inputs to scalars where the ONNX standard asks for a scalar, in place.

    A scalar copy is made of a constant. A Reshape is inserted after a computed tensor.
    """
    shapes, tensors = normal.shapes(), normal.tensors()
    scalars: dict[str, str] = {}
    nodes = []
    for node in normal.graph.node:
        indices = SCALARS.get(node.op_type, ()) if node.domain in STANDARD_DOMAINS else ()
        if any(attribute.name == BLOCKED and attribute.i for attribute in node.attribute):
            indices = ()
        for index in indices:
            name = node.input[index] if index < len(node.input) else ""
            shape = shapes.get(name)
            if not name or not shape or set(shape) != {1}:
                continue
            if name not in scalars:
                scalars[name] = f"{name}/scalar"
                if name in tensors:
                    scalar = onnx.TensorProto()
                    scalar.CopyFrom(tensors[name])
                    scalar.name = scalars[name]
                    del scalar.dims[:]
                    normal.add_tensor(scalar)
                else:
                    nodes.append(_reshape(normal, name, scalars[name], node.name))
            node.input[index] = scalars[name]
        nodes.append(node)
    normal.replace_nodes(nodes)


def _reshape(normal: NormalGraph, name: str, scalar: str, reader: str) -> onnx.NodeProto:
    empty = f"{scalar}/shape"
    normal.add_tensor(helper.make_tensor(empty, onnx.TensorProto.INT64, [0], []))
    node = helper.make_node("Reshape", [name, empty], [scalar], name=f"{reader}/{scalar}")
    normal.add_operator(node)
    return node


def drop_empty_parts(normal: NormalGraph) -> None:
    """Remove inputs of Concat that have length 0 along its axis, in place.

    If one input remains, the Concat becomes an Identity.
    """
    shapes = normal.shapes()
    for node in normal.graph.node:
        if node.op_type != "Concat" or node.domain not in STANDARD_DOMAINS:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        nonempty = [
            name for name in node.input
            if not (shape := shapes.get(name)) or shape[axis % len(shape)]
        ]  # fmt: skip
        if not nonempty or len(nonempty) == len(node.input):
            continue
        del node.input[:]
        node.input.extend(nonempty)
        if len(nonempty) == 1:
            node.op_type = "Identity"
            del node.attribute[:]


OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
"""Value with which an ONNX schema marks an output as optional."""
COUNTED = ("BatchNormalization",)
"""Operators whose meaning depends on the number of their outputs. A BatchNormalization with more
than one output is in training mode."""


def drop_unread_outputs(normal: NormalGraph) -> None:
    """Remove trailing optional outputs that no operator reads, in place."""
    graph = normal.graph
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        return  # an inner graph may read any tensor by name
    read = frozenset(normal.users())
    version = opset_of(normal.model)
    for node in graph.node:
        applicable = node.domain in STANDARD_DOMAINS and node.op_type not in COUNTED
        if not applicable or len(node.output) < 2:
            continue
        try:
            outputs = defs.get_schema(node.op_type, version, "").outputs
        except defs.SchemaError:
            continue
        while len(node.output) > 1:
            formal = outputs[min(len(node.output), len(outputs)) - 1]
            if formal.option != OPTIONAL or node.output[-1] in read:
                break
            del node.output[-1]
