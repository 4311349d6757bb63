"""Prepares the reference that onnxruntime runs: a model in the types that are computed here."""

from __future__ import annotations

import onnx

from tilewright.networks.onnx_float16 import is_half, widen
from tilewright.networks.recurrent.layout import steps_first
from tilewright.networks.recurrent.operators import GATES


def reference_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float32, with the steps of sequences first; itself where it is so already."""
    recurrent = any(node.op_type in GATES for node in model.graph.node)
    if not recurrent and not is_half(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    widen(copy)
    steps_first(copy.graph)
    return copy
