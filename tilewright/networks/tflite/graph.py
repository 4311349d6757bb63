"""Collect the nodes and constants of an ONNX graph under readable and unique names."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.core.user_text import printable
from tilewright.networks.onnx.files import node_reads


class GraphBuilder:
    """Builder of an ONNX graph that collects nodes and constants.

    Tensors and nodes have separate namespaces, so a node may have the same name as a tensor.

    Args:
        outer: builder of the surrounding graph, if this graph is an attribute of one of its nodes.
            An inner graph reads tensors of the surrounding graph by name, so both graphs share
            their namespaces.

    Attributes:
        tensor_names: names of tensors that are taken.
        node_names: names of nodes that are taken.
        nodes: the nodes in execution order.
    """

    def __init__(self, outer: GraphBuilder | None = None) -> None:
        self.tensor_names: Names = Names() if outer is None else outer.tensor_names
        self.node_names: Names = Names() if outer is None else outer.node_names
        self.nodes: list[onnx.NodeProto] = []
        # Nodes whose results have temporary names, by result.
        self._unnamed: dict[str, onnx.NodeProto] = {}
        self._constants: dict[str, onnx.TensorProto] = {}
        # Names of stored constants, by prefix and content.
        self._same: dict[tuple[object, ...], str] = {}

    def constant(self, name: str, values: NDArray[Any] | np.generic) -> str:
        """Add a constant and return its name. Equal constants with the same prefix are stored once.

        Args:
            name: prefix of the name.
            values: array of any shape.
        """
        array = np.asarray(values)
        native = array.astype(array.dtype.newbyteorder("="))  # a contiguous copy
        key = (name, native.dtype.str, native.shape, hashlib.sha256(native.tobytes()).digest())
        if key not in self._same:
            free = self._same[key] = self.tensor_names.take_free_name(name or "constant")
            self._constants[free] = numpy_helper.from_array(native, free)
        return self._same[key]

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node with one result and return the name of the result.

        Args:
            op: ONNX operator type.
            inputs: names of the input tensors.
            name: prefix of the names of the node and of its result.
            **attributes: attributes of the node.
        """
        return self.results_of(op, inputs, name, 1, **attributes)[0]

    def results_of(
        self, op: str, inputs: Sequence[str], name: str, count: int, **attributes: Any
    ) -> list[str]:
        """Add a node with several results, and return the names of the results.

        Args:
            op: ONNX operator type.
            inputs: names of the input tensors.
            name: prefix of the node's name.
            count: number of results.
            **attributes: attributes of the node.
        """
        if op == "Reshape" and self._has_zero(inputs[1]):
            attributes["allowzero"] = 1  # otherwise a size of 0 copies the input's size
        if op == "Transpose" and not attributes["perm"]:
            op, attributes = "Identity", {}  # ONNX cannot transpose a scalar
        results = [self.tensor_names.take_free_name(f"{name}/result") for _ in range(count)]
        node = helper.make_node(op, list(inputs), results, **attributes)
        self.append(node, name)
        self._unnamed |= dict.fromkeys(results, node)
        return results

    def _has_zero(self, name: str) -> bool:
        tensor = self._constants.get(name)
        return tensor is not None and not numpy_helper.to_array(tensor).all()

    def append(self, node: onnx.NodeProto, name: str) -> None:
        """Add a node to the graph.

        Args:
            node: the node.
            name: prefix of its name; a number is added if the name is taken.
        """
        node.name = self.node_names.take_free_name(printable(name))
        self.nodes.append(node)

    def is_unnamed(self, result: str) -> bool:
        """Return whether a node's result still has the temporary name that `results_of` gave it.

        Args:
            result: name of the result.
        """
        return result in self._unnamed

    def rename(self, result: str, name: str) -> None:
        """Rename the result of a node. No other node may read the result yet.

        Args:
            result: current name of the result.
            name: new name.
        """
        node = self._unnamed.pop(result)
        node.output[list(node.output).index(result)] = name

    def rename_nodes(self, name: str, first: int) -> None:
        """Give other names to the nodes with a given name, so that the name becomes free.

        Args:
            name: the name.
            first: index of the first node that is considered.
        """
        for node in self.nodes[first:]:
            if node.name == name:
                node.name = self.node_names.take_free_name(f"{name}/given up")
                self.node_names.release(name)

    def drop(self, results: Collection[str], first: int) -> None:
        """Remove the nodes that compute some results.

        Args:
            results: names of the results.
            first: index of the first node that is considered.
        """
        kept = [node for node in self.nodes[first:] if set(results).isdisjoint(node.output)]
        self.nodes[first:] = kept

    def needed_nodes(self, results: Collection[str]) -> list[onnx.NodeProto]:
        """Return the nodes on which the tensors in `results` depend, in execution order."""
        wanted, needed = set(results), []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.output):
                needed.append(node)
                wanted.update(node_reads(node))
        return needed[::-1]

    def constants(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.TensorProto]:
        """Return the constants that the given nodes read."""
        read = {name for node in nodes for name in node_reads(node)}
        return [tensor for name, tensor in self._constants.items() if name in read]


