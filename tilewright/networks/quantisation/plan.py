"""Plans which operators of a float network become int8.

The plan lists groups of operators, each of which the accelerator runs as one layer, and the
operators that move int8 data between groups. The groups are the fused calls that the importer finds
(`networks.relax.op_patterns`).

Convolutions and products with constant weights, and products of two activations, always become
int8. Pools, additions, ReLUs and clips become int8 only if all their inputs are int8 anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import TensorProto

from tilewright.core.errors import UnknownName
from tilewright.networks.fused_calls import PRODUCTS, FusedCall
from tilewright.networks.onnx.graph import NormalGraph, data_inputs
from tilewright.networks.quantisation.bn_folding import attribute
from tilewright.targets.steps import STEP_KINDS

RESHAPES = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that change only the shape of a tensor."""
MOVES = frozenset((*RESHAPES, "Transpose", "Slice", "Concat"))
"""Operators that move data without computing. Their inputs and outputs share one scale."""
ANCHORS: Mapping[str, frozenset[str]] = {
    "conv2d": frozenset(("Conv",)),
    "dense": frozenset(("Gemm", "MatMul")),
    "matmul": frozenset(("MatMul",)),
    "max_pool": frozenset(("MaxPool",)),
    "average_pool": frozenset(("AveragePool", "GlobalAveragePool", "ReduceMean")),
    "add": frozenset(("Add",)),
    "elementwise": frozenset(
        ("Relu", "Clip", *(k.activation.onnx for k in STEP_KINDS.values() if k.activation))
    ),
}
"""ONNX types that the first operator of a group may have, by the kind of call (`CallOperator`)."""
AS_ASKED = "kept in floating point, as requested"
"""Reason that is shown for an operator that stays in floating point because the user requested
it."""


@dataclass(frozen=True)
class Group:
    """Operators that become one int8 layer.

    Attributes:
        nodes: names of the operators in execution order. The first one is the anchor, such as the
            convolution.
        operands: activations that the anchor reads.
        output: the activation that the group writes.
        weight: the constant by which the anchor multiplies; None if the anchor has no weights.
        biases: (operator, input index) of each constant that is added per channel.
        residual: activation that is added to the accumulators; None if there is none.
        keeps_scale: True if the output has to have the scale of the input, as for a max-pool.
        counts_alike: True if the accumulators of all channels need the same scale, so that the
            weights cannot have one scale per channel.
    """

    nodes: tuple[str, ...]
    operands: tuple[str, ...]
    output: str
    weight: str | None = None
    biases: tuple[tuple[str, int], ...] = ()
    residual: str | None = None
    keeps_scale: bool = False
    counts_alike: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """The int8 activations that the group reads and writes."""
        extra = () if self.residual is None else (self.residual,)
        return (*self.operands, *extra, self.output)


