"""Chooses a power of two for the weights of each output channel.

Where a channel's weights are small its sums count in finer steps, and are shifted further.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tilewright.networks.graph import NormalGraph
from tilewright.networks.integer.arithmetic import MAX_SHIFT
from tilewright.networks.quantise.bn_folding import attribute
from tilewright.networks.quantise.exponents import (
    Exponents,
    bias_floor,
    covering,
    largest,
    least_error,
    squared_error,
)
from tilewright.networks.quantise.plan import Group, QuantisationPlan
from tilewright.targets.epilogue import CHANNEL_SPREAD

Array = NDArray[np.floating]

WORTH = 1.0
"""Decibels that channels have to gain in the mean: a shift by channel takes a cycle more for every
accumulator."""


def by_channel(normal: NormalGraph, plan: QuantisationPlan, exponents: Exponents) -> Exponents:
    """The same with the exponents of weights a channel's own where that is worth it and shifts can
    follow: nothing is added to the sums but a constant a channel, and no channel would have to be
    shifted to the left."""
    tensors, nodes = normal.tensors(), {node.name: node for node in normal.graph.node}
    weights, finer = dict(exponents.weights), {}
    for group in plan.groups:
        if group.weight is None or group.counts_alike:
            continue
        values = numpy_helper.to_array(tensors[group.weight])
        slices = np.moveaxis(values, channel_axis(nodes[group.nodes[0]]), 0)
        biases = [
            numpy_helper.to_array(tensors[nodes[name].input[place]]) for name, place in group.biases
        ]
        if any(bias.size != len(slices) for bias in biases):
            continue
        own = _own_exponents(group, exponents, slices, biases)
        name = group.nodes[0]
        if own is not None and gain(slices, weights[name], own) >= WORTH:
            weights[name] = int(own.max())
            finer[name] = own.max() - own
    return replace(exponents, weights=weights, finer=finer)


def channel_axis(node: onnx.NodeProto) -> int:
    """The axis of a Conv's, Gemm's or MatMul's weights that counts its output channels."""
    return 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1


def least_errors(slices: Array) -> NDArray[np.int64]:
    """The exponent of least squared error of each channel's weights, (channels, …): (channels,).
    They are at most `CHANNEL_SPREAD` bits apart, and those of zeros as high as any."""
    asked = np.array([least_error(each, covering(largest(each))) for each in slices], np.int64)
    empty = ~np.any(slices.reshape(len(slices), -1), axis=1)
    highest = int(asked[~empty].max(initial=asked.min()))
    found: NDArray[np.int64] = np.where(empty, highest, asked)
    return np.maximum(found, highest - CHANNEL_SPREAD)


def gain(slices: Array, exponent: int, own: NDArray[np.int64]) -> float:
    """Decibels by which the weights of channels (channels, …) are nearer to their values at
    exponents of their own, (channels,), than at one: the mean, a bit being six."""
    found = [
        10 * np.log10(squared_error(each, exponent) / error)
        for each, e in zip(slices, own.tolist(), strict=True)
        if e != exponent and (error := squared_error(each, e)) > 0
    ]
    return float(np.sum(found)) / len(slices)


def _own_exponents(
    group: Group, exponents: Exponents, slices: Array, biases: list[Array]
) -> NDArray[np.int64] | None:
    """The exponents of a layer's channels, raised where a bias or a shift would not fit; None where
    a channel would be shifted to the left."""
    data, out = exponents.activations[group.operands[0]], exponents.activations[group.output]
    own = np.maximum(least_errors(slices), out - data - MAX_SHIFT)
    for bias in biases:
        floors = [bias_floor(float(abs(value))) - data for value in bias.ravel()]
        own = np.maximum(own, floors)
    return own if own.max() <= out - data else None
