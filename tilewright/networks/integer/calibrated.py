"""Chooses how finely the results of first passes count (`networks.requantisation`), by
samples.

At worst a pass with fine weights sums up to far more than it usually does. An int8 tensor that
could hold that would be coarser than the output. So the network runs on samples, and each such
tensor counts as finely as what was seen there, times a margin, allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilewright.networks.integer.graph import IntegerGraph, Step
from tilewright.networks.integer.reference import layer_reference, sums_of
from tilewright.networks.model_runner import Feed, run_feeds
from tilewright.networks.requantisation import FINE_BITS, LARGEST, Requantisation, finish_epilogue
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.layer import Layer, channel_axis, to_int8

MARGIN = 2.0
"""What a first pass may sum up to over the largest sum that samples brought."""
SAMPLES = 2
FINE = ".fine"
"""What the names of first passes end with."""

Array = NDArray[Any]


def calibrate_first_passes(
    graph: IntegerGraph, model: onnx.ModelProto, feeds: Sequence[Feed]
) -> IntegerGraph:
    """The graph of a quantised model with the results of first passes as fine as the first samples
    (arrays in the shapes of the inputs) allow, never coarser than before. Raises `InputError` where
    the model does not run on them."""
    if not any(layer.name.endswith(FINE) for layer in graph.layers):
        return graph
    reach: dict[str, int] = {}
    for values in _integers(graph, model, feeds[:SAMPLES]):
        for name, largest in _largest_sums(graph, values).items():
            reach[name] = max(reach.get(name, 0), largest)
    shifts = {name: _shift(largest) for name, largest in reach.items()}
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, Layer):
            step = _first_pass(step, shifts.get(step.output))
            step = _second_pass(step, shifts.get(step.residual or ""))
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _integers(
    graph: IntegerGraph, model: onnx.ModelProto, feeds: Sequence[Feed]
) -> list[dict[str, Array]]:
    """By value of the graph what onnxruntime gives for it, feed by feed: of the inputs, and of what
    a QuantizeLinear of the model writes."""
    written = {
        node.name: node.output[0] for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.name in graph.values
    }  # fmt: skip
    found = []
    for feed, values in zip(feeds, run_feeds(model, list(written.values()), feeds), strict=True):
        known = {
            name: to_int8(values[tensor], None).reshape(graph.values[name].shape)
            for name, tensor in written.items()
        }
        given = {
            # in the shape that layers read: a sequence is an image of height one
            name: to_int8(feed[source], graph.values[name].scale).reshape(graph.values[name].shape)
            for name, source in graph.quantised.items()
        }
        found.append({**feed, **known, **given})
    return found


def _largest_sums(graph: IntegerGraph, values: Mapping[str, Array]) -> dict[str, int]:
    """By the result of each first pass the largest magnitude of its sums, as far as its data are
    known or follow from what is."""
    known, found = dict(values), dict[str, int]()
    for layer in graph.layers:
        _join(graph, known, layer.data)
        if any(name not in known for name in layer.reads):
            continue
        if layer.name.endswith(FINE):
            sums = sums_of(layer, known, graph.blocks.in_channels)
            found[layer.output] = int(np.abs(sums).max(initial=0))
        if layer.output not in known:
            shape = graph.values[layer.output].shape
            made = layer_reference(layer, known, graph.blocks.in_channels)
            known[layer.output] = made.reshape(shape)
    return found


def _join(graph: IntegerGraph, known: dict[str, Array], name: str) -> None:
    """Add a value whose parts are known to what is known."""
    parts = sorted((s for s in graph.slices if s.whole == name), key=lambda each: each.first)
    if name not in known and parts and all(each.part in known for each in parts):
        axis = channel_axis(graph.values[name].shape)
        known[name] = np.concatenate([known[each.part] for each in parts], axis=axis)


def _shift(largest: int) -> int:
    """By how many bits an int8 tensor is coarser than the sums of the other pass to hold these."""
    reach = MARGIN * largest / (1 << FINE_BITS)
    return max(0, math.ceil(math.log2(reach / LARGEST))) if reach > 0 else 0


def _residual(layer: Layer) -> int | None:
    """The power of two by which a layer counts its residual."""
    return next((op.value for op in layer.workload.epilogue if op.kind == "residual"), None)


def _first_pass(layer: Layer, shift: int | None) -> Layer:
    own = next((op.value for op in layer.workload.epilogue if op.kind == "shr"), 0) - FINE_BITS
    if shift is None or shift >= own:
        return layer
    made = finish_epilogue(
        Requantisation(np.array([FINE_BITS + shift])), (), layer.workload.out_channels
    )
    workload = layer.workload.with_steps(made.epilogue)
    return replace(layer, workload=workload, bias=made.bias)


def _second_pass(layer: Layer, shift: int | None) -> Layer:
    own = _residual(layer)
    if shift is None or own is None or shift >= own:
        return layer
    steps = (
        EpilogueOp("residual", shift) if op.kind == "residual" else op
        for op in layer.workload.epilogue
    )
    return replace(layer, workload=layer.workload.with_steps(tuple(steps)))
