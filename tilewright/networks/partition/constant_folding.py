"""Computes operators of constants alone with onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import helper, numpy_helper

from tilewright.core.lazy_module import lazy_module
from tilewright.networks.onnx.files import COMPUTABLE, is_stub, node_reads, stub
from tilewright.networks.onnx.graph import Absorbed, NormalGraph
from tilewright.networks.onnxruntime_options import failures, quiet_options
from tilewright.networks.partition.supported_forms import STORED

onnxruntime = lazy_module("onnxruntime")

RANDOM = frozenset((
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
))  # fmt: skip
MOST_ELEMENTS = 1 << 26
"""Of a constant that is computed while a model is read."""
FOLDED = "computed once by onnxruntime, from constants alone"


def fold_constants(normal: NormalGraph, reasons: Mapping[str, str]) -> bool:
    """Fold the operators of constants alone, in place: a region without inputs would compute the
    same at each inference, and other operators are known by whether their inputs are constant.
    Operators that the importer reads weights through stay, if they are compiled. Without the data
    of weights, the results have none either.

    Args:
        normal: the graph.
        reasons: why operators are not compiled, by name.

    Returns:
        Whether an operator was folded.
    """
    tensors, shapes, types = normal.tensors(), normal.shapes(), normal.types()
    outputs = {info.name for info in normal.graph.output}
    nodes: list[onnx.NodeProto] = []
    written: dict[str, onnx.NodeProto] = {}
    for node in normal.graph.node:
        reads = set(node_reads(node))
        results = [name for name in node.output if name]
        constant = reads <= tensors.keys() | written.keys() and node.op_type not in RANDOM
        known = all(name in shapes and types.get(name) in COMPUTABLE for name in results)
        small = known and all(math.prod(shapes[name]) <= MOST_ELEMENTS for name in results)
        stored = node.op_type in STORED and node.name not in reasons
        kept = stored and reads.isdisjoint(written)
        inside = outputs.isdisjoint(results)
        if constant and reads and small and inside and not kept:
            nodes.append(node)
            written |= dict.fromkeys(results, node)
    if not nodes:
        return False
    read = {name for node in nodes for name in node_reads(node)} & tensors.keys()
    if any(is_stub(tensors[name]) for name in read):
        made = [stub(name, shapes[name], types[name]) for name in written]
    else:
        made = _computed(normal, nodes, [tensors[name] for name in sorted(read)], list(written))
    if not made:
        return False
    for tensor in made:
        normal.add_tensor(tensor)
    names = {node.name for node in nodes}
    normal.remove(names, Absorbed(None, FOLDED))
    return True


def _computed(
    normal: NormalGraph, nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto],
    written: list[str],
) -> list[onnx.TensorProto]:  # fmt: skip
    """Return the results of nodes as tensors; none where onnxruntime does not run them."""
    outputs = [onnx.ValueInfoProto(name=name) for name in written]
    graph = helper.make_graph(nodes, "constants", [], outputs, tensors)
    model = helper.make_model(
        graph, opset_imports=normal.model.opset_import, ir_version=normal.model.ir_version
    )
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
        )
        values = session.run(written, {})
    except failures():
        return []
    return [
        numpy_helper.from_array(value, name) for name, value in zip(written, values, strict=True)
    ]
