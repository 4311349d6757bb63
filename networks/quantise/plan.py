"""What of a float network becomes int8: groups of operators that the accelerator runs as one layer,
operators it runs alone, and the layout changes between them.

The groups are those the importer fuses (`networks.relax.partition`); the rest follows the tensors:
an operator of `ALONE` is int8 where all it reads is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, numpy_helper

from networks.fused_calls import FusedCall
from networks.graph import NormalGraph, data_inputs
from networks.quantise.fold import attribute
from targets.errors import UnknownName

POOLS = frozenset(("MaxPool", "AveragePool", "GlobalAveragePool"))
ALONE = frozenset((*POOLS, "Add", "Relu", "Clip", "Concat"))
LAYOUT = frozenset(("Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze"))
SAME_SCALE = frozenset((*LAYOUT, "MaxPool", "Concat"))
"""Operators that move or choose values: what they read and write has one scale."""
ANCHORS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Group:
    """Operators that become one layer: `nodes` in execution order, the first multiplies.

    `biases` are (operator, place among its inputs) of constants a channel, `residual` is the tensor
    that is added to the sums of products, None where there is none.
    """

    nodes: tuple[str, ...]
    data: str
    weight: str
    output: str
    biases: tuple[tuple[str, int], ...] = ()
    residual: str | None = None


@dataclass(frozen=True)
class Plan:
    """The layers in int8. `products` multiply two activations, `alone` are single operators and
    `layout` moves values; all by operator name. `tensors` are the int8 ones, constants included,
    and `kept` says of every layer left in float why."""

    groups: tuple[Group, ...]
    products: tuple[str, ...]
    alone: tuple[str, ...]
    layout: tuple[str, ...]
    tensors: frozenset[str]
    kept: Mapping[str, str]


def plan(normal: NormalGraph, calls: Collection[FusedCall], keep_float: Collection[str]) -> Plan:
    """What of a folded float model, fused as `calls`, becomes int8.

    `keep_float` names operators that stay as they are, each with the group it is in. Raises
    `UnknownName` for one that the model has not.
    """
    return _Planner(normal, keep_float).plan(calls)


class _Planner:
    def __init__(self, normal: NormalGraph, keep_float: Collection[str]) -> None:
        self._normal = normal
        self._nodes = {node.name: node for node in normal.graph.node}
        self._constants = set(normal.tensors())
        self._types, self._shapes = normal.types(), normal.shapes()
        self._floats = _present_names(normal, keep_float)
        self._kept: dict[str, str] = {}
        self._int8: set[str] = set()
        self._taken: set[str] = set()

    def plan(self, calls: Collection[FusedCall]) -> Plan:
        groups = tuple(self._groups(calls))
        products = tuple(self._products())
        images = [i.name for i in data_inputs(self._normal.model)]
        images = [name for name in images if self._is_float(name) and self._rank(name) == 4]
        reached = self._int8 | set(images)
        alone, layout = self._follow(reached)
        for name in (*alone, *layout):
            self._int8.update(self._operands(self._nodes[name]), self._nodes[name].output[:1])
        return Plan(groups, products, alone, layout, frozenset(self._int8), self._kept)

    def _groups(self, calls: Collection[FusedCall]) -> Iterator[Group]:
        for call in calls:
            group, why = self._group(call)
            if group is None:
                self._kept[call.node] = why
                continue
            self._taken.update(group.nodes)
            self._int8.update(name for name in (group.data, group.residual, group.output) if name)
            yield group

    def _group(self, call: FusedCall) -> tuple[Group | None, str]:
        """A group of operators of the graph, or why it is none."""
        anchor = self._nodes.get(call.node)
        names = list(dict.fromkeys([call.node, *(step.node for step in call.steps)]))
        if anchor is None or anchor.op_type not in ANCHORS:
            return None, "it is no convolution or product of a kind that is quantised"
        if self._floats & set(names):
            return None, "kept in float as asked"
        if anchor.input[1] not in self._constants:
            return None, "its weights are computed while the model runs"
        if not self._is_float(anchor.input[0]) or any(
            attribute(anchor, name, 1.0) != 1.0 for name in ("alpha", "beta")
        ):
            return None, "it is no plain product of float32 tensors"
        biases, residual, value = [], None, anchor.output[0]
        if len(anchor.input) > 2 and anchor.input[2]:
            biases.append((anchor.name, 2))
        for step in call.steps:
            node = self._nodes[step.node]
            if step.kind == "add" and node is anchor:
                return None, "its bias is not constant, or is more than one number a channel"
            if node is not anchor:
                place = 1 - list(node.input).index(value)
                if step.kind == "bias":
                    biases.append((node.name, place))
                elif step.kind == "add":
                    residual = node.input[place]
                value = node.output[0]
        if any(self._nodes[name].input[place] not in self._constants for name, place in biases):
            return None, "its bias is computed while the model runs"
        return Group(
            tuple(names), anchor.input[0], anchor.input[1], value, tuple(biases), residual
        ), ""

    def _products(self) -> Iterator[str]:
        """Products of two activations: attention."""
        for node in self._normal.graph.node:
            if node.op_type != "MatMul" or node.name in self._taken:
                continue
            if any(name in self._constants or not self._is_float(name) for name in node.input):
                continue
            if node.name in self._floats:
                self._kept[node.name] = "kept in float as asked"
                continue
            self._taken.add(node.name)
            self._int8.update((*node.input, *node.output))
            yield node.name

    def _follow(self, reached: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The operators that read int8 tensors only, and the layout changes that lead to others."""
        alone: list[onnx.NodeProto] = []
        moving: list[onnx.NodeProto] = []
        for node in self._normal.graph.node:
            if node.name in self._taken or not self._suits(node, reached):
                continue
            if node.name in self._floats:
                self._kept[node.name] = "kept in float as asked"
                continue
            (moving if node.op_type in LAYOUT else alone).append(node)
            reached.add(node.output[0])
        wanted = {name for node in alone for name in self._operands(node)} | self._int8
        layout = []
        for node in reversed(moving):
            if node.output[0] in wanted:
                layout.append(node.name)
                wanted.add(node.input[0])
        return tuple(node.name for node in alone), tuple(reversed(layout))

    def _suits(self, node: onnx.NodeProto, reached: Collection[str]) -> bool:
        if node.op_type not in ALONE | LAYOUT or not self._is_float(node.output[0]):
            return False
        operands = self._operands(node)
        constant = [name in self._constants for name in operands]
        if all(constant) or not all(
            name in reached or fixed for name, fixed in zip(operands, constant, strict=True)
        ):
            return False
        if node.op_type == "Add":
            return len({self._shapes.get(n) for n in (*operands, node.output[0])}) == 1
        if node.op_type == "Clip":
            return self._cuts_at_zero(node)
        plain = len(node.output) == 1 and not attribute(node, "ceil_mode", 0)
        return bool(node.op_type not in POOLS or (plain and self._rank(node.input[0]) == 4))

    def _cuts_at_zero(self, node: onnx.NodeProto) -> bool:
        tensors = self._normal.tensors()
        given = [tensors.get(name) for name in node.input[1:]]
        if not given or any(tensor is None for tensor in given):
            return False
        low, *high = (float(numpy_helper.to_array(tensor)) for tensor in given)
        return bool(low == 0 and all(bound > 0 for bound in high))

    def _operands(self, node: onnx.NodeProto) -> list[str]:
        """What a node reads as data, not as a bound or a shape."""
        return list(node.input) if node.op_type in ("Add", "Concat") else list(node.input[:1])

    def _is_float(self, tensor: str) -> bool:
        return self._types.get(tensor) == int(TensorProto.FLOAT)

    def _rank(self, tensor: str) -> int:
        return len(self._shapes.get(tensor, ()))


def _present_names(normal: NormalGraph, names: Collection[str]) -> set[str]:
    """These operators, or those that took them in. Raises `UnknownName`."""
    made = {output: node.name for node in normal.graph.node for output in node.output}
    takers = {operator.name: made.get(operator.outputs[0], "") for operator in normal.operators}
    takers.update({name: each.into or "" for name, each in normal.absorbed.items()})
    takers.update({node.name: node.name for node in normal.graph.node})
    for name in names:
        if name not in takers:
            raise UnknownName("layer", name, sorted(takers))
    return {takers[name] for name in names}
