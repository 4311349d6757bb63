"""Models that are quantised already: their scales, brought to the nearest powers of two."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from networks.graph import NormalGraph
from networks.normalise import normalise
from networks.quantise.channels import least_errors
from networks.quantise.exponents import along, covering, largest, least_error, quantised
from networks.quantise.fold import attribute
from networks.quantise.qoperator import to_qdq
from networks.quantise.readers import Readers
from targets.errors import UnknownName
from targets.files import Json

QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"
SUMS = frozenset(("Conv", "Gemm", "MatMul", "Add", "BatchNormalization"))
"""Operators whose results may be negative, and a relu behind which a quantiser leaves out."""


@dataclass(frozen=True)
class ScaleChange:
    """A tensor whose scale was no power of two, or whose zero point was not 0.

    `scale` and `zero_point` are what it had, `exponent` what it has now (of channels, the largest
    of each), and `ratio` the new step over the old one. `decibels` is, of weights, the power of
    their values over that of the change; None of activations, whose values nobody knows.
    """

    tensor: str
    scale: float
    zero_point: int
    exponent: int
    ratio: float
    decibels: float | None


@dataclass(frozen=True)
class Rescaled:
    """A quantised model with scales that are powers of two, and what had to change for it; `kept`
    says of tensors left as they were why."""

    model: onnx.ModelProto
    changes: tuple[ScaleChange, ...]
    kept: Mapping[str, str]

    def to_json(self) -> Json:
        """Changes and reasons as plain objects, lists, texts and numbers."""
        return {"changes": [asdict(change) for change in self.changes], "kept": dict(self.kept)}


def nearest_power_of_two(
    model: onnx.ModelProto,
    keep_float: Collection[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Rescaled:
    """The model in QDQ form with int8 tensors, power-of-two scales and zero points 0.

    An activation gets the power of two next to its scale (of an asymmetric one, to that of the
    int8 that reaches as far); weights are quantised anew, at the scale of least squared error, one
    for a whole tensor or one a channel as they had; biases follow. Weights of a product to whose
    sums another tensor is added get one scale in any case. Operators of `keep_float` compute with
    float weights and read their data before it is quantised. Raises `UnknownName` for one that the
    model has not, and as `networks.normalise.normalise`.
    """
    normal = normalise(to_qdq(model), input_shapes or {})
    names = [node.name for node in normal.graph.node]
    for name in keep_float:
        if name not in names:
            raise UnknownName("layer", name, names)
    rescaler = _Rescaler(normal)
    for name in keep_float:
        rescaler.make_float(name)
    rescaler.rescale()
    return Rescaled(rescaler.finished(), tuple(rescaler.changes.values()), rescaler.kept)


class _Rescaler:
    def __init__(self, normal: NormalGraph) -> None:
        self._normal = normal
        self._graph = normal.graph
        self._constants = {t.name: t for t in normal.graph.initializer}
        self._types = normal.types()
        self._inputs = {info.name for info in normal.graph.input}
        self._outputs = {info.name for info in normal.graph.output}
        self._made = {name: node for node in normal.graph.node for name in node.output}
        self._readers = Readers(normal.graph, self._made, self._constants)
        self.changes: dict[str, ScaleChange] = {}
        self.kept: dict[str, str] = {}

    def make_float(self, name: str) -> None:
        """Let an operator compute in float: constants dequantised, data before their rounding."""
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

    def rescale(self) -> None:
        """Give every QuantizeLinear and DequantizeLinear a power of two."""
        pairs = [n for n in self._graph.node if n.op_type in (QUANTISE, DEQUANTISE)]
        biases = []
        for node in pairs:
            values = self._values(node)
            if node.op_type == DEQUANTISE and self._types.get(node.input[0]) == _INT32:
                biases.append((node, values))
            elif values is not None:
                self._rescale_constant(node, values)
            else:
                self._rescale_activation(node)
        for node, values in biases:
            self._rescale_bias(node, values)

    def finished(self) -> onnx.ModelProto:
        """The model, without tensors that nobody reads."""
        read = {name for node in self._graph.node for name in node.input} | self._outputs
        dead = [node for node in self._graph.node if not read & set(node.output)]
        while dead:
            for node in dead:
                self._graph.node.remove(node)
            read = {name for node in self._graph.node for name in node.input} | self._outputs
            dead = [node for node in self._graph.node if not read & set(node.output)]
        left = [t for t in self._constants.values() if t.name in read]
        del self._graph.initializer[:], self._graph.value_info[:]
        self._graph.initializer.extend(left)
        return onnx.shape_inference.infer_shapes(self._normal.model)

    def _rescale_activation(self, node: onnx.NodeProto) -> None:
        integer = node.output[0] if node.op_type == QUANTISE else node.input[0]
        scale, zero, kind = self._scale(node), self._zero(node), self._types.get(integer)
        if kind not in (_INT8, _UINT8) or scale is None or zero is None or scale.size != 1:
            self.kept[integer] = "its scale is no constant, holds for a channel, or is not of int8"
            return
        if kind == _UINT8 and integer in self._inputs | self._outputs:
            self.kept[integer] = "it is an unsigned input or output of the network"
            return
        step, point = float(scale.ravel()[0]), int(zero.ravel()[0])
        low, high = (0, 255) if kind == _UINT8 else (-128, 127)
        reach = step
        if kind == _UINT8 or point:
            reach = step * max(abs(low - point), abs(high - point)) / 127
        exponent = round(math.log2(reach))
        if kind == _UINT8 or point or 2.0**exponent != step:
            self._note(integer, step, point, exponent, None)
        if node.op_type == QUANTISE and point == low:
            self._cut(node, step * (high - low), exponent)
        self._set(node, np.array([exponent]), np.int8)

    def _cut(self, node: onnx.NodeProto, high: float, exponent: int) -> None:
        """Cut a layer's output as its unsigned steps did: quantisers leave out the relu or the clip
        that saturation does anyway. Behind a relu, or where nothing is computed, that is needless.
        """
        maker = self._made.get(node.input[0])
        if maker is None or maker.op_type not in SUMS:
            return
        name = f"{node.input[0]}/cut"
        if math.ldexp(127, exponent) > high:
            low_name = self._constant("cut/0", np.float32(0))
            high_name = self._constant(f"cut/{high:.9g}", np.float32(high))
            inputs = [node.input[0], low_name, high_name]
            cut = helper.make_node("Clip", inputs, [name], name=name)
        else:
            cut = helper.make_node("Relu", [node.input[0]], [name], name=name)
        self._graph.node.insert(list(self._graph.node).index(node), cut)
        node.input[0] = name

    def _rescale_constant(self, node: onnx.NodeProto, values: NDArray[np.float64]) -> None:
        scale, zero = self._scale(node), self._zero(node)
        assert scale is not None
        assert zero is not None
        point, axis = int(np.abs(zero.astype(np.int64)).max()), self._readers.output_axis(node)
        mantissas, own = np.frexp(scale.astype(np.float64).ravel())
        own = own.astype(np.int64) - 1
        exact = (mantissas == 0.5).all() and not point and (scale.size == 1 or axis is not None)
        if not exact or self._types.get(node.input[0]) != _INT8:
            if scale.size > 1 and axis is not None:
                own = least_errors(np.moveaxis(values, axis, 0))
            else:
                own = np.array([least_error(values, covering(largest(values)))], np.int64)
            exponents = along(own, axis or 0, values.ndim)
            stored = quantised(values, exponents)
            noise = float(np.sum((np.ldexp(stored.astype(np.float64), exponents) - values) ** 2))
            power = float(np.sum(values**2))
            decibels = 10 * math.log10(power / noise) if power > 0 and noise > 0 else None
            self._note(node.input[0], float(scale.max()), point, int(own.max()), decibels)
            node.input[0] = self._constant(f"{node.input[0]}/rescaled", stored)
        self._set(node, own, np.int8, axis or 0)

    def _rescale_bias(self, node: onnx.NodeProto, values: NDArray[np.float64] | None) -> None:
        """In steps of the sums it is added to; a float constant where these are none of int8."""
        own = self._sums_exponents(node.output[0])
        if values is None:
            self.kept[node.input[0]] = "it is int32 and no constant"
        elif own is None or own.size not in (1, values.size):
            real = self._constant(f"{node.output[0]}/float", values.astype(np.float32))
            for reader in self._graph.node:
                for i, name in enumerate(reader.input):
                    reader.input[i] = real if name == node.output[0] else name
        else:
            axis = int(np.argmax(values.shape)) if values.ndim else 0  # all others are 1
            steps = np.rint(np.ldexp(values, -along(own, axis, values.ndim)))
            steps = np.clip(steps, -(2.0**31), 2.0**31 - 1).astype(np.int32)
            node.input[0] = self._constant(f"{node.output[0]}/rescaled", steps)
            self._set(node, own, np.int32, axis)

    def _sums_exponents(self, bias: str) -> NDArray[np.int64] | None:
        """The exponent of the products that a bias is added to, (1,), or that of each channel,
        (channels,); None where they have none."""
        reader = next((n for n in self._graph.node if bias in n.input), None)
        if reader is not None and reader.op_type == "Add":
            others = [self._made.get(name) for name in reader.input if name != bias]
            reader = next((node for node in others if node is not None), None)
        if reader is None or reader.op_type not in ("Conv", "Gemm", "MatMul"):
            return None
        sums = np.zeros(1, np.int64)
        for name in reader.input[:2]:
            source = self._made.get(name)
            scale = self._scale(source) if source is not None else None
            if source is None or source.op_type != DEQUANTISE or scale is None:
                return None
            mantissas, exponents = np.frexp(scale.astype(np.float64).ravel())
            if (mantissas != 0.5).any() or (scale.size > 1 and name != reader.input[1]):
                return None
            sums = sums + exponents - 1
        return sums

    def _values(self, node: onnx.NodeProto) -> NDArray[np.float64] | None:
        """The real values of a dequantised constant, in its shape; None where it is none."""
        scale, zero = self._scale(node), self._zero(node)
        tensor = self._constants.get(node.input[0])
        if node.op_type != DEQUANTISE or tensor is None or scale is None or zero is None:
            return None
        if attribute(node, "block_size", 0):
            return None
        integers = numpy_helper.to_array(tensor).astype(np.float64)
        axis, rank = int(str(attribute(node, "axis", 1))), integers.ndim
        zero, scale = (each.astype(np.float64) for each in (zero, scale))
        found: NDArray[np.float64] = (integers - along(zero, axis, rank)) * along(scale, axis, rank)
        return found

    def _scale(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        tensor = self._constants.get(node.input[1]) if len(node.input) > 1 else None
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _zero(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        if len(node.input) < 3 or not node.input[2]:
            return np.zeros((), np.int8)
        tensor = self._constants.get(node.input[2])
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _set(
        self, node: onnx.NodeProto, own: NDArray[np.int64], kind: type[np.generic], axis: int = 0
    ) -> None:
        """Give it the scale of an exponent, (1,), or of channels along an axis, (channels,)."""
        name, single = np.dtype(kind).name, own.size == 1
        if single:
            scale = self._constant(f"scale/2^{own[0]}", np.float32(2.0 ** own[0]))
            zero = self._constant(f"zero/{name}", np.zeros((), kind))
        else:
            scale = self._constant(f"{node.output[0]}/scales", np.ldexp(np.float32(1), own))
            zero = self._constant(f"zero/{name}/{own.size}", np.zeros(own.size, kind))
        del node.input[1:]
        node.input.extend([scale, zero])
        for old in [a for a in node.attribute if a.name in ("axis", "output_dtype")]:
            node.attribute.remove(old)
        if not single:
            node.attribute.append(helper.make_attribute("axis", axis))

    def _constant(self, name: str, values: NDArray[Any] | np.generic) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    def _note(
        self, tensor: str, scale: float, zero: int, exponent: int, decibels: float | None
    ) -> None:
        self.changes[tensor] = ScaleChange(
            tensor, scale, zero, exponent, 2.0**exponent / scale, decibels
        )


_INT8, _UINT8 = int(onnx.TensorProto.INT8), int(onnx.TensorProto.UINT8)
_INT32 = int(onnx.TensorProto.INT32)