@dataclass(frozen=True)
class QuantisationPlan:
    """Selection of the operators of a model that become int8.

    Attributes:
        groups: the int8 layers.
        moves: names of operators that move int8 data between layers.
        tensors: names of the int8 activations.
        kept: reason why an operator stays in float, by operator name. It contains convolutions,
            matrix products and operators that the user selected.
    """

    groups: tuple[Group, ...]
    moves: tuple[str, ...]
    tensors: frozenset[str]
    kept: Mapping[str, str]

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Names of the operators that read and write int8."""
        return frozenset((*self.moves, *(name for group in self.groups for name in group.nodes)))


def plan_layers(
    normal: NormalGraph, calls: Collection[FusedCall], keep_float: Collection[str]
) -> QuantisationPlan:
    """Plan which operators of a folded float model become int8.

    Args:
        normal: the model.
        calls: the fused calls that the importer found in the model.
        keep_float: names of operators that stay in float. A group that contains such an operator
            stays in float completely.

    Returns:
        The plan.

    Raises:
        UnknownName: the model does not have an operator in `keep_float`.
    """
    return _Planner(normal, keep_float).plan(calls)


class _NoGroup(Exception):
    """Raised if the operators of a fused call stay in float. The message states the reason."""


class _Planner:
    """Decides which fused calls of a folded float model become int8 layers.

    Args:
        normal: the model.
        keep_float: names of operators that stay in float.
    """

    def __init__(self, normal: NormalGraph, keep_float: Collection[str]) -> None:
        self._normal = normal
        self._nodes = {node.name: node for node in normal.graph.node}
        self._constants = set(normal.tensors())
        self._types, self._shapes = normal.types(), normal.shapes()
        self._floats = _present_names(normal, keep_float)
        self._kept: dict[str, str] = {}

    def plan(self, calls: Collection[FusedCall]) -> QuantisationPlan:
        groups: dict[str, Group] = {}
        dependent_groups: dict[str, Group] = {}
        for call in calls:
            products = call.operator in (*PRODUCTS, "matmul")
            try:
                (groups if products else dependent_groups)[call.node] = self._group(call)
            except _NoGroup as why:
                if products or str(why) == AS_ASKED:
                    self._kept[call.node] = str(why)
        taken = {name for group in groups.values() for name in group.nodes}
        images = [i.name for i in data_inputs(self._normal.model)]
        reached = {name for name in images if self._is_float(name) and self._is_image(name)}
        reached.update(name for group in groups.values() for name in group.tensors)
        moves = self._follow(groups, dependent_groups, taken, reached)
        tensors = {name for group in groups.values() for name in group.tensors}
        for name in moves:
            tensors.update((*self._data_inputs(self._nodes[name]), self._nodes[name].output[0]))
        ordered = (groups[node.name] for node in self._normal.graph.node if node.name in groups)
        return QuantisationPlan(tuple(ordered), moves, frozenset(tensors), self._kept)

    def _group(self, call: FusedCall) -> Group:
        """Return the operators of a fused call that become one int8 layer.

        Args:
            call: the fused call.

        Raises:
            _NoGroup: the operators have to stay in float.
        """
        anchor = self._nodes.get(call.node)
        if anchor is None or anchor.op_type not in ANCHORS[call.operator]:
            raise _NoGroup("it is not a convolution or matrix product of a supported kind")
        value, weighted = anchor.output[0], call.operator in PRODUCTS
        if not self._is_float(value) or (call.operator == "average_pool" and _is_ragged(call)):
            raise _NoGroup("it is not a product of float32 tensors")
        nodes, biases, residual = [anchor.name], [], None
        activation = any(step.kind == "activation" for step in call.steps)
        if weighted:
            self._check_product(anchor)
            biases += [(anchor.name, 2)] if len(anchor.input) > 2 and anchor.input[2] else []
        for step in call.steps:
            node = self._nodes[step.node]
            if node is anchor:
                if step.kind == "add" and weighted:
                    raise _NoGroup(
                        "its bias is not constant, or does not have one value per channel"
                    )
                continue
            index = 1 - list(node.input).index(value)
            if step.kind == "add" and node.input[index] in self._constants:
                break  # a constant of the output's shape is neither a bias nor an activation
            if step.kind == "bias":
                biases.append((node.name, index))
            elif step.kind == "add":
                residual = node.input[index]
            nodes.append(node.name)
            value = node.output[0]
        if self._floats & set(nodes):
            raise _NoGroup(AS_ASKED)
        if any(self._nodes[name].input[index] not in self._constants for name, index in biases):
            raise _NoGroup("its bias is computed while the model runs")
        operands = anchor.input[: 2 if call.operator in ("add", "matmul") else 1]
        return Group(
            tuple(nodes), tuple(operands), value, anchor.input[1] if weighted else None,
            tuple(biases), residual, keeps_scale=call.operator == "max_pool",
            counts_alike=residual is not None or activation,
        )  # fmt: skip

    def _check_product(self, anchor: onnx.NodeProto) -> None:
        if anchor.input[1] not in self._constants:
            raise _NoGroup("its weights are computed while the model runs")
        if any(attribute(anchor, name, 1.0) != 1.0 for name in ("alpha", "beta")):
            raise _NoGroup("it scales operands that are computed while the model runs")

    def _follow(
        self,
        groups: dict[str, Group],
        candidates: Mapping[str, Group],
        taken: set[str],
        reached: set[str],
    ) -> tuple[str, ...]:
        """Move groups to int8 whose inputs are all int8 already.

        Args:
            groups: the int8 groups, by the name of their first operator. The function adds
                candidates to them.
            candidates: groups that become int8 only if their inputs are int8 anyway, by the name of
                their first operator.
            taken: names of the operators in `groups`. The function extends it.
            reached: names of the int8 tensors. The function extends it.

        Returns:
            Names of the data-movement operators through which int8 data reach a group.
        """
        moving = []
        for node in self._normal.graph.node:
            other = candidates.get(node.name)
            if other is not None and reached.issuperset(other.operands):
                if not taken & set(other.nodes):
                    groups[node.name] = other
                    taken.update(other.nodes)
                    reached.update(other.tensors)
            elif node.op_type in MOVES and reached.issuperset(self._data_inputs(node)):
                if node.name in self._floats:
                    self._kept[node.name] = AS_ASKED
                else:
                    moving.append(node)
                    reached.add(node.output[0])
        wanted = {name for group in groups.values() for name in group.tensors}
        moves = []
        # Keep only the moves through which int8 data reach a group.
        for node in reversed(moving):
            if node.output[0] in wanted:
                moves.append(node.name)
                wanted.update(self._data_inputs(node))
        return tuple(reversed(moves))

    def _data_inputs(self, node: onnx.NodeProto) -> list[str]:
        """Return the inputs of a data-movement operator that carry data, not shapes."""
        return list(node.input) if node.op_type == "Concat" else list(node.input[:1])

    def _is_float(self, tensor: str) -> bool:
        return self._types.get(tensor) == int(TensorProto.FLOAT)

    def _is_image(self, tensor: str) -> bool:
        """Return whether a tensor of the model is an image, that is, has four dimensions.

        A sequence with three dimensions that is only read by Unsqueeze counts as an image of height
        1.

        Args:
            tensor: name of the tensor.
        """
        readers = [node for node in self._normal.graph.node if tensor in node.input]
        is_sequence = self._rank(tensor) == 3 and {node.op_type for node in readers} == {
            "Unsqueeze"
        }
        return is_sequence or self._rank(tensor) == 4

    def _rank(self, tensor: str) -> int:
        return len(self._shapes.get(tensor, ()))


def _is_ragged(call: FusedCall) -> bool:
    """Return whether an average pool divides by fewer pixels at the image border than elsewhere.

    This is the case if it has padding that it does not count.
    """
    return any(call.padding) and not call.count_include_pad


def _present_names(normal: NormalGraph, names: Collection[str]) -> set[str]:
    """Return the operators of the normalised model that compute the named operators.

    Args:
        normal: the normalised model.
        names: operator names of the original model.

    Returns:
        The names. For an operator that normalisation merged into another one, the name of the other
        one.

    Raises:
        UnknownName: the model does not have one of the operators.
    """
    writers = {output: node.name for node in normal.graph.node for output in node.output}
    takers = {operator.name: writers.get(operator.outputs[0], "") for operator in normal.operators}
    takers.update({name: absorbed.into or "" for name, absorbed in normal.absorbed.items()})
    takers.update({node.name: node.name for node in normal.graph.node})
    for name in names:
        if name not in takers:
            raise UnknownName("layer", name, sorted(takers))
    return {takers[name] for name in names}
