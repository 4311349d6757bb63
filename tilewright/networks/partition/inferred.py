"""Completes shapes that ONNX does not infer, as of operators of onnxruntime's own domain."""

from __future__ import annotations

import onnx
from onnx import helper

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.graph import NormalGraph
from tilewright.networks.onnxruntime_options import failures, quiet_options
from tilewright.networks.strip_weights import weights_as_inputs

onnxruntime = lazy_module("onnxruntime")


def complete_shapes(normal: NormalGraph) -> bool:
    """Let onnxruntime infer the shapes and types that are missing in a graph, in place. What it
    does not know either is only known when the model runs. Return whether onnxruntime takes the
    graph."""
    shapes, types = normal.shapes(), normal.types()
    missing = [
        name
        for node in normal.graph.node
        for name in node.output
        if name and (name not in shapes or name not in types)
    ]
    if not missing:
        return True
    exposed = weights_as_inputs(normal.model)
    own = {info.name for info in exposed.graph.output}
    exposed.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in missing if name not in own
    )
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except failures():  # it names the reason when it gets the whole model
        return False
    known = {info.name: info for info in (*normal.graph.value_info, *normal.graph.output)}
    for output in session.get_outputs():
        if output.name not in missing or not output.type.startswith("tensor("):
            continue
        kind = _element_type(output.type.removeprefix("tensor(").removesuffix(")"))
        info = helper.make_tensor_value_info(output.name, kind, list(output.shape))
        if output.name in known:
            known[output.name].CopyFrom(info)
        else:
            normal.graph.value_info.append(info)
    return True


def _element_type(text: str) -> int:
    """Return the ONNX type that onnxruntime calls `text`."""
    names = {"float": "FLOAT", "double": "DOUBLE", "bool": "BOOL", "string": "STRING"}
    return int(onnx.TensorProto.DataType.Value(names.get(text, text.upper())))
