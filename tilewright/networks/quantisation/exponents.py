"""Chooses the power of two that each int8 tensor counts in, and those of the weights of each output
channel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tilewright.networks.errors import QuantisationError
from tilewright.networks.onnx.graph import NormalGraph
from tilewright.networks.quantisation.bn_folding import attribute
from tilewright.networks.quantisation.plan import Group, QuantisationPlan
from tilewright.networks.requantisation import MAX_RESIDUAL_SHIFT, MAX_SHIFT
from tilewright.targets.epilogue import CHANNEL_SPREAD

INT8_MAX = 127
OF_ZEROS = -7
"""The exponent of a tensor of nothing but zeros: 127 of its steps are almost 1."""
LIMIT = 60
"""No exponent is beyond ± this."""
INT32_BIAS_BITS = 29
"""A bias is below two to this, a residual of seven bits shifted by `MAX_RESIDUAL_SHIFT` too: room
is left for the products."""


@dataclass(frozen=True)
class Exponents:
    """A tensor's real value is its integer times two to its exponent: `activations` by tensor,
    `weights` by the first operator of their group. Where output channels have exponents of their
    own, that is the largest, and `finer` says by how many bits each is less, (channels,)."""

    activations: Mapping[str, int]
    weights: Mapping[str, int]
    finer: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    def of_weights(self, name: str) -> NDArray[np.int64]:
        """The exponent of the weights of the group with that first operator, (1,), or that of each
        output channel, (channels,)."""
        return self.weights[name] - self.finer.get(name, np.zeros(1, np.int64))

    def least_of_weights(self, name: str) -> int | None:
        """The least of these; None for a group without weights."""
        return int(self.of_weights(name).min()) if name in self.weights else None


MOST = math.ldexp(INT8_MAX, LIMIT)
"""The largest magnitude that int8 at a scale of 2 ** `LIMIT` does not cut off."""


def covering_exponent(magnitude: float) -> int:
    """The smallest exponent at which ± `magnitude` is not cut off: ceil(log2(magnitude / 127));
    `LIMIT` for one beyond `MOST`, which must be finite."""
    if not magnitude > 0:
        return OF_ZEROS
    return min(max(math.ceil(math.log2(magnitude / INT8_MAX)), -LIMIT), LIMIT)


def quantise_array(
    values: NDArray[np.floating], exponent: int | NDArray[np.int64]
) -> NDArray[np.int8]:
    """The int8 of an array of any shape: rounded half to even, cut off at −128 and 127. Exponents
    may be an array that broadcasts to it."""
    # A product by a power of two is exact, and far faster than `ldexp` of each value.
    return _steps(np.asarray(values, np.float64), np.ldexp(1.0, -exponent)).astype(np.int8)


def _steps(values: NDArray[np.float64], factor: Any) -> NDArray[np.float64]:
    """The integers that values times a factor are in int8."""
    steps: NDArray[np.float64] = values * factor
    np.rint(steps, out=steps)
    np.clip(steps, -128, INT8_MAX, out=steps)
    return steps


def shape_along(values: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Values of channels, (channels,), or one, (1,), so that they broadcast along an axis."""
    shape = [1] * rank
    if values.size > 1:
        shape[axis] = -1
    return values.reshape(shape)


def squared_error(values: NDArray[np.floating], exponent: int) -> float:
    """What int8 at this exponent changes in an array of any shape: the sum of squares."""
    wide = np.asarray(values, np.float64)
    difference = _steps(wide, math.ldexp(1.0, -exponent))
    difference *= math.ldexp(1.0, exponent)
    difference -= wide
    difference *= difference
    return float(np.sum(difference))


def least_error(values: NDArray[np.floating], highest: int, tries: int = 3) -> int:
    """The exponent with the least squared error among `highest` and those below it; for an array of
    any shape. At equal errors the highest."""
    return min(range(highest, highest - tries, -1), key=lambda e: (squared_error(values, e), -e))


