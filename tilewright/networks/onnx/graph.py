"""Holds a normalised ONNX graph and the origin of its operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import onnx

from tilewright.networks.errors import ModelFileError
from tilewright.networks.onnx.files import MAX_TENSOR_ELEMENTS

Shape = tuple[int, ...]

STANDARD_DOMAINS = ("", "ai.onnx")
"""What an operator of the ONNX standard gives as its domain."""


@dataclass(frozen=True)
class Operator:
    """An operator of the original graph; an unnamed one is called `<type>_<position>`."""

    name: str
    op_type: str
    domain: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Absorbed:
    """What became of an operator that normalisation removed; `into` names the one that took it."""

    into: str | None
    note: str


@dataclass
class NormalGraph:
    """A normalised model, the operators the original had and those that were written in their
    place, what became of those now gone, and what else to know, in sentences."""

    model: onnx.ModelProto
    operators: tuple[Operator, ...]
    absorbed: dict[str, Absorbed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def graph(self) -> onnx.GraphProto:
        """The model's graph, to be changed in place."""
        return self.model.graph

    def copy(self) -> NormalGraph:
        """Return a copy that can be changed."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return NormalGraph(model, self.operators, dict(self.absorbed), self.notes)

    def tensors(self) -> dict[str, onnx.TensorProto]:
        """The initializers by name."""
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def shapes(self) -> dict[str, Shape]:
        """Every static shape that is known."""
        known = {tensor.name: tuple(tensor.dims) for tensor in self.graph.initializer}
        for info in (*self.graph.value_info, *self.graph.input, *self.graph.output):
            if (shape := static_shape(info)) is not None:
                known[info.name] = shape
        return known

    def types(self) -> dict[str, int]:
        """Every element type that is known, a `TensorProto.DataType`."""
        known = {tensor.name: int(tensor.data_type) for tensor in self.graph.initializer}
        for info in (*self.graph.value_info, *self.graph.input, *self.graph.output):
            if kind := info.type.tensor_type.elem_type:
                known[info.name] = int(kind)
        return known

    def users(self) -> Counter[str]:
        """How many operator inputs and graph outputs read each tensor."""
        found = Counter(name for node in self.graph.node for name in node.input if name)
        found.update(output.name for output in self.graph.output)
        return found

    def remove(self, names: Collection[str], why: Absorbed) -> None:
        """Take operators out of the graph and note what became of them."""
        self.replace_nodes([node for node in self.graph.node if node.name not in names])
        self.absorbed.update(dict.fromkeys(names, why))

    def replace_nodes(self, nodes: Collection[onnx.NodeProto]) -> None:
        """Give the graph these operators, in this order."""
        listed = list(nodes)
        del self.graph.node[:]
        self.graph.node.extend(listed)

    def add_operator(self, node: onnx.NodeProto) -> None:
        """Note an operator that the original had not."""
        added = Operator(node.name, node.op_type, node.domain, tuple(node.output))
        self.operators = (*self.operators, added)

    def add_tensor(self, tensor: onnx.TensorProto) -> None:
        """Add an initializer."""
        self.graph.initializer.append(tensor)


def operators_of(model: onnx.ModelProto) -> tuple[Operator, ...]:
    """Return the operators of a model in which each has a name of its own."""
    return tuple(
        Operator(node.name, node.op_type, node.domain, tuple(node.output))
        for node in model.graph.node
    )


def static_shape(info: onnx.ValueInfoProto) -> Shape | None:
    """The shape in elements; None where a dimension is unknown before the model runs."""
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return None
    sizes = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
    return None if any(size < 0 for size in sizes) else sizes


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph's inputs that are not initializers (old exporters list both)."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in fixed]


def refuse_absurd(name: str, shape: Shape) -> None:
    """Raises `ModelFileError` where a shape would exhaust memory."""
    if math.prod(shape) > MAX_TENSOR_ELEMENTS:
        raise ModelFileError(
            f"tensor '{name}' would have the shape {shape}: more than {MAX_TENSOR_ELEMENTS} "
            "elements are refused; use smaller inputs"
        )
