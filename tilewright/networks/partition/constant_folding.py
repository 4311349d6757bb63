"""Constant folding: evaluates operators that depend only on constants, with onnxruntime."""

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
"""Operators with random results. They are not folded."""
MOST_ELEMENTS = 1 << 26
"""Maximum number of elements of a constant that folding may create."""
FOLDED = "computed in advance by onnxruntime, from constants only"
"""Reason that is shown for an operator that was folded."""


def fold_constants(normal: NormalGraph, reasons: Mapping[str, str]) -> bool:
    """Fold operators whose inputs are all constants, in place.

    There are two reasons for folding: a region (a part that onnxruntime runs) without inputs would
    compute the same result at each inference, and TVM's importer compiles some operators
    differently if their inputs are constants. Operators through which the importer reads weights
    (`STORED`) are not folded if they are compiled. If the weights are stubs without data, the
    results are stubs as well.

    Args:
        normal: the graph.
        reasons: reason why an operator is not compiled, by operator name.

    Returns:
        True if an operator was folded.
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
        is_internal = outputs.isdisjoint(results)
        if constant and reads and small and is_internal and not kept:
            nodes.append(node)
            written |= dict.fromkeys(results, node)
    if not nodes:
        return False
    read = {name for node in nodes for name in node_reads(node)} & tensors.keys()
    if any(is_stub(tensors[name]) for name in read):
        tensors_made = [stub(name, shapes[name], types[name]) for name in written]
    else:
        tensors_made = _compute_constants(
            normal, nodes, [tensors[name] for name in sorted(read)], list(written)
        )
    if not tensors_made:
        return False
    for tensor in tensors_made:
        normal.add_tensor(tensor)
    names = {node.name for node in nodes}
    normal.remove(names, Absorbed(None, FOLDED))
    return True


def _compute_constants(
    normal: NormalGraph, nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto],
    written: list[str],
) -> list[onnx.TensorProto]:  # fmt: skip
    """Run operators in onnxruntime and return their results as constants.

    Args:
        normal: the graph.
        nodes: the operators, which depend only on constants.
        tensors: the constants that they read.
        written: names of the results to return.

    Returns:
        The results, or an empty list if onnxruntime cannot run the operators.
    """
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
