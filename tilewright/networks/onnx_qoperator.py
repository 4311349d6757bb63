"""Converts quantised models from QOperator to QDQ form: the same numbers, other operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS

# operator → what it computes on real numbers, of operators (x, scale, zero, …, y scale, y zero)
PLAIN: Mapping[str, tuple[str, int]] = {
    "QLinearMatMul": ("MatMul", 2),
    "QLinearAdd": ("Add", 2),
    "QLinearMul": ("Mul", 2),
    "QLinearAveragePool": ("AveragePool", 1),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
}
OWN_ATTRIBUTES = frozenset(("channels_last", "opset"))
"""What QLinear operators have and those that they stand for have not."""
ONE_AXIS = 13
"""From this opset on a Softmax is over one axis, and before over all from that axis on."""


def to_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every QLinear operator and QGemm of known form is the operator it stands
    for, between DequantizeLinear and QuantizeLinear. Operators keep their names; what is unknown
    stays, as do ConvInteger and MatMulInteger, whose scales are known only at run time. A model
    without any is given back as it is, with the shapes that it states."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rewriter = _Rewriter(copy)
    nodes = [new for node in copy.graph.node for new in rewriter.rewritten(node)]
    if len(nodes) == len(model.graph.node):  # what is rewritten becomes several operators
        return model
    del copy.graph.node[:], copy.graph.value_info[:]
    copy.graph.node.extend(nodes)
    return copy


class _Rewriter:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        standard = [o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS]
        self._opset = max(standard, default=1)
        self._constants = {t.name: t for t in model.graph.initializer}
        self._used = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._used.update(self._constants)

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """What stands for a node, in order: itself where it is of no known form."""
        rules: dict[str, Callable[[onnx.NodeProto], list[onnx.NodeProto] | None]] = {
            "QLinearConv": self._conv,
            "QGemm": self._gemm,
            "QLinearConcat": self._concat,
            "QLinearSoftmax": self._softmax,
            "QLinearWhere": self._where,
            **dict.fromkeys(PLAIN, self._plain),
        }
        rule = rules.get(node.op_type)
        if rule is None or any(a.name == "channels_last" and a.i for a in node.attribute):
            return [node]
        return rule(node) or [node]

    def _plain(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        op, operands = PLAIN[node.op_type]
        inputs = [*node.input, ""]
        triples = [inputs[3 * i : 3 * i + 3] for i in range(operands)]
        scale, zero = inputs[3 * operands : 3 * operands + 2]
        return self._around(op, node, triples, (scale, zero))

    def _concat(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        triples = [list(node.input[i : i + 3]) for i in range(2, len(node.input), 3)]
        return self._around("Concat", node, triples, (node.input[0], node.input[1]))

    def _where(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        inputs = [*node.input, ""]
        triples = [inputs[1:4], inputs[4:7]]
        return self._around("Where", node, triples, (inputs[7], inputs[8]), condition=inputs[0])

    def _softmax(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Its `opset` says which Softmax is meant, whatever the model's is; None where the model's
        has no such form."""
        given = {a.name: a.i for a in node.attribute}
        axis = given.get("axis", -1)  # of any opset, unlike a Softmax's
        opset = given.get("opset", self._opset)
        inputs = [*node.input, ""]
        if opset >= ONE_AXIS > self._opset and axis != -1:
            return None
        nodes = self._around("Softmax", node, [inputs[:3]], (inputs[3], inputs[4]))
        rows = opset < ONE_AXIS <= self._opset
        del nodes[1].attribute[:]
        nodes[1].attribute.append(helper.make_attribute("axis", -1 if rows else axis))
        return self._over_rows(nodes, axis) if rows else nodes

    def _over_rows(self, nodes: list[onnx.NodeProto], axis: int) -> list[onnx.NodeProto]:
        """A Softmax between two operators, over all axes from `axis` on."""
        before, softmax, after = nodes
        data, result = softmax.input[0], softmax.output[0]
        rows, shape = self._fresh(f"{data}/rows"), self._fresh(f"{data}/shape")
        softmax.input[0], softmax.output[0] = rows, self._fresh(f"{result}/rows")
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
        """A convolution or product, whose bias counts in `alpha` steps of the sums; None where its
        bias has no known scale."""
        if bias:
            known = [self._constants.get(triples[0][1]), self._constants.get(triples[1][1])]
            if any(scale is None for scale in known):
                return None
            scales = [numpy_helper.to_array(scale).astype(np.float32) for scale in known]
            product = np.squeeze(scales[0] * scales[1] * np.float32(alpha))
            triples = [*triples, [bias, self._add(f"{bias}/scale", product), ""]]
        return self._around(op, node, triples, out, {1: weight_axis, 2: 0})

    def _around(
        self, op: str, node: onnx.NodeProto, triples: list[list[str]], out: tuple[str, str],
        axes: Mapping[int, int] | None = None, condition: str = "",
    ) -> list[onnx.NodeProto]:  # fmt: skip
        """Dequantise each (tensor, scale, zero), compute (behind a condition, if there is one),
        quantise."""
        nodes, reals = [], [condition] if condition else []
        for place, (tensor, scale, zero) in enumerate(triples):
            real = self._fresh(f"{tensor}/dequantised")
            extra = {"axis": axes[place]} if axes and place in axes and self._many(scale) else {}
            inputs = [tensor, self._scalar(scale), self._scalar(zero)]
            nodes.append(self._node("DequantizeLinear", inputs, real, **extra))
            reals.append(real)
        kept = [a for a in node.attribute if a.name not in OWN_ATTRIBUTES]
        scale, zero = out
        result = self._fresh(f"{node.output[0]}/float") if scale else node.output[0]
        computed = helper.make_node(op, reals, [result], name=node.name)
        computed.attribute.extend(kept)
        nodes.append(computed)
        if scale:
            inputs = [result, self._scalar(scale), self._scalar(zero)]
            nodes.append(self._node("QuantizeLinear", inputs, node.output[0]))
        return nodes

    def _scalar(self, name: str) -> str:
        """A constant of one element as a scalar, which says that it holds for the whole tensor."""
        tensor = self._constants.get(name)
        if tensor is None or not tensor.dims or self._many(name):
            return name
        return self._add(f"{name}/scalar", numpy_helper.to_array(tensor).reshape(()))

    def _many(self, name: str) -> bool:
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

    def _fresh(self, name: str) -> str:
        while name in self._used:
            name += "'"
        self._used.add(name)
        return name
