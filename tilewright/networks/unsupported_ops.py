"""Rejects what the importer would read and compute wrongly: with a reason, before it is tried.

Each rule was found by comparing TVM's importer with the tensors that the `onnx` package ships for
its operators (`python -m benchmarks.coverage.model_files`). A rule returns the reason, or "".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.onnx_file import COMPUTABLE, is_stub
from tilewright.networks.recurrent.operators import obstacle

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)
NEXT_STEP = "export the model without this, or cut the operator off"
DEPENDS = "the shape of its result depends on values, so it is only known when the model runs"
CUT = "cut the model before it and do the rest where the results are used"


@dataclass(frozen=True)
class Use:
    """An operator as its graph uses it: element types by tensor name, the tensors that are constant
    and those that somebody reads."""

    node: onnx.NodeProto
    types: Mapping[str, int]
    constants: Mapping[str, onnx.TensorProto]
    read: Collection[str]
    shapes: Mapping[str, Shape]

    def attribute(self, name: str, default: int | str) -> int | str:
        """A number or text."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else int(value)
        return default

    def type_of(self, place: int) -> int:
        """Of an input; 0 where it is not known."""
        return self.types.get(self.node.input[place], 0) if place < len(self.node.input) else 0

    def reads_output(self, place: int) -> bool:
        """Whether somebody reads this output."""
        return place < len(self.node.output) and self.node.output[place] in self.read

    def is_negative(self, place: int) -> bool:
        """Whether an input is a constant below zero."""
        tensor = (
            self.constants.get(self.node.input[place]) if place < len(self.node.input) else None
        )
        small = tensor is not None and not is_stub(tensor)
        return small and bool((numpy_helper.to_array(tensor) < 0).any())

    def computed(self, *places: int) -> list[int]:
        """Those of these inputs that are there and not constant."""
        inputs = self.node.input
        given = [p for p in places if p < len(inputs) and inputs[p]]
        return [p for p in given if inputs[p] not in self.constants]


def limits(normal: NormalGraph) -> dict[str, tuple[str, str]]:
    """The operators that would be computed wrongly: by name the reason and the next step."""
    types = normal.types()
    constants, shapes = normal.tensors(), normal.shapes()
    read = frozenset(normal.users())
    found = {}
    for node in normal.graph.node:
        if reason := _reason(Use(node, types, constants, read, shapes)):
            step = CUT if reason == DEPENDS else NEXT_STEP
            found[node.name] = (f"{node.op_type}: {reason}", step)
    return found


def _reason(use: Use) -> str:
    for name in (*use.node.input, *use.node.output):
        if (kind := use.types.get(name)) is not None and kind not in COMPUTABLE:
            return (
                f"'{name}' holds {TensorProto.DataType.Name(kind)}, which cannot be computed here"
            )
    rule = RULES.get(use.node.op_type) if use.node.domain in STANDARD_DOMAINS else None
    return rule(use) if rule else ""


def _dropout(use: Use) -> str:
    if len(use.node.input) > 2 and use.node.input[2]:
        return "its input training_mode is for training, not for inference"
    return "its second output, the mask, is for training" * use.reads_output(1)


def _infinite(use: Use) -> str:
    one_sided = not (use.attribute("detect_negative", 1) and use.attribute("detect_positive", 1))
    return "detect_negative=0 and detect_positive=0 are not known" * one_sided


def _norm(use: Use) -> str:
    extra = use.reads_output(1) or use.reads_output(2)
    return "its outputs Mean and InvStdDev are not computed, only Y is" * extra


def _modulo(use: Use) -> str:
    wrong = use.type_of(0) in FLOATS and not use.attribute("fmod", 0)
    return "fmod=0 with floats is wrong at infinities and signed zeros" * wrong


RULES: Mapping[str, Callable[[Use], str]] = {
    **dict.fromkeys(("Compress", "NonMaxSuppression", "NonZero", "Unique"), lambda _: DEPENDS),
    **dict.fromkeys(
        ("GRU", "LSTM", "RNN"), lambda use: obstacle(use.node, use.shapes, use.constants)
    ),
    "BatchNormalization": lambda use: (
        "training_mode=1 is for training, not for inference"
        * bool(use.attribute("training_mode", 0))
    ),
    "BitShift": lambda use: (
        "shifts of signed integers are not computed as the standard says"
        * (use.type_of(0) in SIGNED)
    ),
    "Dropout": _dropout,
    "Expand": lambda use: "its shape must be constant, here it is computed" * bool(use.computed(1)),
    "IsInf": _infinite,
    "LayerNormalization": _norm,
    "Mod": _modulo,
    "RoiAlign": lambda use: "mode=max is not known" * (use.attribute("mode", "avg") == "max"),
    "SequenceInsert": lambda use: (
        "a position counted from the end is not known" * use.is_negative(2)
    ),
    "SpaceToDepth": lambda use: "mode=CRD is not known" * (use.attribute("mode", "DCR") == "CRD"),
}
