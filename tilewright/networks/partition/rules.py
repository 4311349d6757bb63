"""Narrows the table of supported forms by what a form does not say: sizes and values.

Each rule returns why an operator is not compiled although its form is in the table, or "".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, NormalGraph, Shape, data_inputs
from tilewright.networks.onnx_file import is_stub
from tilewright.networks.partition.forms import Forms, FormTable
from tilewright.networks.partition.regions import node_reads
from tilewright.networks.recurrent.operators import GATES, obstacle


@dataclass(frozen=True)
class Use:
    """An operator as its graph uses it."""

    node: onnx.NodeProto
    shapes: Mapping[str, Shape]
    constants: Mapping[str, onnx.TensorProto]

    def constant(self, place: int) -> np.ndarray | None:
        """Return an input that is a constant with data."""
        name = self.node.input[place] if place < len(self.node.input) else ""
        tensor = self.constants.get(name)
        return None if tensor is None or is_stub(tensor) else numpy_helper.to_array(tensor)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor, which is known wherever a rule is asked."""
        return self.shapes.get(name, ())


def reasons(normal: NormalGraph, table: FormTable) -> dict[str, str]:
    """Return why operators of a graph are not compiled, by name."""
    forms, shapes, constants = Forms(normal), normal.shapes(), normal.tensors()
    found = dict.fromkeys(_constant(normal), "its result depends on no input")
    for node in normal.graph.node:
        rule = RULES.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
        narrowed = "" if rule is None else rule(Use(node, shapes, constants))
        form = forms.of(node)
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


def _resize(use: Use) -> str:
    # TVM computes the coordinates from the ratio of sizes; onnxruntime from the scales. They agree
    # where a scale is a whole number. The benchmark draws whole numbers only.
    read, written = use.shape(use.node.input[0]), use.shape(use.node.output[0])
    if 0 in read or len(read) != len(written):
        return "its sizes depend on values"
    whole = all(after % before == 0 for before, after in zip(read, written, strict=True))
    images = len(read) == 4 and read[:2] == written[:2]
    return "" if whole and images else "it does not resize images by whole numbers"


def _recurrent(use: Use) -> str:
    # Recurrent operators are unrolled, which has limits on lengths and on constant weights.
    return obstacle(use.node, use.shapes, use.constants)


RULES: Mapping[str, Callable[[Use], str]] = {
    "Resize": _resize,
    "Upsample": _resize,
    **dict.fromkeys(GATES, _recurrent),
}
