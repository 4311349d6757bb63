"""Drops the optional outputs of operators that nothing reads.

Exporters name every output, such as the indices of a `MaxPool` or the last cell of an `LSTM`.
"""

from __future__ import annotations

from onnx import defs

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph

OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
COUNTED = ("BatchNormalization",)
"""Operators that compute something else where they have more outputs: this one is in training."""


def drop_unread_outputs(normal: NormalGraph) -> None:
    """Remove outputs that the standard calls optional and nothing reads, in place."""
    graph = normal.graph
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        return  # an inner graph may read any tensor by name
    read = frozenset(normal.users())
    versions = (o.version for o in normal.model.opset_import if o.domain in STANDARD_DOMAINS)
    version = max(versions, default=1)
    for node in graph.node:
        own = node.domain in STANDARD_DOMAINS and node.op_type not in COUNTED
        if not own or len(node.output) < 2:
            continue
        try:
            outputs = defs.get_schema(node.op_type, version, "").outputs
        except defs.SchemaError:
            continue
        for place, formal in enumerate(outputs[: len(node.output)]):
            if place and formal.option == OPTIONAL and node.output[place] not in read:
                node.output[place] = ""
        while len(node.output) > 1 and not node.output[-1]:
            del node.output[-1]
