"""Rewrites dynamically quantised products as products of dequantised tensors.

DynamicQuantizeLinear gives integers q, their scale s and their zero point z. With constant
weights w, their scales sw and zero points wz, onnxruntime's `quantize_dynamic` writes

    Mul (Cast (MatMulInteger (q, w, z, wz)), Mul (s, sw))

which stands for the same numbers as the form that models have whose scales are constants:

    MatMul (DequantizeLinear (q, s, z), DequantizeLinear (w, sw, wz))

ConvInteger likewise: its pads are zero points, which stand for zeros. A kernel that reads integers
sums them in int32 in both forms. One in float32 rounds its sums, by 2⁻²⁴ of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, Absorbed, NormalGraph
from tilewright.networks.onnx_file import is_stub

QUANTISES = "DynamicQuantizeLinear"
REAL = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""By the operator on integers, the one on the reals that they stand for."""
CHANNEL_AXIS = {"MatMulInteger": 1, "ConvInteger": 0}
"""Of output channels in the weights."""
AXIS_OPSET = 13
"""From this opset on, DequantizeLinear takes a scale a channel."""


@dataclass(frozen=True)
class _Operand:
    """The inputs of what dequantises a tensor; with an axis where its scales are a channel's."""

    tensor: str
    scale: str
    zero: str
    axis: int | None = None


@dataclass(frozen=True)
class _ScaledProduct:
    """A product of integers, and the operators that make reals of its sums."""

    node: onnx.NodeProto
    cast: onnx.NodeProto
    scaled: onnx.NodeProto
    operands: tuple[_Operand, _Operand]


def as_dequantised_products(normal: NormalGraph) -> None:
    """Rewrite a graph in place. A tensor is quantised once, and products of integers are written
    anew where a Cast and a Mul by both scales follow. Others stay, as do graphs with branches."""
    if any(a.HasField("g") or a.graphs for node in normal.graph.node for a in node.attribute):
        return  # a subgraph may read any outer tensor by name
    if any(node.op_type in REAL for node in normal.graph.node):
        _quantise_once(normal)
        _DynamicRewriter(normal).rewrite()


def _quantise_once(normal: NormalGraph) -> None:
    outputs = {output.name for output in normal.graph.output}
    first: dict[str, onnx.NodeProto] = {}
    renamed: dict[str, str] = {}
    kept = []
    for node in normal.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
        if node.op_type == QUANTISES and outputs.isdisjoint(node.output):
            before = first.setdefault(node.input[0], node)
            if before is not node:
                renamed.update(zip(node.output, before.output, strict=True))
                why = "quantises the same tensor"
                normal.absorbed[node.name] = Absorbed(before.name, why)
                continue
        kept.append(node)
    normal.replace_nodes(kept)


