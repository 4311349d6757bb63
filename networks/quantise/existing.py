"""Whether a model computes in integers already."""

from __future__ import annotations

import onnx

INTEGER_OPERATORS = frozenset((
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger",
    "QLinearConv", "QLinearMatMul", "QGemm",
))  # fmt: skip


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a model is in QDQ or in QOperator form, in part at least."""
    return any(
        node.op_type in INTEGER_OPERATORS or node.op_type.startswith("QLinear")
        for node in model.graph.node
    )
