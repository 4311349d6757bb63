"""Says which operators of a graph are compiled: those whose form is in the table of supported
forms, unless sizes or values, of which a form says nothing, are in the way."""

from __future__ import annotations

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, data_inputs
from tilewright.networks.onnx_file import node_reads
from tilewright.networks.partition.forms import Forms, FormTable
from tilewright.networks.recurrent.operators import GATES, obstacle


def reasons(normal: NormalGraph, table: FormTable) -> dict[str, str]:
    """Return why operators of a graph are not compiled, by name."""
    forms, shapes, constants = Forms(normal), normal.shapes(), normal.tensors()
    found = dict.fromkeys(_constant(normal), "its result depends on no input")
    for node in normal.graph.node:
        form = forms.of(node)
        narrowed = ""
        if node.op_type in GATES and node.domain in STANDARD_DOMAINS:
            # Recurrent operators are unrolled, which has limits on lengths and constant weights.
            narrowed = obstacle(node, shapes, constants)
        if node.op_type == "QuantizeLinear" and node.input[1] not in constants:
            # What is divided by a scale of zero is cast to integers as each processor does it.
            narrowed = "its scale is only known when the model runs"
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            found[node.name] = "control flow is not compiled"
        elif narrowed:
            found[node.name] = narrowed
        elif form is None:
            found[node.name] = "nothing is known of its form"
        elif form not in table:
            found[node.name] = f"{form} is not known to be computed exactly"
    return found


def _constant(normal: NormalGraph) -> list[str]:
    """Return the operators of outputs that depend on no input: accelerators have no place for such
    outputs."""
    varying = {info.name for info in data_inputs(normal.model)}
    for node in normal.graph.node:
        if not varying.isdisjoint(node_reads(node)):
            varying.update(node.output)
    wanted = {info.name for info in normal.graph.output} - varying
    found = []
    for node in reversed(normal.graph.node):
        if not wanted.isdisjoint(node.output):
            found.append(node.name)
            wanted.update(node_reads(node))
    return found
