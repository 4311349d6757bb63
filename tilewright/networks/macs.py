"""Counts the multiply-accumulates of operators from the shapes they read and write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.networks.onnx.graph import NormalGraph, Shape
from tilewright.networks.onnx.recurrent_operators import GATES


@dataclass(frozen=True)
class Operands:
    """What an operator reads and writes: a shape for each input, None where it is not known, and
    that of its first result. `equation` is that of an einsum."""

    inputs: Sequence[Shape | None]
    output: Shape
    equation: str = ""

    def shape(self, place: int) -> Shape:
        """Of an input. Raises `UnknownShape` where it is not there or not known."""
        found = self.inputs[place] if place < len(self.inputs) else None
        if found is None:
            raise UnknownShape
        return found


class UnknownShape(Exception):
    """An operand without a shape."""


def count(operator: str, operands: Operands) -> int:
    """Multiply-accumulates of a call of `operator`, an ONNX or Relax name; 0 for one that sums no
    products, and where shapes are missing."""
    rule = RULES.get(operator)
    try:
        return 0 if rule is None else rule(operands)
    except (UnknownShape, IndexError, ValueError):  # of operands that contradict the operator
        return 0


def convolution(output: Shape, weight: Shape) -> int:
    """Each output sums over the input channels of its group and the kernel: (O, I/groups, k…)."""
    return math.prod(output) * math.prod(weight[1:])


def product(output: Shape, inner: int) -> int:
    """A matrix product, batched or not, that sums over `inner` elements."""
    return math.prod(output) * inner


def _convolution(place: int = 1) -> Rule:
    return lambda operands: convolution(operands.output, operands.shape(place))


def _transposed(operands: Operands) -> int:
    """Each input goes to the output channels of its group and the kernel: (I, O/groups, k…)."""
    return math.prod(operands.shape(0)) * math.prod(operands.shape(1)[1:])


def _product(operands: Operands) -> int:
    return product(operands.output, operands.shape(0)[-1])


def _gemm(operands: Operands) -> int:
    """Either operand may be transposed, so what is summed is what the result lacks."""
    return product(operands.output, math.prod(operands.shape(0)) // operands.output[0])


def _einsum(operands: Operands) -> int:
    """TVM compiles one nest of loops over all indices, with a product of all operands inside."""
    text = re.sub(r"\s", "", operands.equation).partition("->")[0]
    sizes: dict[str, int] = {}
    shapes = [operands.shape(place) for place in range(len(operands.inputs))]
    for labels, shape in zip(text.split(","), shapes, strict=True):
        for label, size in zip(_spelt_out(labels, len(shape)), shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return math.prod(sizes.values()) * (len(shapes) - 1)


def _spelt_out(labels: str, rank: int) -> list[str]:
    """One label a dimension; those an ellipsis stands for are counted from the right."""
    before, dots, after = labels.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"...{place}" for place in range(hidden, 0, -1)), *after]


def _relax_attention(operands: Operands) -> int:
    """Scores and their product with the values, all (batch, sequence, heads, size)."""
    batch, rows, heads, size = operands.shape(0)
    keys, value_size = operands.shape(1)[1], operands.shape(2)[3]
    return batch * heads * rows * keys * (size + value_size)


def _attention(operands: Operands) -> int:
    """ONNX's: (batch, heads, sequence, size), or (batch, sequence, heads · size)."""
    query, key, value = (operands.shape(place) for place in range(3))
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _projected_attention(operands: Operands) -> int:
    """onnxruntime's: (batch, sequence, inputs) by weights (inputs, 3 · size), then attention."""
    (batch, rows, inputs), columns = operands.shape(0), operands.shape(1)[-1]
    return batch * rows * (inputs * columns + rows * columns * 2 // 3)


def _recurrent(operands: Operands) -> int:
    """A product with the data and one with the state, a step and a direction: data (steps, batch,
    inputs), weights (directions, gates · hidden, inputs) and (directions, gates · hidden, hidden).
    """
    steps, weight, recurrence = (operands.shape(place) for place in range(3))
    return math.prod(steps[:2]) * (math.prod(weight) + math.prod(recurrence))


Rule = Callable[[Operands], int]

RULES: Mapping[str, Rule] = {
    operator: rule
    for rule, operators in (
        (_convolution(), (
            "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "Conv", "ConvInteger",
            "FusedConv",
        )),
        (_convolution(3), ("QLinearConv",)),
        (_transposed, (
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


def graph_macs(normal: NormalGraph, names: Collection[str]) -> dict[str, int]:
    """Return the multiply-accumulates of operators of a graph, for those that do any."""
    shapes = normal.shapes()
    found = {}
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
        found[node.name] = count(operator, operands)
    return {name: macs for name, macs in found.items() if macs}
