"""Strips a model of its weights' data.

What to tune follows from shapes. So weights of convolutions and products lose their data before any
other step: the cost of inspecting a model depends on its graph alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import onnx
from onnx import helper

from tilewright.networks.onnx.files import is_stub, stub

# operator → the inputs that are weights and biases
WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
    "ConvInteger": (1,),
    "MatMulInteger": (1,),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (3,),
    "QGemm": (3, 6),
    "LSTM": (1, 2),
    "GRU": (1, 2),
    "RNN": (1, 2),
}


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which weights of convolutions and products are stubs, quantised ones included."""
    names = _weight_names(model.graph)
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    source, graph = model.graph, copy.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    for tensor in source.initializer:
        weight = tensor.name in names
        graph.initializer.append(
            stub(tensor.name, tensor.dims, tensor.data_type) if weight else tensor
        )
    return copy


def _weight_names(graph: onnx.GraphProto) -> set[str]:
    """Tensors read as weights only, directly or through DequantizeLinear."""
    through = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    found: set[str] = set()
    other: set[str] = {output.name for output in graph.output}
    for node in graph.node:
        roles = (0,) if node.op_type == "DequantizeLinear" else WEIGHTS.get(node.op_type, ())
        for i, name in enumerate(node.input):
            (found if i in roles else other).add(name)
    read_as_data = {through[name] for name in other if name in through}
    return found - other - read_as_data


def weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which tensors without data are inputs of the graph, a valid model of its own."""
    copy = deepcopy(model)
    tensors = list(copy.graph.initializer)
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(tensor for tensor in tensors if not is_stub(tensor))
    named = {info.name for info in copy.graph.input}  # IR version 3 lists weights there, too
    copy.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in tensors
        if is_stub(t) and t.name not in named
    )
    return copy
