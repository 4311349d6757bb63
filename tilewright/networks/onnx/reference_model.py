"""Prepare the reference model that onnxruntime runs, with half precision converted to float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.networks.onnx.files import all_tensors, is_stub
from tilewright.networks.onnx.recurrent_operators import GATES, steps_first
from tilewright.networks.onnx.same_padding import has_dilated_same, make_dilated_same_explicit

INTEGER_PRODUCTS = ("MatMulInteger", "ConvInteger")
"""Operators that multiply integers. Their int8 weights are converted to uint8."""


def reference_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a version of a model that onnxruntime can run and that serves as the reference.

    - Half precision becomes float32.
    - Batch-first recurrent operators become step-first.
    - int8 weights of integer products become uint8, so that their sums do not saturate.
    - Dilated windows get explicit padding.

    A model that needs none of these changes is returned itself.
    """
    operators = {node.op_type for node in model.graph.node}
    plain = operators.isdisjoint((*GATES, *INTEGER_PRODUCTS)) and not is_half(model)
    if plain and not has_dilated_same(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    widen(copy)
    steps_first(copy.graph)
    _as_uint8(copy.graph)
    make_dilated_same_explicit(copy)
    return copy


def _as_uint8(graph: onnx.GraphProto) -> None:
    """Convert int8 weights of integer products and their zero points to uint8, in place.

    Both forms represent the same real numbers. On a CPU without VNNI, onnxruntime adds products of
    uint8 and int8 in 16 bits, which saturates.
    """
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        weight = tensors.get(node.input[1]) if node.op_type in INTEGER_PRODUCTS else None
        zero = tensors.get(node.input[3]) if len(node.input) > 3 and node.input[3] else None
        computed = len(node.input) > 3 and node.input[3] and zero is None
        if weight is None or weight.data_type != TensorProto.INT8 or is_stub(weight) or computed:
            continue
        zeros = np.int8(0) if zero is None else numpy_helper.to_array(zero)
        inputs = [node.input[0], "", node.input[2] if len(node.input) > 2 else "", ""]
        for index, values in ((1, numpy_helper.to_array(weight)), (3, zeros)):
            inputs[index] = f"{node.output[0]}/uint8/{index}"
            moved = (np.asarray(values, np.int16) + 128).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(moved, inputs[index]))
        del node.input[:]
        node.input.extend(inputs)


HALVES = (int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16))
"""Half-precision element types of ONNX."""
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")
"""Names of attributes whose value is an element type."""


def is_half(model: onnx.ModelProto) -> bool:
    """Return whether a model contains or creates tensors in half precision."""
    return (
        any(tensor.data_type in HALVES for tensor in all_tensors(model))
        or any(kind.elem_type in HALVES for kind in _types(model.graph))
        or any(_is_half_type(a) for node in _nodes(model.graph) for a in node.attribute)
    )


def half_outputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of a model's float16 outputs."""
    return tuple(
        info.name
        for info in model.graph.output
        if info.type.tensor_type.elem_type == TensorProto.FLOAT16
    )


def has_bfloat16_ends(model: onnx.ModelProto) -> bool:
    """Return whether an input or output of a model is bfloat16."""
    ends = (*model.graph.input, *model.graph.output)
    return any(info.type.tensor_type.elem_type == TensorProto.BFLOAT16 for info in ends)


def widen(model: onnx.ModelProto) -> None:
    """Convert all half-precision tensors of a model to float32, in place.

    This includes weights, inputs, outputs, and the target types of casts.
    """
    for tensor in all_tensors(model):
        if tensor.data_type in HALVES:
            _widen_tensor(tensor)
    for kind in _types(model.graph):
        if kind.elem_type in HALVES:
            kind.elem_type = TensorProto.FLOAT
    for node in _nodes(model.graph):
        for attribute in node.attribute:
            if _is_half_type(attribute):
                attribute.i = TensorProto.FLOAT


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if is_stub(tensor):
        tensor.data_type = TensorProto.FLOAT
        return
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _is_half_type(attribute: onnx.AttributeProto) -> bool:
    return attribute.name in TYPE_ATTRIBUTES and attribute.i in HALVES


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.input or inner.output:
                    yield from _graphs(inner)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for nested in _graphs(graph):
        yield from nested.node


def _types(graph: onnx.GraphProto) -> Iterator[onnx.TypeProto.Tensor]:
    for nested in _graphs(graph):
        for info in (*nested.input, *nested.output, *nested.value_info):
            kind = info.type
            while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
                sequence = kind.HasField("sequence_type")
                kind = (kind.sequence_type if sequence else kind.optional_type).elem_type
            if kind.HasField("tensor_type"):
                yield kind.tensor_type