PREFERRED: Mapping[str, tuple[str, ...]] = {
    "CONV_2D": ("conv2d", "conv1d", "conv"),
    "DEPTHWISE_CONV_2D": ("depthwise", "conv"),
    "FULLY_CONNECTED": ("matmul", "dense", "fc"),
    "TRANSPOSE_CONV": ("conv2d_transpose", "conv_transpose"),
    "ADD": ("add",),
    "MUL": ("mul",),
    "SUB": ("sub",),
}
"""Typical endings of the layer names of frameworks, by the kind of operator. They identify the
operator's own name among the joined names of fused layers."""

KERNELS = frozenset((
    "add", "avgpool", "biasadd", "clipbyvalue", "concat", "conv", "conv2d", "depthwise", "matmul",
    "maxpool", "mean", "mul", "relu", "relu6", "reshape", "resource", "readvariableop", "sigmoid",
    "softmax", "sub", "tanh",
))  # fmt: skip
"""Last components of layer names that only state what the layer computes. They are removed from the
name."""

RESULTS = frozenset(("identity", "identity_int", "statefulpartitionedcall"))
"""Names that converters give to the results of a network, whichever operator computes them."""


def operator_names(operators: Sequence[tuple[str, str, str]]) -> list[str]:
    """Derive readable operator names from the names of their tensors.

    TensorFlow Lite operators have no names, but tensor names contain the names of the framework's
    layers. If all names with a path begin with the same component, this component is removed.

    Args:
        operators: (kind, name of the first output, name of the weights or "") of each operator.

    Returns:
        One name per operator. The names need not be unique.
    """
    names = [_layer(kind, output, weight) for kind, output, weight in operators]
    scoped = [name.partition("/") for name in names]
    scopes = {scope for scope, slash, _ in scoped if slash}
    if len(scopes) == 1:
        names = [rest or scope for scope, _, rest in scoped]
    return names


def _layer(kind: str, output: str, weight: str) -> str:
    """Derive the name of the layer to which an operator belongs from the names of its tensors.

    If layers are fused, the output's name joins the names of all fused layers with semicolons. The
    name that belongs to this operator is chosen.

    Args:
        kind: kind of the operator.
        output: name of the operator's first output.
        weight: name of the operator's weights; "" if it has none.
    """
    parts = [part for name in (weight, output) for part in name.split(";") if part]
    first = output.split(";")[0]
    chosen = kind.lower() if not first or _word(first).split(":")[0] in RESULTS else first
    words = PREFERRED.get(kind, ())
    preferred = [part for word in words for part in parts if _word(part).endswith(word)]
    chosen = (preferred or [chosen])[0]
    path, slash, _ = chosen.rpartition("/")
    return path if slash and _word(chosen) in KERNELS else chosen


def _word(name: str) -> str:
    """Return the last component of a path-like tensor name, in lower case and without a number."""
    return name.rpartition("/")[2].rstrip("0123456789_").lower()


class Names:
    """Set of names that are already used."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def take_free_name(self, name: str) -> str:
        """Mark a name as taken, and return it.

        Args:
            name: preferred name. If it is already taken, a number is appended.
        """
        free = name
        while free in self._taken:
            self._taken[name] += 1
            free = f"{name}.{self._taken[name]}"
        self._taken[free] = 1
        return free

    def release(self, name: str) -> None:
        """Make a name available again."""
        self._taken.pop(name, None)
