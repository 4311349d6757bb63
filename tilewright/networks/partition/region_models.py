"""Cut a partitioned graph into the part that TVM compiles and one ONNX model per region.

A region is a group of operators that onnxruntime runs. In the compiled part, a single operator
represents a region and calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tilewright.networks.macs import graph_macs
from tilewright.networks.model_runner import ModelRunner
from tilewright.networks.onnx.files import (
    has_undrawable_inputs,
    lone_integers,
    node_reads,
    nodes_in_order,
)
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, NormalGraph, Shape, data_inputs
from tilewright.networks.partition.regions import Cause, Region
from tilewright.networks.sample_values import TEXT, seeded_inputs

DOMAIN, REGION = "tilewright", "Region"
"""Domain and type of an operator that stands for a region in the graph of the compiled part. A
region is a group of operators that onnxruntime runs."""
REGION_NAME = "region{}"
"""Format of the name of the operator that stands for a region. It contains the number of the
region."""
NUMBER = "number"
"""Attribute with the number of the region, of the operator that stands for the region."""


@dataclass(frozen=True, eq=False)
class RegionModel:
    """A region (a group of operators that onnxruntime runs) with its ONNX model.

    Attributes:
        model: the ONNX model.
        inputs: names of the tensors that it reads.
        outputs: names of the tensors that it writes.
        operators: (name, ONNX type) of its operators.
        causes: those operators of the region that TVM cannot compile, with reasons.
        macs: multiply-accumulates of the operators whose shapes are known.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[tuple[str, str], ...]
    causes: tuple[Cause, ...]
    macs: int


def region_model(normal: NormalGraph, region: Region) -> RegionModel:
    """Return the ONNX model of a region: the operators that onnxruntime runs, with their weights.

    Args:
        normal: the whole graph.
        region: the region.
    """
    wanted = frozenset(region.nodes)
    nodes = [node for node in normal.graph.node if node.name in wanted]
    model = _part(normal, nodes, region.inputs, region.outputs)
    operators = tuple((node.name, node.op_type) for node in nodes)
    macs = sum(graph_macs(normal, wanted).values())
    return RegionModel(model, region.inputs, region.outputs, operators, region.causes, macs)


def without_last(normal: NormalGraph, regions: Iterable[Region]) -> onnx.ModelProto | None:
    """Return the model without the regions that onnxruntime runs after all compiled code.

    The tensors that these regions read become outputs.

    Args:
        normal: the whole graph.
        regions: the regions to remove.

    Returns:
        The model, or None if nothing remains.
    """
    gone = {name for region in regions for name in region.nodes}
    nodes = [node for node in normal.graph.node if node.name not in gone]
    if not nodes:
        return None
    written = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for region in regions for name in region.inputs)
    kept_outputs = [info.name for info in normal.graph.output if info.name in written]
    outputs = [
        *kept_outputs,
        *(name for name in read if name in written and name not in kept_outputs),
    ]
    reads = {name for node in nodes for name in node_reads(node)}
    inputs = [info.name for info in normal.graph.input if info.name in reads]
    return _part(normal, nodes, inputs, outputs)


def collapse(normal: NormalGraph, regions: Sequence[Region]) -> NormalGraph:
    """Return a copy of a graph in which each onnxruntime region is replaced by one operator.

    Args:
        normal: the graph.
        regions: the regions to replace, in the order of their numbers.
    """
    if not regions:
        return normal
    owner = {name: number for number, region in enumerate(regions) for name in region.nodes}
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        if node.name not in owner:
            nodes.append(node)
            continue
        number = owner[node.name]
        region = regions[number]
        if node.name == region.nodes[0]:
            nodes.append(
                helper.make_node(
                    REGION, list(region.inputs), list(region.outputs), domain=DOMAIN,
                    name=REGION_NAME.format(number), **{NUMBER: number},
                )
            )  # fmt: skip
    outputs = [info.name for info in normal.graph.output]
    inputs = [info.name for info in normal.graph.input]
    model = _part(normal, nodes_in_order(nodes), inputs, outputs)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return NormalGraph(model, normal.operators, dict(normal.absorbed), normal.notes)


