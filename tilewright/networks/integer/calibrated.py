"""Choose the scales of first-pass results by running the network on samples.

A layer whose scales are not a power of two apart runs in two passes (`networks.requantisation`).
The first pass multiplies the data by the rounding errors of the scaled weights. The second pass
multiplies the data by the rounded weights and adds the int8 result of the first pass.

An int8 scale that could represent the worst case of the first pass's sums would be coarser than the
output's scale. The network therefore runs on samples. The scale of each first-pass result becomes
as small as the sums on the samples allow, with a safety margin.
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
"""Safety factor: ratio of the range that the int8 result of a first pass can represent to the
largest sum that occurs on the samples."""
SAMPLES = 2
"""Maximum number of samples that are used."""
FINE = ".fine"
"""Suffix of the name of a layer that is a first pass."""

Array = NDArray[Any]


def calibrate_first_passes(
    graph: IntegerGraph, model: onnx.ModelProto, feeds: Sequence[Feed]
) -> IntegerGraph:
    """Reduce the scales of first-pass results as far as the sums on samples allow.

    A scale is never increased. Only the first `SAMPLES` samples are used.

    Args:
        graph: the network.
        model: the quantised model from which the graph was extracted.
        feeds: samples, each with one array per input name.

    Returns:
        The network with the reduced scales.

    Raises:
        InputError: the model does not run on the samples.
    """
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
    """Run the model in onnxruntime, and return the int8 tensors of the graph for each sample.

    These tensors are the quantised inputs and the results of the model's QuantizeLinear operators.

    Args:
        graph: the integer graph.
        model: the quantised model from which the graph was extracted.
        feeds: samples, each with one array per input name.

    Returns:
        One dictionary per sample, with arrays by tensor name. It also contains the sample's inputs.
    """
    written = {
        node.name: node.output[0] for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.name in graph.values
    }  # fmt: skip
    values_by_feed = []
    for feed, values in zip(feeds, run_feeds(model, list(written.values()), feeds), strict=True):
        known = {
            name: to_int8(values[tensor], None).reshape(graph.values[name].shape)
            for name, tensor in written.items()
        }
        quantised_inputs = {
            # The graph holds a sequence as an image of height 1, so it is reshaped.
            name: to_int8(feed[source], graph.values[name].scale).reshape(graph.values[name].shape)
            for name, source in graph.quantised.items()
        }
        values_by_feed.append({**feed, **known, **quantised_inputs})
    return values_by_feed


def _largest_sums(graph: IntegerGraph, values: Mapping[str, Array]) -> dict[str, int]:
    """Return the largest magnitude of each first pass's int32 sums, by name of the pass's result.

    First passes whose inputs are neither known nor computable from known values are left out.

    Args:
        graph: the network.
        values: known arrays by value name.
    """
    known, largest = dict(values), dict[str, int]()
    for layer in graph.layers:
        _join(graph, known, layer.data)
        if any(name not in known for name in layer.reads):
            continue
        if layer.name.endswith(FINE):
            sums = sums_of(layer, known, graph.blocks.in_channels)
            largest[layer.output] = int(np.abs(sums).max(initial=0))
        if layer.output not in known:
            shape = graph.values[layer.output].shape
            output = layer_reference(layer, known, graph.blocks.in_channels)
            known[layer.output] = output.reshape(shape)
    return largest


def _join(graph: IntegerGraph, known: dict[str, Array], name: str) -> None:
    """Compute a concatenated tensor if all of its parts are known.

    Args:
        graph: the network.
        known: arrays by tensor name, to which the concatenated tensor is added.
        name: name of the concatenated tensor.
    """
    parts = sorted(
        (s for s in graph.slices if s.whole == name), key=lambda channel_slice: channel_slice.first
    )
    if name not in known and parts and all(channel_slice.part in known for channel_slice in parts):
        axis = channel_axis(graph.values[name].shape)
        known[name] = np.concatenate(
            [known[channel_slice.part] for channel_slice in parts], axis=axis
        )


def _shift(largest: int) -> int:
    """Return the smallest left shift of a first-pass result at which int8 can represent its sums.

    The second pass adds the first-pass result shifted to the left. One step of the result therefore
    equals 2^shift steps of the second pass's sums.

    Args:
        largest: largest magnitude of the first pass's sums. One step of these sums equals
            2^-`FINE_BITS` steps of the second pass's sums. The value is multiplied by `MARGIN`.
    """
    reach = MARGIN * largest / (1 << FINE_BITS)
    return max(0, math.ceil(math.log2(reach / LARGEST))) if reach > 0 else 0


def _residual(layer: Layer) -> int | None:
    """Return the left shift, in bits, of the tensor that a layer adds to its sums.

    Args:
        layer: the layer.

    Returns:
        The shift, or None if the layer adds no tensor.
    """
    return next((op.value for op in layer.workload.epilogue if op.kind == "residual"), None)


def _first_pass(layer: Layer, shift: int | None) -> Layer:
    current_shift = (
        next((op.value for op in layer.workload.epilogue if op.kind == "shr"), 0) - FINE_BITS
    )
    if shift is None or shift >= current_shift:
        return layer  # a scale is never increased
    finished = finish_epilogue(
        Requantisation(np.array([FINE_BITS + shift])), (), layer.workload.out_channels
    )
    workload = layer.workload.with_steps(finished.epilogue)
    return replace(layer, workload=workload, bias=finished.bias)


def _second_pass(layer: Layer, shift: int | None) -> Layer:
    current_shift = _residual(layer)
    if shift is None or current_shift is None or shift >= current_shift:
        return layer
    steps = (
        EpilogueOp("residual", shift) if op.kind == "residual" else op
        for op in layer.workload.epilogue
    )
    return replace(layer, workload=layer.workload.with_steps(tuple(steps)))