class _DynamicRewriter:
    def __init__(self, normal: NormalGraph) -> None:
        self._normal = normal
        self._shapes, self._users = normal.shapes(), normal.users()
        self._tensors = normal.tensors()
        self._makers = {name: node for node in normal.graph.node for name in node.output}
        self._readers = {name: node for node in normal.graph.node for name in node.input}
        standard = [o.version for o in normal.model.opset_import if o.domain in STANDARD_DOMAINS]
        self._opset = max(standard, default=1)
        self._reals: dict[_Operand, str] = {}

    def rewrite(self) -> None:
        """Give the graph its operators anew."""
        nodes: list[onnx.NodeProto] = []
        gone: dict[str, str] = {}
        for node in self._normal.graph.node:
            found = self._scaled_product(node) if node.op_type in REAL else None
            if found is None:
                nodes.append(node)
                continue
            nodes += self._written(found)
            gone |= dict.fromkeys((found.cast.name, found.scaled.name), node.name)
        self._normal.replace_nodes([node for node in nodes if node.name not in gone])
        for name, product in gone.items():
            self._normal.absorbed[name] = Absorbed(product, "scale of the product")

    def _scaled_product(self, node: onnx.NodeProto) -> _ScaledProduct | None:
        """What a node is a part of; None where it is of no known form."""
        cast = self._sole_reader(node.output[0], "Cast")
        scaled = None if cast is None else self._sole_reader(cast.output[0], "Mul")
        if cast is None or scaled is None or node.domain not in STANDARD_DOMAINS:
            return None
        to_float = any(a.name == "to" and a.i == onnx.TensorProto.FLOAT for a in cast.attribute)
        shape = self._shapes.get(node.output[0])
        if not to_float or shape is None or self._shapes.get(scaled.output[0]) != shape:
            return None
        scales = self._makers.get(_other(scaled, cast.output[0]))
        if scales is None or scales.op_type != "Mul":
            return None
        tensor, weight, zero, weight_zero = [*node.input, "", ""][:4]
        data = self._activation(tensor, zero)
        if data is None or data.scale not in scales.input:
            return None
        scale = _other(scales, data.scale)
        if weight in self._tensors:
            second = self._weight(node, scale, weight_zero)
        else:
            second = self._activation(weight, weight_zero)
        if second is None or (weight not in self._tensors and second.scale != scale):
            return None
        return _ScaledProduct(node, cast, scaled, (data, second))

    def _sole_reader(self, name: str, op_type: str) -> onnx.NodeProto | None:
        reader = self._readers.get(name)
        known = reader is not None and reader.op_type == op_type and self._users[name] == 1
        return reader if known else None

    def _activation(self, tensor: str, zero: str) -> _Operand | None:
        """The integers of a dynamic quantisation; None for others and with another zero point."""
        maker = self._makers.get(tensor)
        if maker is None or maker.op_type != QUANTISES or maker.output[0] != tensor:
            return None
        _, scale, own_zero = maker.output
        return _Operand(tensor, scale, zero) if zero == own_zero else None

    def _weight(self, node: onnx.NodeProto, scale: str, zero: str) -> _Operand | None:
        """Constants; None where scales or zero points have no known values, or are no channel's."""
        weight, axis = self._tensors[node.input[1]], CHANNEL_AXIS[node.op_type]
        if len(weight.dims) <= axis:
            return None
        behind = len(weight.dims) - 2 if REAL[node.op_type] == "Conv" else 0
        channels = (weight.dims[axis],)
        scales = self._values(scale, (*channels, *(1,) * behind))
        zeros = self._values(zero, channels)
        if not zero:
            zeros = np.zeros((), helper.tensor_dtype_to_np_dtype(weight.data_type))
        if scales is None or zeros is None:
            return None
        if scales.ndim or zeros.ndim:
            if self._opset < AXIS_OPSET or len(weight.dims) != 2 + behind:
                return None
            scales, zeros = (np.broadcast_to(each, channels) for each in (scales, zeros))
        names = f"{node.name}/weight_scale", f"{node.name}/weight_zero_point"
        for name, values in zip(names, (scales, zeros), strict=True):
            self._normal.add_tensor(numpy_helper.from_array(values, name))
        return _Operand(weight.name, *names, axis if scales.ndim else None)

    def _values(self, name: str, shape: Sequence[int]) -> NDArray[Any] | None:
        """A constant of one element as (), one of a shape as (channels,); None for others."""
        tensor = self._tensors.get(name)
        if tensor is None or is_stub(tensor):
            return None
        values: NDArray[Any] = numpy_helper.to_array(tensor)
        if values.size == 1:
            return values.reshape(())
        fits = values.ndim >= len(shape) and values.shape[-len(shape) :] == tuple(shape)
        return values.ravel() if fits and values.size == shape[0] else None

    def _written(self, found: _ScaledProduct) -> list[onnx.NodeProto]:
        """The operators in place of a product and its scale; the product keeps its name."""
        made: list[onnx.NodeProto] = []
        node = found.node
        for role, operand in zip(("data", "weight"), found.operands, strict=True):
            if operand in self._reals:
                continue
            name = self._reals[operand] = f"{node.name}/{role}"
            inputs = [operand.tensor, operand.scale, operand.zero]
            extra = {} if operand.axis is None else {"axis": operand.axis}
            made.append(helper.make_node("DequantizeLinear", inputs, [name], name=name, **extra))
            self._normal.add_operator(made[-1])
            shape = self._shapes.get(operand.tensor)
            info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            self._normal.graph.value_info.append(info)
        reals, result = [self._reals[each] for each in found.operands], found.scaled.output[0]
        product = helper.make_node(REAL[node.op_type], reals, [result], name=node.name)
        product.attribute.extend(node.attribute)
        return [*made, product]


def _other(node: onnx.NodeProto, name: str) -> str:
    """The input of an operator on two tensors beside the one of a name."""
    return str(node.input[1 if node.input[0] == name else 0])
