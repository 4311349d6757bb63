"""Recognises models that compute in integers already, and takes them in their own scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from tilewright.core.errors import UnknownName
from tilewright.core.files import Json
from tilewright.networks.normalise import normalise
from tilewright.networks.onnx_qoperator import to_qdq

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


@dataclass(frozen=True)
class Existing:
    """A quantised model in QDQ form, with the scales and zero points that it came with."""

    model: onnx.ModelProto
    keep_float: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """What a manifest says of it."""
        return {"method": "as the model has it", "kept_float": dict.fromkeys(self.keep_float, "")}


def as_it_is(
    model: onnx.ModelProto,
    keep_float: Collection[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Existing:
    """A quantised model in QDQ form. Operators of `keep_float` are left to the CPU, which computes
    them on dequantised numbers as the model does. Raises `UnknownName` for one that the model has
    not, and as `networks.normalise.normalise`."""
    normal = normalise(to_qdq(model), input_shapes or {})
    names = [node.name for node in normal.graph.node]
    for name in keep_float:
        if name not in names:
            raise UnknownName("layer", name, names)
    return Existing(normal.model, tuple(keep_float))
