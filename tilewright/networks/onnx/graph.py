"""A normalised ONNX graph, with a record of the operators that normalisation removed or added."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import onnx

from tilewright.networks.errors import ModelFileError
from tilewright.networks.onnx.files import MAX_TENSOR_ELEMENTS

Shape = tuple[int, ...]
"""Sizes of a tensor's dimensions, in elements."""

STANDARD_DOMAINS = ("", "ai.onnx")
"""Names of the operator domain of the ONNX standard."""


@dataclass(frozen=True)
class Operator:
    """An operator of the original graph, or an operator that normalisation added.

    Attributes:
        name: its name. An operator without a name is called `<type>_<position>`.
        op_type: its ONNX type.
        domain: its ONNX domain.
        outputs: names of its output tensors.
    """

    name: str
    op_type: str
    domain: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Absorbed:
    """Reason why normalisation removed an operator.

    Attributes:
        into: name of the operator that does its work now, None if there is none.
        note: the reason as text.
    """

    into: str | None
    note: str


@dataclass
class NormalGraph:
    """A normalised model.

    Attributes:
        model: the ONNX model.
        operators: the operators of the original graph, and the operators that normalisation added.
        absorbed: the operators that normalisation removed, by name.
        notes: remarks for the user, as sentences.
    """

    model: onnx.ModelProto
    operators: tuple[Operator, ...]
    absorbed: dict[str, Absorbed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def graph(self) -> onnx.GraphProto:
        """The model's graph. Rewrites modify it in place."""
        return self.model.graph

    def copy(self) -> NormalGraph:
        """Return a copy that can be modified independently."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return NormalGraph(model, self.operators, dict(self.absorbed), self.notes)

    def tensors(self) -> dict[str, onnx.TensorProto]:
        """Return the initializers by name."""
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def shapes(self) -> dict[str, Shape]:
        """Return the known static shapes by tensor name."""
        known = {tensor.name: tuple(tensor.dims) for tensor in self.graph.initializer}
        for info in (*self.graph.value_info, *self.graph.input, *self.graph.output):
            if (shape := static_shape(info)) is not None:
                known[info.name] = shape
        return known

    def types(self) -> dict[str, int]:
        """Return the known element types (`TensorProto.DataType`) by tensor name."""
        known = {tensor.name: int(tensor.data_type) for tensor in self.graph.initializer}
        for info in (*self.graph.value_info, *self.graph.input, *self.graph.output):
            if element_type := info.type.tensor_type.elem_type:
                known[info.name] = int(element_type)
        return known

    def users(self) -> Counter[str]:
        """Return how often each tensor is read, by operators and as a graph output."""
        counts = Counter(name for node in self.graph.node for name in node.input if name)
        counts.update(output.name for output in self.graph.output)
        return counts

    def remove(self, names: Collection[str], why: Absorbed) -> None:
        """Remove operators from the graph.

        Args:
            names: names of the operators.
            why: the reason, which is recorded for each of the operators.
        """
        self.replace_nodes([node for node in self.graph.node if node.name not in names])
        self.absorbed.update(dict.fromkeys(names, why))

    def replace_nodes(self, nodes: Collection[onnx.NodeProto]) -> None:
        """Replace all operators of the graph by `nodes`, in the given order."""
        listed = list(nodes)
        del self.graph.node[:]
        self.graph.node.extend(listed)

    def add_operator(self, node: onnx.NodeProto) -> None:
        """Record an operator that the original graph does not contain.

        The operator has to be added to the graph separately.
        """
        added = Operator(node.name, node.op_type, node.domain, tuple(node.output))
        self.operators = (*self.operators, added)

    def add_tensor(self, tensor: onnx.TensorProto) -> None:
        """Add an initializer to the graph."""
        self.graph.initializer.append(tensor)


def operators_of(model: onnx.ModelProto) -> tuple[Operator, ...]:
    """List the operators of a model.

    Args:
        model: the model, whose operators must have unique names.
    """
    return tuple(
        Operator(node.name, node.op_type, node.domain, tuple(node.output))
        for node in model.graph.node
    )


def static_shape(info: onnx.ValueInfoProto) -> Shape | None:
    """Return the shape of a tensor, or None if a dimension is unknown before inference."""
    tensor_type = info.type.tensor_type
    if not tensor_type.HasField("shape"):
        return None
    sizes = tuple(
        dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor_type.shape.dim
    )
    return None if any(size < 0 for size in sizes) else sizes


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the graph's inputs without initializers, which old exporters also list as inputs."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in fixed]


def refuse_absurd(name: str, shape: Shape) -> None:
    """Check that a tensor does not have an absurd number of elements.

    Args:
        name: name of the tensor, for the message.
        shape: shape of the tensor.

    Raises:
        ModelFileError: it has too many elements.
    """
    if math.prod(shape) > MAX_TENSOR_ELEMENTS:
        raise ModelFileError(
            f"the tensor '{name}' would have the shape {shape}, which has more than the "
            f"{MAX_TENSOR_ELEMENTS} elements that are accepted; use smaller inputs"
        )
