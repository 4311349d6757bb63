"""Recognise quantised models and convert them to QDQ form.

In QDQ form (quantise/dequantise), float operators stand between DequantizeLinear and
QuantizeLinear. Models in QOperator form, whose operators read and write integers, and dynamically
quantised models are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.onnx.files import is_stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, Absorbed, NormalGraph

INTEGER_OPERATORS = frozenset((
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger",
    "QLinearConv", "QLinearMatMul", "QGemm",
))  # fmt: skip
"""Operators that occur only in quantised models."""


def is_quantised(model: onnx.ModelProto) -> bool:
    """Return whether at least part of a model is quantised, in QDQ or QOperator form."""
    return any(
        node.op_type in INTEGER_OPERATORS or node.op_type.startswith("QLinear")
        for node in model.graph.node
    )


# Float operator and number of data inputs, for operators (x, scale, zero, …, y scale, y zero).
PLAIN: Mapping[str, tuple[str, int]] = {
    "QLinearMatMul": ("MatMul", 2),
    "QLinearAdd": ("Add", 2),
    "QLinearMul": ("Mul", 2),
    "QLinearAveragePool": ("AveragePool", 1),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
}
"""Float operator and number of data operands that correspond to a QLinear operator, by its type.
The inputs of a QLinear operator are (x, scale, zero point) for each data operand, followed by the
scale and the zero point of the output."""
OWN_ATTRIBUTES = frozenset(("channels_last", "opset"))
"""Attributes that QLinear operators have in addition to those of the corresponding float
operators."""
ONE_AXIS = 13
"""First opset in which Softmax normalises over a single axis. In older opsets, it normalises over
this axis and all axes after it."""


def to_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert QLinear operators and QGemm to QDQ form.

    Operators keep their names. Operators of unknown form are kept. ConvInteger and MatMulInteger
    are kept as well, because their scales are known only at run time.

    Args:
        model: the model.

    Returns:
        A converted copy, or `model` itself if there is nothing to convert.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rewriter = _Rewriter(copy)
    nodes = [new for node in copy.graph.node for new in rewriter.rewrite_node(node)]
    # Rewriting an operator adds operators, so that nothing was rewritten.
    if len(nodes) == len(model.graph.node):
        return model
    del copy.graph.node[:], copy.graph.value_info[:]
    copy.graph.node.extend(nodes)
    return copy


class _Rewriter:
    """Converts the QLinear operators of a model to QDQ form, one operator at a time.

    Args:
        model: the model, to which constants are added.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        standard = [o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS]
        self._opset = max(standard, default=1)
        self._constants = {t.name: t for t in model.graph.initializer}
        self._used = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._used.update(self._constants)

    def rewrite_node(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the operators in QDQ form that replace an operator.

        Args:
            node: the operator.

        Returns:
            The operators, or the operator itself if it is not supported.
        """
        rules: dict[str, Callable[[onnx.NodeProto], list[onnx.NodeProto] | None]] = {
            "QLinearConv": self._conv,
            "QGemm": self._gemm,
            "QLinearConcat": self._concat,
            "QLinearSoftmax": self._softmax,
            "QLinearWhere": self._rewrite_where,
            **dict.fromkeys(PLAIN, self._rewrite_plain),
        }
        rule = rules.get(node.op_type)
        if rule is None or any(a.name == "channels_last" and a.i for a in node.attribute):
            return [node]
        return rule(node) or [node]

    def _rewrite_plain(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        op, operands = PLAIN[node.op_type]
        inputs = [*node.input, ""]
        triples = [inputs[3 * i : 3 * i + 3] for i in range(operands)]
        scale, zero = inputs[3 * operands : 3 * operands + 2]
        return self._wrap_in_qdq(op, node, triples, (scale, zero))

    def _concat(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        triples = [list(node.input[i : i + 3]) for i in range(2, len(node.input), 3)]
        return self._wrap_in_qdq("Concat", node, triples, (node.input[0], node.input[1]))

    def _rewrite_where(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        inputs = [*node.input, ""]
        triples = [inputs[1:4], inputs[4:7]]
        return self._wrap_in_qdq(
            "Where", node, triples, (inputs[7], inputs[8]), condition=inputs[0]
        )

    def _softmax(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Convert a QLinearSoftmax to QDQ form.

        Its attribute `opset` selects the definition of Softmax, independently of the model's opset.

        Args:
            node: the QLinearSoftmax.

        Returns:
            The operators, or None if the model's opset has no equivalent.
        """
        attributes = {a.name: a.i for a in node.attribute}
        axis = attributes.get("axis", -1)  # the default is the same in all opsets, unlike Softmax's
        opset = attributes.get("opset", self._opset)
        inputs = [*node.input, ""]
        if opset >= ONE_AXIS > self._opset and axis != -1:
            return None
        nodes = self._wrap_in_qdq("Softmax", node, [inputs[:3]], (inputs[3], inputs[4]))
        rows = opset < ONE_AXIS <= self._opset
        del nodes[1].attribute[:]
        nodes[1].attribute.append(helper.make_attribute("axis", -1 if rows else axis))
        return self._over_rows(nodes, axis) if rows else nodes

    def _over_rows(self, nodes: list[onnx.NodeProto], axis: int) -> list[onnx.NodeProto]:
        """Make a Softmax normalise over several axes instead of one, by flattening its input.

        Args:
            nodes: the DequantizeLinear, the Softmax and the QuantizeLinear. The Softmax is changed.
            axis: first of the axes. The Softmax normalises over this axis and all axes after it.

        Returns:
            The operators, including those that flatten the input and restore the shape.
        """
        before, softmax, after = nodes
        data, result = softmax.input[0], softmax.output[0]
        rows, shape = self._free_name(f"{data}/rows"), self._free_name(f"{data}/shape")
        softmax.input[0], softmax.output[0] = rows, self._free_name(f"{result}/rows")
        return [
            before,
            self._node("Shape", [data], shape),
            self._node("Flatten", [data], rows, axis=axis),
            softmax,
            self._node("Reshape", [softmax.output[0], shape], result),
            after,
        ]

    def _conv(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        triples = [list(node.input[:3]), list(node.input[3:6])]
        bias = node.input[8] if len(node.input) > 8 else ""
        return self._with_bias("Conv", node, triples, bias, (node.input[6], node.input[7]), 0)

    def _gemm(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        inputs = [*node.input, "", "", ""]
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        triples = [list(inputs[:3]), list(inputs[3:6])]
        alpha = next((a.f for a in node.attribute if a.name == "alpha"), 1.0)
        return self._with_bias(
            "Gemm", node, triples, inputs[6], (inputs[7], inputs[8]), 0 if transposed else 1, alpha
        )

    def _with_bias(
        self, op: str, node: onnx.NodeProto, triples: list[list[str]], bias: str,
        out: tuple[str, str], weight_axis: int, alpha: float = 1.0,
    ) -> list[onnx.NodeProto] | None:  # fmt: skip
        """Convert a convolution or matrix product that may have a bias.

        Args:
            op: type of the float operator.
            node: the operator to convert.
            triples: (tensor, scale, zero point) of data and weights.
            bias: name of the bias, "" if there is none.
            out: scale and zero point of the result.
            weight_axis: quantisation axis of the weights.
            alpha: factor of the product. The scale of the bias is `alpha` times the scale of the
                accumulator.

        Returns:
            The operators, or None if the scale of the bias is unknown.
        """
        if bias:
            known = [self._constants.get(triples[0][1]), self._constants.get(triples[1][1])]
            if any(scale is None for scale in known):
                return None
            scales = [numpy_helper.to_array(scale).astype(np.float32) for scale in known]
            product = np.squeeze(scales[0] * scales[1] * np.float32(alpha))
            triples = [*triples, [bias, self._add(f"{bias}/scale", product), ""]]
        return self._wrap_in_qdq(op, node, triples, out, {1: weight_axis, 2: 0})

    def _wrap_in_qdq(
        self, op: str, node: onnx.NodeProto, triples: list[list[str]], out: tuple[str, str],
        axes: Mapping[int, int] | None = None, condition: str = "",
    ) -> list[onnx.NodeProto]:  # fmt: skip
        """Return a float operator with a DequantizeLinear per operand and a final QuantizeLinear.

        Args:
            op: type of the float operator.
            node: the operator to convert.
            triples: (tensor, scale, zero point) of each operand.
            out: scale and zero point of the result. If the scale is "", the result is not
                quantised.
            axes: quantisation axis by operand index.
            condition: additional first input, if not empty.
        """
        nodes, reals = [], [condition] if condition else []
        for index, (tensor, scale, zero) in enumerate(triples):
            real = self._free_name(f"{tensor}/dequantised")
            extra = (
                {"axis": axes[index]}
                if axes and index in axes and self._has_many_values(scale)
                else {}
            )
            inputs = [tensor, self._scalar(scale), self._scalar(zero)]
            nodes.append(self._node("DequantizeLinear", inputs, real, **extra))
            reals.append(real)
        kept = [a for a in node.attribute if a.name not in OWN_ATTRIBUTES]
        scale, zero = out
        result = self._free_name(f"{node.output[0]}/float") if scale else node.output[0]
        computed = helper.make_node(op, reals, [result], name=node.name)
        computed.attribute.extend(kept)
        nodes.append(computed)
        if scale:
            inputs = [result, self._scalar(scale), self._scalar(zero)]
            nodes.append(self._node("QuantizeLinear", inputs, node.output[0]))
        return nodes

    def _scalar(self, name: str) -> str:
        """Return the name of a constant with one element as a scalar of shape ().

        A scalar scale or zero point applies to the whole tensor.

        Args:
            name: name of the constant. A constant with several elements keeps its name.
        """
        tensor = self._constants.get(name)
        if tensor is None or not tensor.dims or self._has_many_values(name):
            return name
        return self._add(f"{name}/scalar", numpy_helper.to_array(tensor).reshape(()))

    def _has_many_values(self, name: str) -> bool:
        tensor = self._constants.get(name)
        return tensor is not None and int(np.prod(tensor.dims)) > 1

    def _add(self, name: str, values: np.ndarray) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.asarray(values), name)
            self._used.add(name)
            self._graph.initializer.append(self._constants[name])
        return name

    def _node(self, op: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        return helper.make_node(op, inputs, [output], name=f"{output}/{op}", **attributes)

    def _free_name(self, name: str) -> str:
        while name in self._used:
            name += "'"
        self._used.add(name)
        return name


QUANTISES = "DynamicQuantizeLinear"
"""Operator that determines the scale of a tensor at run time and quantises the tensor."""
REAL = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""Float operator that corresponds to an integer operator, by type."""
CHANNEL_AXIS = {"MatMulInteger": 1, "ConvInteger": 0}
"""Axis of the weights that corresponds to the output channels, by operator type."""
AXIS_OPSET = 13
"""First opset in which DequantizeLinear accepts one scale per channel."""


@dataclass(frozen=True)
class _Operand:
    """Inputs of the DequantizeLinear that an operand of a rewritten product gets.

    Attributes:
        tensor: name of the quantised tensor.
        scale: name of its scale.
        zero: name of its zero point.
        axis: channel axis if there is one scale per channel, None for a single scale.
    """

    tensor: str
    scale: str
    zero: str
    axis: int | None = None


@dataclass(frozen=True)
class _ScaledProduct:
    """An integer product with the operators that convert its sums to float.

    Attributes:
        node: the integer product.
        cast: the Cast to float.
        scaled: the multiplication by the product of both scales.
        operands: the data and the weights, with their scales and zero points.
    """

    node: onnx.NodeProto
    cast: onnx.NodeProto
    scaled: onnx.NodeProto
    operands: tuple[_Operand, _Operand]


def as_dequantised_products(normal: NormalGraph) -> None:
    """Rewrite dynamically quantised products as float products of dequantised tensors, in place.

    A product is rewritten if it is followed by a Cast to float and a Mul by both scales. Other
    products, and graphs that contain subgraphs, are not changed. If several operators quantise the
    same tensor, only the first is kept.
    """
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
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        if node.op_type == QUANTISES and outputs.isdisjoint(node.output):
            earlier = first.setdefault(node.input[0], node)
            if earlier is not node:
                renamed.update(zip(node.output, earlier.output, strict=True))
                why = "quantises the same tensor"
                normal.absorbed[node.name] = Absorbed(earlier.name, why)
                continue
        kept.append(node)
    normal.replace_nodes(kept)


class _DynamicRewriter:
    """Rewrites the dynamically quantised products of a graph as float products, in place.

    Args:
        normal: the graph.
    """

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
        """Replace each integer product, with its conversion to float, by a float product."""
        nodes: list[onnx.NodeProto] = []
        gone: dict[str, str] = {}
        for node in self._normal.graph.node:
            scaled_product = self._scaled_product(node) if node.op_type in REAL else None
            if scaled_product is None:
                nodes.append(node)
                continue
            nodes += self._float_product(scaled_product)
            gone |= dict.fromkeys((scaled_product.cast.name, scaled_product.scaled.name), node.name)
        self._normal.replace_nodes([node for node in nodes if node.name not in gone])
        for name, product in gone.items():
            self._normal.absorbed[name] = Absorbed(product, "scale of the product")

    def _scaled_product(self, node: onnx.NodeProto) -> _ScaledProduct | None:
        """Match an integer product with the Cast and the Mul that convert its sums to float.

        Args:
            node: the integer product, a ConvInteger or a MatMulInteger.

        Returns:
            The matched operators, or None if the product is not followed by such a Cast and Mul.
        """
        cast = self._sole_reader(node.output[0], "Cast")
        scaled = None if cast is None else self._sole_reader(cast.output[0], "Mul")
        if cast is None or scaled is None or node.domain not in STANDARD_DOMAINS:
            return None
        to_float = any(a.name == "to" and a.i == onnx.TensorProto.FLOAT for a in cast.attribute)
        shape = self._shapes.get(node.output[0])
        if not to_float or shape is None or self._shapes.get(scaled.output[0]) != shape:
            return None
        scales = self._makers.get(_other_input(scaled, cast.output[0]))
        if scales is None or scales.op_type != "Mul":
            return None
        tensor, weight, zero, weight_zero = [*node.input, "", ""][:4]
        data = self._activation(tensor, zero)
        if data is None or data.scale not in scales.input:
            return None
        scale = _other_input(scales, data.scale)
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
        """Return a tensor that a DynamicQuantizeLinear writes, as the operand of a product.

        Args:
            tensor: name of the tensor.
            zero: name of the zero point with which the product reads it.

        Returns:
            The operand. None if another operator writes the tensor, or if `zero` is not the zero
            point that the DynamicQuantizeLinear writes.
        """
        maker = self._makers.get(tensor)
        if maker is None or maker.op_type != QUANTISES or maker.output[0] != tensor:
            return None
        _, scale, own_zero = maker.output
        return _Operand(tensor, scale, zero) if zero == own_zero else None

    def _weight(self, node: onnx.NodeProto, scale: str, zero: str) -> _Operand | None:
        """Return the constant weights of an integer product as an operand.

        Args:
            node: the integer product.
            scale: name of the scale of the weights.
            zero: name of their zero point.

        Returns:
            The operand. None if the scale or the zero point is not a constant with one value per
            tensor or per channel.
        """
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
            scales, zeros = (np.broadcast_to(array, channels) for array in (scales, zeros))
        names = f"{node.name}/weight_scale", f"{node.name}/weight_zero_point"
        for name, values in zip(names, (scales, zeros), strict=True):
            self._normal.add_tensor(numpy_helper.from_array(values, name))
        return _Operand(weight.name, *names, axis if scales.ndim else None)

    def _values(self, name: str, shape: Sequence[int]) -> NDArray[Any] | None:
        """Return a constant as an array of shape () or (channels,).

        Args:
            name: name of the tensor.
            shape: required last axes of a constant with one value per channel, such as (channels,
                1, 1).

        Returns:
            Array of shape () if the tensor has a single value, otherwise (channels,). None if the
            tensor is not a constant with known values, or has another shape.
        """
        tensor = self._tensors.get(name)
        if tensor is None or is_stub(tensor):
            return None
        values: NDArray[Any] = numpy_helper.to_array(tensor)
        if values.size == 1:
            return values.reshape(())
        fits = values.ndim >= len(shape) and values.shape[-len(shape) :] == tuple(shape)
        return values.ravel() if fits and values.size == shape[0] else None

    def _float_product(self, scaled_product: _ScaledProduct) -> list[onnx.NodeProto]:
        """Return the operators that replace an integer product, its Cast and its Mul.

        The float product keeps the name of the integer product.
        """
        nodes: list[onnx.NodeProto] = []
        node = scaled_product.node
        for role, operand in zip(("data", "weight"), scaled_product.operands, strict=True):
            if operand in self._reals:
                continue
            name = self._reals[operand] = f"{node.name}/{role}"
            inputs = [operand.tensor, operand.scale, operand.zero]
            extra = {} if operand.axis is None else {"axis": operand.axis}
            nodes.append(helper.make_node("DequantizeLinear", inputs, [name], name=name, **extra))
            self._normal.add_operator(nodes[-1])
            shape = self._shapes.get(operand.tensor)
            info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            self._normal.graph.value_info.append(info)
        reals, result = (
            [self._reals[operand] for operand in scaled_product.operands],
            scaled_product.scaled.output[0],
        )
        product = helper.make_node(REAL[node.op_type], reals, [result], name=node.name)
        product.attribute.extend(node.attribute)
        return [*nodes, product]


def _other_input(node: onnx.NodeProto, name: str) -> str:
    """Return the name of the second operand of an operator with two inputs.

    Args:
        node: the operator.
        name: name of the first operand, which may be either input.
    """
    return str(node.input[1 if node.input[0] == name else 0])
