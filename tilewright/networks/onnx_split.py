"""Splits a model where operators cannot be imported: a head to compile, a tail for onnxruntime.

The tail has those operators and all that read their results. So shapes that only a running model
knows, as behind NonMaxSuppression, never reach the compiler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, shape_inference

from tilewright.networks.graph import data_inputs, static_shape
from tilewright.networks.imported_model import seeded_inputs
from tilewright.networks.normalise import named_copy
from tilewright.networks.quantise.session import runs


@dataclass(frozen=True, eq=False)
class OnnxTail:
    """What onnxruntime runs behind the compiled part. `model` reads tensors of the network's inputs
    and of the head's outputs; `operators` are its (name, type), `whole` the network."""

    model: onnx.ModelProto
    operators: tuple[tuple[str, str], ...]
    whole: onnx.ModelProto

    def seeded_inputs(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """As `imported_model.seeded_inputs`, in the shapes of the network's inputs."""
        kinds = {
            info.name: (
                static_shape(info) or (),
                helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name,
            )
            for info in data_inputs(self.whole)
        }
        return seeded_inputs(kinds, seed)

    def output_shape(self, name: str) -> tuple[int, ...]:
        """The sizes of one of the network's outputs, −1 where only a running model knows."""
        info = next(each for each in self.whole.graph.output if each.name == name)
        kind = info.type.tensor_type
        return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)

    def reference(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What onnxruntime gives for the whole network: arrays by name in, in the shapes of its
        inputs, by output name out."""
        outputs = [info.name for info in self.whole.graph.output]
        return next(runs(self.whole, outputs, [inputs]))


def split(
    model: onnx.ModelProto, unsupported: Collection[str], input_shapes: Mapping[str, Sequence[int]]
) -> tuple[onnx.ModelProto, OnnxTail] | None:
    """The head of a model, and its tail from these operators on, each named as normalisation names
    it; None where nothing is left to compile, or the model has no operator of such a name."""
    copy = _inferred(named_copy(model).model, input_shapes)
    graph = copy.graph
    if not set(unsupported) <= {node.name for node in graph.node}:
        return None
    behind: set[str] = set()
    head, tail = list[onnx.NodeProto](), list[onnx.NodeProto]()
    for node in graph.node:
        if node.name in unsupported or behind.intersection(_reads(node)):
            tail.append(node)
            behind.update(node.output)
        else:
            head.append(node)
    known = {i.name: i for i in (*graph.input, *graph.value_info, *graph.output)}
    written = {name for node in head for name in node.output}
    wanted = {name for node in tail for name in _reads(node)}
    outputs = [info.name for info in graph.output]
    inputs = [info.name for info in data_inputs(copy)]
    ends = [name for name in written if name in wanted or name in outputs]
    if not ends or any(name not in known for name in ends):
        return None
    feeds = [name for name in (*inputs, *sorted(ends)) if name in wanted]
    read = {name for node in head for name in _reads(node)}
    made = _part(copy, head, [name for name in inputs if name in read], sorted(ends), known)
    rest = _part(copy, tail, feeds, [name for name in outputs if name in behind], known)
    operators = tuple((node.name, node.op_type) for node in tail)
    return made, OnnxTail(rest, operators, copy)


def _inferred(model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """With the shapes that are known when these inputs are fixed."""
    for info in data_inputs(model):
        dimensions = info.type.tensor_type.shape.dim
        for dimension, size in zip(dimensions, input_shapes.get(info.name, ()), strict=False):
            dimension.dim_value = size
    return shape_inference.infer_shapes(model, data_prop=True)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that a node reads, those that its inner graphs take from outside among them."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                yield from (name for name in _reads(inner) if name not in own)
                own.update(inner.output)


def _part(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    known: Mapping[str, onnx.ValueInfoProto],
) -> onnx.ModelProto:
    read = {name for node in nodes for name in _reads(node)} | set(outputs)
    graph = helper.make_graph(
        nodes,
        model.graph.name,
        [known[name] for name in inputs],
        [known[name] for name in outputs],
        [tensor for tensor in model.graph.initializer if tensor.name in read],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
