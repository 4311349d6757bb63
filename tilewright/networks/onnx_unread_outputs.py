"""Drops the optional outputs of operators that nothing reads.

Exporters name every output, such as the indices of a `MaxPool` or the last cell of an `LSTM`.
"""

from __future__ import annotations

from onnx import defs

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph
from tilewright.networks.onnx_opset import opset_of

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
COUNTED = ("BatchNormalization",)
"""Operators that compute something else where they have more outputs: this one is in training."""


def drop_unread_outputs(normal: NormalGraph) -> None:
    """Remove the last outputs of operators, in place, as long as the standard calls them optional
    and nothing reads them."""
    graph = normal.graph
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        return  # an inner graph may read any tensor by name
    read = frozenset(normal.users())
    version = opset_of(normal.model)
    for node in graph.node:
        own = node.domain in STANDARD_DOMAINS and node.op_type not in COUNTED
        if not own or len(node.output) < 2:
            continue
        try:
            outputs = defs.get_schema(node.op_type, version, "").outputs
        except defs.SchemaError:
            continue
        while len(node.output) > 1:
            formal = outputs[min(len(node.output), len(outputs)) - 1]
            if formal.option != OPTIONAL or node.output[-1] in read:
                break
            del node.output[-1]
