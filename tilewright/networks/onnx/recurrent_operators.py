"""Attributes and inputs of ONNX's recurrent operators, and why one cannot be unrolled.

`steps_first` also converts batch-first operators to the layout that begins with the steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import helper, numpy_helper

from tilewright.networks.onnx.files import is_stub
from tilewright.networks.onnx.graph import Shape

MAX_STEPS = 512
"""Largest number of steps that is unrolled, summed over directions. Each step consists of about a
dozen operators, each of which is imported and compiled."""

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Number of gates of each recurrent operator."""
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip
"""Default activations of each recurrent operator."""
KNOWN = ("Sigmoid", "Tanh", "Relu")
"""Supported activations. They have no parameters and exist as separate ONNX operators."""
LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = 4, 5, 6, 7
"""Indices of optional inputs; this one is `sequence_lens`."""


def obstacle(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], tensors: Mapping[str, onnx.TensorProto]
) -> str:
    """Return why a recurrent operator cannot be unrolled.

    Args:
        node: an LSTM, GRU or RNN.
        shapes: known shapes by tensor name.
        tensors: constants by tensor name.

    Returns:
        The reason, "" if the operator can be unrolled.
    """
    attributes = attributes_of(node)
    if input_at(node, PEEPHOLES):
        return "peepholes (its input P) are not computed"
    if attributes.get("clip"):
        return "clip, which cuts what its activations read, is not computed"
    if attributes.get("input_forget"):
        return "input_forget=1, which couples two gates, is not computed"
    if unknown := [name for name in activations_of(node) if name not in KNOWN]:
        return f"the activation {unknown[0]} is not computed, only {', '.join(KNOWN)}"
    shape = shapes.get(node.input[0])
    if shape is None:
        return "the length of its sequence is not known before the model runs"
    if any(input_at(node, place) not in tensors for place in (1, 2)):
        return "its weights must be constants, here they are computed"
    if input_at(node, 3) and input_at(node, 3) not in tensors:
        return "its biases must be constants, here they are computed"
    steps = shape[0]
    lengths = input_at(node, LENGTHS)
    if lengths:
        known = tensors.get(lengths)
        if known is None or is_stub(known) or (numpy_helper.to_array(known) != steps).any():
            return (
                "lengths of single sequences (its input sequence_lens) are not heeded; all must be "
                f"{steps}, as constants"
            )
    if steps * len(directions_of(node)) > MAX_STEPS:
        return f"it has {steps} steps, and at most {MAX_STEPS} of all directions are unrolled"
    return ""


def input_at(node: onnx.NodeProto, place: int) -> str:
    """Return the name of the input at index `place`, "" if the operator does not have it."""
    return node.input[place] if place < len(node.input) else ""


def attributes_of(node: onnx.NodeProto) -> dict[str, object]:
    """Return the explicit attributes of an operator by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def directions_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the directions in which the steps are computed, each "forward" or "reverse"."""
    direction = next((a.s.decode() for a in node.attribute if a.name == "direction"), "forward")
    return ("forward", "reverse") if direction == "bidirectional" else (direction,)


def activations_of(node: onnx.NodeProto) -> list[str]:
    """Return the activations of all directions, spelled like the ONNX operators."""
    names = [name for a in node.attribute if a.name == "activations" for name in a.strings]
    capitalised = [name.decode().capitalize() for name in names]
    return capitalised or list(ACTIVATIONS[node.op_type]) * len(directions_of(node))


def steps_first(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Convert batch-first recurrent operators (layout=1) to layout=0, in place.

    Transpositions are inserted before and after each of them. onnxruntime only supports layout=0.

    Returns:
        The inserted transpositions.
    """
    nodes: list[onnx.NodeProto] = []
    added: list[onnx.NodeProto] = []
    for position, node in enumerate(graph.node):
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        if node.op_type in GATES and attributes_of(node).get("layout"):
            name = node.name or f"{node.op_type}_{position}"
            for attribute in [a for a in node.attribute if a.name == "layout"]:
                node.attribute.remove(attribute)
            for index in (0, INITIAL_H, INITIAL_C):
                if input_name := input_at(node, index):
                    node.input[index] = f"{name}/{input_name}/steps_first"
                    before.append(_transposed(input_name, node.input[index], [1, 0, 2]))
            for index, result in enumerate(node.output):
                if result:
                    node.output[index] = f"{name}/{result}/steps_first"
                    order = [1, 0, 2] if index else [2, 0, 1, 3]
                    after.append(_transposed(node.output[index], result, order))
        nodes += [*before, node, *after]
        added += [*before, *after]
    if added:
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return added


def _transposed(source: str, result: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], name=f"{result}/transpose", perm=order)
