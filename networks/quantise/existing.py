"""Models that compute in integers already: taken in the scales that they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from networks.graph import NormalGraph
from networks.normalise import normalise
from networks.quantise.exponents import along
from networks.quantise.fold import attribute
from networks.quantise.qoperator import to_qdq
from targets.errors import UnknownName
from targets.files import Json

INTEGER_OPERATORS = frozenset((
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger",
    "QLinearConv", "QLinearMatMul", "QGemm",
))  # fmt: skip
QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"


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
    """A quantised model in QDQ form. Operators of `keep_float` compute with float weights and read
    their data before it is quantised. Raises `UnknownName` for one that the model has not, and as
    `networks.normalise.normalise`."""
    normal = normalise(to_qdq(model), input_shapes or {})
    names = [node.name for node in normal.graph.node]
    for name in keep_float:
        if name not in names:
            raise UnknownName("layer", name, names)
    if keep_float:
        floats = _Floats(normal)
        for name in keep_float:
            floats.make_float(name)
        floats.finish()
    return Existing(normal.model, tuple(keep_float))


class _Floats:
    """Lets operators of a QDQ graph compute in float."""

    def __init__(self, normal: NormalGraph) -> None:
        self._graph = normal.graph
        self._constants = {t.name: t for t in normal.graph.initializer}
        self._made = {name: node for node in normal.graph.node for name in node.output}

    def make_float(self, name: str) -> None:
        """Dequantise an operator's constants, and let it read data before their rounding."""
        node = next(node for node in self._graph.node if node.name == name)
        for i, tensor in enumerate(node.input):
            source = self._made.get(tensor)
            if source is None or source.op_type != DEQUANTISE:
                continue
            values = self._values(source)
            before = self._made.get(source.input[0])
            if values is not None:
                node.input[i] = self._constant(f"{tensor}/float", values.astype(np.float32))
            elif before is not None and before.op_type == QUANTISE:
                node.input[i] = before.input[0]

    def finish(self) -> None:
        """Remove operators and constants that nothing reads any more."""
        outputs = {info.name for info in self._graph.output}
        while True:
            read = {name for node in self._graph.node for name in node.input} | outputs
            dead = [node for node in self._graph.node if not read & set(node.output)]
            if not dead:
                break
            for node in dead:
                self._graph.node.remove(node)
        left = [tensor for tensor in self._constants.values() if tensor.name in read]
        del self._graph.initializer[:]
        self._graph.initializer.extend(left)

    def _values(self, node: onnx.NodeProto) -> NDArray[np.float64] | None:
        """The real values of a dequantised constant, in its shape; None where it is none."""
        scale, tensor = self._constants.get(node.input[1]), self._constants.get(node.input[0])
        zero = self._zero(node)
        if tensor is None or scale is None or zero is None or attribute(node, "block_size", 0):
            return None
        integers = numpy_helper.to_array(tensor).astype(np.float64)
        axis, rank = int(str(attribute(node, "axis", 1))), integers.ndim
        steps = numpy_helper.to_array(scale).astype(np.float64)
        found: NDArray[np.float64] = (integers - along(zero, axis, rank)) * along(steps, axis, rank)
        return found

    def _zero(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        if len(node.input) < 3 or not node.input[2]:
            return np.zeros(())
        tensor = self._constants.get(node.input[2])
        return None if tensor is None else numpy_helper.to_array(tensor).astype(np.float64)

    def _constant(self, name: str, values: NDArray[Any]) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(values, name)
        return name