def choose_exponents(
    normal: NormalGraph, plan: QuantisationPlan, measured: Mapping[str, int]
) -> Exponents:
    """The exponents of all tensors; `measured` gives what ranges ask for, by activation.

    Tensors between which values only move get one exponent, the highest asked for. A residual's is
    raised to that of the sums it is added to, which it reaches by a left shift, and a weight's
    until bias and residual fit into int32. Raises `QuantisationError` where a residual's cannot be
    raised.
    """
    asked = {name: measured[name] for name in plan.tensors}
    alike = _Alike(plan.tensors)
    for node in normal.graph.node:
        if node.name in plan.moves:
            alike.join(name for name in (*node.input, *node.output) if name in plan.tensors)
    for group in plan.groups:
        if group.keeps_scale:
            alike.join(group.tensors)
    weights = _Weights(normal, plan)
    added = [group for group in plan.groups if group.residual is not None]
    for _ in range(2 * LIMIT):
        exponents = alike.highest(asked)
        low = {
            group.residual: weights.of_sums(group, exponents)
            for group in added
            if exponents[group.residual or ""] < weights.of_sums(group, exponents)
        }
        if not low:
            return Exponents(exponents, weights.chosen(exponents))
        asked.update({name: exponent for name, exponent in low.items() if name is not None})
    layer = next(group.nodes[0] for group in added if group.residual in low)
    raise QuantisationError(
        f"no power of two suits the residual that is added in layer '{layer}': its weights are too "
        "large; keep that layer in float"
    )


class _Weights:
    """The exponents that weights ask for, raised where a bias or a residual would not fit."""

    def __init__(self, normal: NormalGraph, plan: QuantisationPlan) -> None:
        tensors, nodes = normal.tensors(), {node.name: node for node in normal.graph.node}
        weighted = [(group, group.weight) for group in plan.groups if group.weight is not None]
        values = {name: numpy_helper.to_array(tensors[name]) for _, name in weighted}
        asked = {
            name: least_error(v, covering_exponent(largest_magnitude(v)))
            for name, v in values.items()
        }
        self._asked = {group: asked[name] for group, name in weighted}
        self._floors = {
            group: bias_floor(
                max(
                    (
                        largest_magnitude(numpy_helper.to_array(tensors[nodes[name].input[place]]))
                        for name, place in group.biases
                    ),
                    default=0.0,
                )
            )
            for group, _ in weighted
        }

    def of_sums(self, group: Group, activations: Mapping[str, int]) -> int:
        """The exponent of a group's int32 sums."""
        if group.weight is None:
            return sum(activations[name] for name in group.operands)
        least = self._floors[group]
        if group.residual is not None:
            least = max(least, activations[group.residual] - MAX_RESIDUAL_SHIFT)
        return max(activations[group.operands[0]] + self._asked[group], least)

    def chosen(self, activations: Mapping[str, int]) -> dict[str, int]:
        """The exponents of the weights, by the first operator of each group."""
        return {
            group.nodes[0]: self.of_sums(group, activations) - activations[group.operands[0]]
            for group in self._asked
        }


class _Alike:
    """Classes of tensors that share an exponent."""

    def __init__(self, names: Iterable[str]) -> None:
        self._of = {name: {name} for name in names}

    def join(self, names: Iterable[str]) -> None:
        merged = set().union(*(self._of[name] for name in names))
        self._of.update(dict.fromkeys(merged, merged))

    def highest(self, asked: Mapping[str, int]) -> dict[str, int]:
        return {name: max(asked[other] for other in same) for name, same in self._of.items()}


def largest_magnitude(values: NDArray[np.floating]) -> float:
    """The largest magnitude in an array of any shape, 0 in an empty one."""
    return float(np.abs(values).max(initial=0.0))


def bias_floor(bias: float) -> int:
    """The least exponent of the sums at which a bias of that magnitude is well within int32."""
    return math.ceil(math.log2(bias)) - INT32_BIAS_BITS if bias > 0 else -4 * LIMIT


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
    asked = np.array(
        [least_error(each, covering_exponent(largest_magnitude(each))) for each in slices], np.int64
    )
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
