"""Cuts a partitioned graph into what is compiled and the models of its regions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, Shape
from tilewright.networks.graph_macs import graph_macs
from tilewright.networks.onnx_file import node_reads, nodes_in_order
from tilewright.networks.partition.regions import Cause, Region

DOMAIN, REGION = "tilewright", "Region"
"""The operator that stands for a region in the compiled part."""
REGION_NAME = "region{}"
"""Its name in the graph."""
NUMBER = "number"
"""Its attribute: the number of the region."""


@dataclass(frozen=True, eq=False)
class RegionModel:
    """A region with the model that onnxruntime runs. `operators` are its (name, type), `macs` its
    multiply-accumulates where shapes are known."""

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[tuple[str, str], ...]
    causes: tuple[Cause, ...]
    macs: int


def region_model(normal: NormalGraph, region: Region) -> RegionModel:
    """Return a region with its part of the model, weights included."""
    wanted = frozenset(region.nodes)
    nodes = [node for node in normal.graph.node if node.name in wanted]
    model = _part(normal, nodes, region.inputs, region.outputs)
    operators = tuple((node.name, node.op_type) for node in nodes)
    macs = sum(graph_macs(normal, wanted).values())
    return RegionModel(model, region.inputs, region.outputs, operators, region.causes, macs)


def without_last(normal: NormalGraph, regions: Iterable[Region]) -> onnx.ModelProto | None:
    """Return the model without the regions that run last: what they read becomes its outputs.

    Args:
        normal: the whole graph.
        regions: its regions that run last.

    Returns:
        None if nothing is left.
    """
    gone = {name for region in regions for name in region.nodes}
    nodes = [node for node in normal.graph.node if node.name not in gone]
    if not nodes:
        return None
    written = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for region in regions for name in region.inputs)
    own = [info.name for info in normal.graph.output if info.name in written]
    outputs = [*own, *(name for name in read if name in written and name not in own)]
    reads = {name for node in nodes for name in node_reads(node)}
    inputs = [info.name for info in normal.graph.input if info.name in reads]
    return _part(normal, nodes, inputs, outputs)


def collapse(normal: NormalGraph, regions: Sequence[Region]) -> NormalGraph:
    """Return a copy of a graph in which one operator stands for each region."""
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
    """Return some nodes as a model with these inputs and outputs."""
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
        infos[name] = onnx.ValueInfoProto(name=name)  # onnxruntime infers what nothing states
    infos |= {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    return infos


def _constant_info(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    shape: Shape = tuple(tensor.dims)
    return helper.make_tensor_value_info(tensor.name, tensor.data_type or TensorProto.FLOAT, shape)
