"""Collects the nodes and constants of an ONNX graph, each under a readable and unique name."""

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
    """Names of tensors and of nodes are told apart, so one may be called as the other is."""

    def __init__(self, outer: GraphBuilder | None = None) -> None:
        """Begin a graph, or one that lies inside a node of `outer`.

        An inner graph reads tensors of the outer one by name, so both share their names.
        """
        self.tensor_names: Names = Names() if outer is None else outer.tensor_names
        self.node_names: Names = Names() if outer is None else outer.node_names
        self.nodes: list[onnx.NodeProto] = []
        self._unnamed: dict[str, onnx.NodeProto] = {}  # results that are not renamed yet
        self._constants: dict[str, onnx.TensorProto] = {}
        self._same: dict[tuple[object, ...], str] = {}  # constants by name and content

    def constant(self, name: str, values: NDArray[Any] | np.generic) -> str:
        """A constant of any shape; returns its name, which begins with `name`. The same one is
        there once."""
        array = np.asarray(values)
        native = array.astype(array.dtype.newbyteorder("="))  # a copy, and contiguous
        key = (name, native.dtype.str, native.shape, hashlib.sha256(native.tobytes()).digest())
        if key not in self._same:
            free = self._same[key] = self.tensor_names.free(name or "constant")
            self._constants[free] = numpy_helper.from_array(native, free)
        return self._same[key]

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Add a node; returns its result's name."""
        return self.results_of(op, inputs, name, 1, **attributes)[0]

    def results_of(
        self, op: str, inputs: Sequence[str], name: str, count: int, **attributes: Any
    ) -> list[str]:
        """Add a node of several results; returns their names."""
        if op == "Reshape" and self._has_zero(inputs[1]):
            attributes["allowzero"] = 1  # a size of 0 would stand for that of the data
        if op == "Transpose" and not attributes["perm"]:
            op, attributes = "Identity", {}  # of one number, which ONNX cannot transpose
        results = [self.tensor_names.free(f"{name}/result") for _ in range(count)]
        node = helper.make_node(op, list(inputs), results, **attributes)
        self.append(node, name)
        self._unnamed |= dict.fromkeys(results, node)
        return results

    def _has_zero(self, name: str) -> bool:
        tensor = self._constants.get(name)
        return tensor is not None and not numpy_helper.to_array(tensor).all()

    def append(self, node: onnx.NodeProto, name: str) -> None:
        """Add a node; its name begins with `name`."""
        node.name = self.node_names.free(printable(name))
        self.nodes.append(node)

    def is_unnamed(self, result: str) -> bool:
        """Whether a name is that of a result nobody has renamed yet."""
        return result in self._unnamed

    def rename(self, result: str, name: str) -> None:
        """Let a result that nothing reads yet have another name."""
        node = self._unnamed.pop(result)
        node.output[list(node.output).index(result)] = name

    def rename_nodes(self, name: str, first: int) -> None:
        """Let no node from the place `first` on have a name, so that another may."""
        for node in self.nodes[first:]:
            if node.name == name:
                node.name = self.node_names.free(f"{name}/given up")
                self.node_names.release(name)

    def drop(self, results: Collection[str], first: int) -> None:
        """Remove the nodes from the place `first` on that compute any of these results."""
        kept = [node for node in self.nodes[first:] if set(results).isdisjoint(node.output)]
        self.nodes[first:] = kept

    def needed(self, results: Collection[str]) -> list[onnx.NodeProto]:
        """The nodes that results depend on, in order."""
        wanted, needed = set(results), []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.output):
                needed.append(node)
                wanted.update(node_reads(node))
        return needed[::-1]

    def constants(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.TensorProto]:
        """The constants that nodes read."""
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
"""What the framework's own name of an operator ends with, by the schema's word for its kind."""

KERNELS = frozenset((
    "add", "avgpool", "biasadd", "clipbyvalue", "concat", "conv", "conv2d", "depthwise", "matmul",
    "maxpool", "mean", "mul", "relu", "relu6", "reshape", "resource", "readvariableop", "sigmoid",
    "softmax", "sub", "tanh",
))  # fmt: skip
"""Last parts of a name that say what a layer computes, which its kind says already."""

RESULTS = frozenset(("identity", "identity_int", "statefulpartitionedcall"))
"""What a converter calls the results of a network, whatever computes them."""


def operator_names(operators: Sequence[tuple[str, str, str]]) -> list[str]:
    """Of operators, each (kind, name of its first output, that of its weights or ""), the names of
    the layers that they come from, without the scope that all have in common."""
    names = [_layer(kind, output, weight) for kind, output, weight in operators]
    scoped = [name.partition("/") for name in names]
    scopes = {scope for scope, slash, _ in scoped if slash}
    if len(scopes) == 1:
        names = [rest or scope for scope, _, rest in scoped]
    return names


def _layer(kind: str, output: str, weight: str) -> str:
    """The part of a name that speaks of the operator itself, up to the layer's own name."""
    parts = [part for name in (weight, output) for part in name.split(";") if part]
    first = output.split(";")[0]
    found = kind.lower() if not first or _word(first).split(":")[0] in RESULTS else first
    words = PREFERRED.get(kind, ())
    preferred = [part for word in words for part in parts if _word(part).endswith(word)]
    found = (preferred or [found])[0]
    path, slash, _ = found.rpartition("/")
    return path if slash and _word(found) in KERNELS else found


def _word(name: str) -> str:
    """The last part of a name, without the number at its end."""
    return name.rpartition("/")[2].rstrip("0123456789_").lower()


class Names:
    """Names that are given away once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def free(self, name: str) -> str:
        """The name, or where it is taken, the name with a number."""
        free = name
        while free in self._taken:
            self._taken[name] += 1
            free = f"{name}.{self._taken[name]}"
        self._taken[free] = 1
        return free

    def release(self, name: str) -> None:
        """Let a name be given away again."""
        self._taken.pop(name, None)
