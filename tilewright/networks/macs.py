"""Count the multiply-accumulates of operators from the shapes of their inputs and outputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.networks.onnx.graph import NormalGraph, Shape
from tilewright.networks.onnx.recurrent_operators import GATES


@dataclass(frozen=True)
class Operands:
    """Shapes of an operator's operands.

    Attributes:
        inputs: shape of each input, None if it is unknown.
        output: shape of the first result.
        equation: equation of an Einsum, otherwise empty.
    """

    inputs: Sequence[Shape | None]
    output: Shape
    equation: str = ""

    def shape(self, place: int) -> Shape:
        """Return the shape of one of the operator's inputs.

        Args:
            place: index of the input.

        Raises:
            UnknownShape: the input is missing or its shape is unknown.
        """
        shape = self.inputs[place] if place < len(self.inputs) else None
        if shape is None:
            raise UnknownShape
        return shape


class UnknownShape(Exception):
    """Raised if the shape of an operand is unknown."""


def count(operator: str, operands: Operands) -> int:
    """Return the multiply-accumulates of one call of an operator.

    Args:
        operator: an ONNX or Relax operator name.
        operands: the shapes of its operands.

    Returns:
        The number of multiply-accumulates. It is 0 for an operator that sums no products, and for
        an operator with an operand of unknown shape.
    """
    rule = RULES.get(operator)
    try:
        return 0 if rule is None else rule(operands)
    except (UnknownShape, IndexError, ValueError):  # the operands contradict the operator
        return 0


def convolution(output: Shape, weight: Shape) -> int:
    """Return the multiply-accumulates of a convolution.

    Each output element sums over the input channels of its group and over the kernel.

    Args:
        output: shape of the output, (N, O, …).
        weight: shape of the weights, (O, I/groups, kernel sizes…).
    """
    return math.prod(output) * math.prod(weight[1:])


def product(output: Shape, inner: int) -> int:
    """Return the multiply-accumulates of a single or batched matrix product.

    Args:
        output: shape of the result.
        inner: length of the dimension that is summed over.
    """
    return math.prod(output) * inner


def _convolution(place: int = 1) -> Rule:
    """Return a function that counts the multiply-accumulates of a convolution.

    Args:
        place: index of the weights among the operator's inputs.
    """
    return lambda operands: convolution(operands.output, operands.shape(place))


def _transposed_macs(operands: Operands) -> int:
    """Return the multiply-accumulates of a transposed convolution.

    Each input element is multiplied by all kernel elements of all output channels of its group. The
    weights have shape (I, O/groups, kernel sizes…).
    """
    return math.prod(operands.shape(0)) * math.prod(operands.shape(1)[1:])


def _product(operands: Operands) -> int:
    return product(operands.output, operands.shape(0)[-1])


def _gemm(operands: Operands) -> int:
    """Return the multiply-accumulates of a Gemm.

    Either operand may be transposed, so the summed length is the size of the first operand divided
    by the number of result rows.
    """
    return product(operands.output, math.prod(operands.shape(0)) // operands.output[0])


def _einsum(operands: Operands) -> int:
    """Return the multiply-accumulates of an Einsum as TVM compiles it.

    TVM emits one loop nest over all indices and multiplies all operands in its innermost loop.
    """
    text = re.sub(r"\s", "", operands.equation).partition("->")[0]
    sizes: dict[str, int] = {}
    shapes = [operands.shape(place) for place in range(len(operands.inputs))]
    for labels, shape in zip(text.split(","), shapes, strict=True):
        for label, size in zip(_spelt_out(labels, len(shape)), shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return math.prod(sizes.values()) * (len(shapes) - 1)


def _spelt_out(labels: str, rank: int) -> list[str]:
    """Split the labels of an Einsum operand, such as "b...ij", into one label per dimension.

    The dimensions of the ellipsis are numbered from the right, so that they match between operands.

    Args:
        labels: the operand's part of the equation.
        rank: number of dimensions of the operand.
    """
    before, dots, after = labels.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"...{position}" for position in range(hidden, 0, -1)), *after]


def _relax_attention(operands: Operands) -> int:
    """Count the multiply-accumulates of Relax's attention: its two matrix products.

    Query, key and value have shape (batch, sequence, heads, size).
    """
    batch, rows, heads, size = operands.shape(0)
    keys, value_size = operands.shape(1)[1], operands.shape(2)[3]
    return batch * heads * rows * keys * (size + value_size)


def _attention(operands: Operands) -> int:
    """Count the multiply-accumulates of ONNX's Attention or MultiHeadAttention.

    They are those of the two matrix products. Query, key and value have shape (batch, heads,
    sequence, size) or (batch, sequence, heads · size).
    """
    query, key, value = (operands.shape(place) for place in range(3))
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _projected_attention(operands: Operands) -> int:
    """Count the multiply-accumulates of onnxruntime's Attention, which includes a projection.

    They are those of the projection and of the two matrix products. The data have shape (batch,
    sequence, inputs), and the projection weights (inputs, 3 · size).
    """
    (batch, rows, inputs), columns = operands.shape(0), operands.shape(1)[-1]
    return batch * rows * (inputs * columns + rows * columns * 2 // 3)


def _recurrent(operands: Operands) -> int:
    """Count the multiply-accumulates of a recurrent layer.

    Each step has one product with the data and one with the state. The data have shape (steps,
    batch, inputs). The weights have shapes (directions, gates · hidden, inputs) and (directions,
    gates · hidden, hidden).
    """
    steps, weight, recurrence = (operands.shape(place) for place in range(3))
    return math.prod(steps[:2]) * (math.prod(weight) + math.prod(recurrence))


Rule = Callable[[Operands], int]
"""Function that computes the number of multiply-accumulates of an operator from the shapes of its
operands."""

RULES: Mapping[str, Rule] = {
    operator: rule
    for rule, operators in (
        (_convolution(), (
            "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "Conv", "ConvInteger",
            "FusedConv",
        )),
        (_convolution(3), ("QLinearConv",)),
        (_transposed_macs, (
            "relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose",
            "ConvTranspose",
        )),
        (_product, ("relax.matmul", "MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul")),
        (_gemm, ("Gemm", "QGemm", "FusedGemm")),
        (_einsum, ("relax.einsum", "Einsum")),
        (_relax_attention, ("relax.nn.attention", "relax.nn.attention_bias")),
        (_attention, ("MultiHeadAttention", "ai.onnx.Attention")),
        (_projected_attention, ("com.microsoft.Attention",)),
        (_recurrent, ("LSTM", "GRU", "RNN")),
    )
    for operator in operators
}  # fmt: skip
"""Rules that count multiply-accumulates, by the ONNX or Relax name of the operator."""


def graph_macs(normal: NormalGraph, names: Collection[str]) -> dict[str, int]:
    """Return the multiply-accumulates of operators of a graph.

    Args:
        normal: the graph.
        names: names of the operators to count.

    Returns:
        Multiply-accumulates by operator name, without operators that have none.
    """
    shapes = normal.shapes()
    macs_by_operator = {}
    for node in normal.graph.node:
        known = node.output[0] in shapes or node.op_type in GATES
        if node.name not in names or not known:
            continue
        operator = node.op_type
        if operator == "Attention":
            operator = f"{node.domain or 'ai.onnx'}.{operator}"
        equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
        operands = Operands(
            [shapes.get(name) for name in node.input], shapes.get(node.output[0], ()), equation
        )
        macs_by_operator[node.name] = count(operator, operands)
    return {name: macs for name, macs in macs_by_operator.items() if macs}