def _part(
    normal: NormalGraph, nodes: Sequence[onnx.NodeProto], inputs: Collection[str],
    outputs: Collection[str],
) -> onnx.ModelProto:  # fmt: skip
    """Return a model that consists of some nodes of a graph.

    Args:
        normal: the graph.
        nodes: the nodes.
        inputs: names of the model's inputs.
        outputs: names of the model's outputs.
    """
    source = normal.model
    reads = {name for node in nodes for name in node_reads(node)} | set(outputs)
    touched = reads | {name for node in nodes for name in node.output}
    infos = _infos(normal)
    graph = helper.make_graph(
        nodes,
        source.graph.name or "network",
        [infos[name] for name in inputs],
        [infos[name] for name in outputs],
        [tensor for tensor in source.graph.initializer if tensor.name in reads],
        value_info=[info for info in source.graph.value_info if info.name in touched],
    )
    used = {node.domain for node in nodes}
    return helper.make_model(
        graph,
        opset_imports=[o for o in source.opset_import if o.domain in used | {*STANDARD_DOMAINS}],
        ir_version=source.ir_version,
    )


def _infos(normal: NormalGraph) -> Mapping[str, onnx.ValueInfoProto]:
    graph = normal.graph
    infos = {t.name: _constant_info(t) for t in graph.initializer}
    for name in (name for node in graph.node for name in node.output if name):
        infos[name] = onnx.ValueInfoProto(name=name)  # onnxruntime infers unknown types
    infos |= {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    return infos


def _constant_info(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    shape: Shape = tuple(tensor.dims)
    return helper.make_tensor_value_info(tensor.name, tensor.data_type or TensorProto.FLOAT, shape)


@dataclass(frozen=True, eq=False)
class LastRegions:
    """The regions of a network that onnxruntime runs after all compiled code.

    Attributes:
        regions: the regions.
        whole: the whole network with static input shapes.
        halves: names of outputs that are float16 in the model file but float32 in `whole`.
    """

    regions: tuple[RegionModel, ...]
    whole: onnx.ModelProto
    halves: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs of the network, in the model's order."""
        return data_inputs(self.whole)

    def seeded_inputs(self, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Draw random inputs of the network.

        Args:
            seed: seed of the random generator.

        Returns:
            Arrays by input name, as `sample_values.seeded_inputs` draws them.
        """
        kinds = {
            info.name: (self.shape_of(info), self.dtype_of(info))
            for info in self.inputs
            if not self.container_of(info)
        }
        return seeded_inputs(kinds, seed)

    def shape_of(self, info: onnx.ValueInfoProto) -> tuple[int, ...]:
        """Return the shape of an input or output of the network.

        Args:
            info: the input or output.

        Returns:
            The shape, with −1 for a size that depends on values of tensors.
        """
        dimensions = info.type.tensor_type.shape.dim
        return tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dimensions)

    def dtype_of(self, info: onnx.ValueInfoProto) -> str:
        """Return the NumPy name of the element type of an input or output.

        Args:
            info: the input or output.

        Returns:
            The name; "str" for text.
        """
        kind = info.type.tensor_type.elem_type
        return TEXT if kind == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(kind).name

    def empty_outputs(self) -> dict[str, NDArray[Any]]:
        """Return empty arrays with the element types and ranks of the tensor outputs, by name.

        The array of an output of unknown rank has rank 0.
        """
        arrays = {}
        for info in self.tensors:
            kind = self.dtype_of(info) if info.type.tensor_type.elem_type else "float32"
            rank = len(self.output_shape(info.name) or ())
            arrays[info.name] = np.empty((0,) * rank, object if kind == TEXT else kind)
        return arrays

    def output_shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an output of the network.

        Args:
            name: name of the output.

        Returns:
            The shape, or None if the number of dimensions is unknown.
        """
        info = next(output for output in self.whole.graph.output if output.name == name)
        return self.shape_of(info) if info.type.tensor_type.HasField("shape") else None

    @cached_property
    def reference(self) -> Callable[[Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
        """Function that runs the whole network in onnxruntime.

        It takes input arrays by name, and returns output arrays by name.
        """
        return ModelRunner(self.whole, [info.name for info in self.tensors])

    @property
    def constants(self) -> tuple[int, ...]:
        """Single-element integer constants of the network, candidates for input values."""
        return lone_integers(self.whole)

    @property
    def tensors(self) -> list[onnx.ValueInfoProto]:
        """The outputs that are tensors; sequences, maps and optional values are left out."""
        return [info for info in self.whole.graph.output if not self.container_of(info)]

    @property
    def is_undrawable(self) -> bool:
        """True if random inputs cannot be drawn for this network."""
        return has_undrawable_inputs(self.whole)

    def container_of(self, info: onnx.ValueInfoProto) -> str:
        """Return the container type of an input or output, such as "sequence"; "" for a tensor."""
        kind = str(info.type.WhichOneof("value") or "tensor_type").removesuffix("_type")
        return "" if kind == "tensor" else kind
