"""Prepares the reference that onnxruntime runs: a model in the types that are computed here."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.networks.onnx_file import is_stub
from tilewright.networks.onnx_float16 import is_half, widen
from tilewright.networks.onnx_same_padding import has_dilated_same, make_dilated_same_explicit
from tilewright.networks.recurrent.layout import steps_first
from tilewright.networks.recurrent.operators import GATES

INTEGER_PRODUCTS = ("MatMulInteger", "ConvInteger")


def reference_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float32, with the steps of sequences first, sums of products of int8 that do
    not saturate, and explicit padding of dilated windows; itself where it is so already."""
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
    """int8 weights of products and their zero points as uint8, which stand for the same integers.
    Without VNNI, onnxruntime adds uint8 times int8 to sums of 16 bits, which saturate."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        weight = tensors.get(node.input[1]) if node.op_type in INTEGER_PRODUCTS else None
        zero = tensors.get(node.input[3]) if len(node.input) > 3 and node.input[3] else None
        computed = len(node.input) > 3 and node.input[3] and zero is None
        if weight is None or weight.data_type != TensorProto.INT8 or is_stub(weight) or computed:
            continue
        zeros = np.int8(0) if zero is None else numpy_helper.to_array(zero)
        inputs = [node.input[0], "", node.input[2] if len(node.input) > 2 else "", ""]
        for place, values in ((1, numpy_helper.to_array(weight)), (3, zeros)):
            inputs[place] = f"{node.output[0]}/uint8/{place}"
            moved = (np.asarray(values, np.int16) + 128).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(moved, inputs[place]))
        del node.input[:]
        node.input.extend(inputs)
