"""Says which operators of a graph are not compiled, and why."""

from __future__ import annotations

from tilewright.networks.graph import NormalGraph, data_inputs
from tilewright.networks.partition.forms import Forms, FormTable
from tilewright.networks.partition.regions import node_reads
from tilewright.networks.unsupported_ops import limits


def reasons(normal: NormalGraph, wrong: FormTable) -> dict[str, str]:
    """Return why operators of a graph are not compiled, by name; forms in the table `wrong` are
    not."""
    forms = Forms(normal)
    found = dict.fromkeys(_constant(normal), "its result depends on no input")
    found |= {name: reason for name, (reason, _) in limits(normal).items()}
    for node in normal.graph.node:
        form = forms.of(node)
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            found[node.name] = "control flow is not compiled"
        elif form is None:
            found.setdefault(node.name, "nothing is known of its form")
        elif form in wrong:
            found[node.name] = f"{form} is known to be computed wrongly"
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
