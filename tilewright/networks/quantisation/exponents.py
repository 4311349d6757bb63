"""Chooses the power-of-two scale of each int8 tensor and of the weights of each output channel.

A scale is 2 to the power of an exponent. Exponents are integers.
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
"""Exponent of a tensor that contains only zeros. With it, int8 covers a range of about ±1."""
LIMIT = 60
"""Largest magnitude of an exponent. Exponents lie between `-LIMIT` and `LIMIT`."""
INT32_BIAS_BITS = 29
"""Base-2 logarithm of the largest magnitude that a bias may have in an int32 accumulator. A
residual that is shifted left by up to `MAX_RESIDUAL_SHIFT` bits stays below this magnitude, too.
This leaves room in int32 for the products."""


@dataclass(frozen=True)
class Exponents:
    """Power-of-two scales of a model: real value = integer · 2^exponent.

    The weights of a group (the operators of one int8 layer) have one exponent, or one exponent per
    output channel.

    Attributes:
        activations: exponent by tensor name.
        weights: exponent of the weights, by the name of the group's first operator. If each channel
            has its own exponent, this is the largest of them.
        finer: for groups with one exponent per channel, the differences between `weights` and the
            exponents of the channels, an int array of shape (channels,), by the name of the group's
            first operator.
    """

    activations: Mapping[str, int]
    weights: Mapping[str, int]
    finer: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    def of_weights(self, name: str) -> NDArray[np.int64]:
        """Return the exponents of the weights of a group.

        Args:
            name: name of the group's first operator.

        Returns:
            Int array of shape (1,), or of shape (channels,) if each channel has its own exponent.
        """
        return self.weights[name] - self.finer.get(name, np.zeros(1, np.int64))

    def least_of_weights(self, name: str) -> int | None:
        """Return the smallest exponent of a group's weights.

        Args:
            name: name of the group's first operator.

        Returns:
            The exponent, or None if the group has no weights.
        """
        return int(self.of_weights(name).min()) if name in self.weights else None


MOST = math.ldexp(INT8_MAX, LIMIT)
"""Largest magnitude that int8 represents without clipping at the largest scale, 2 to the power of
`LIMIT`."""


def covering_exponent(magnitude: float) -> int:
    """Return the smallest exponent e at which int8 with scale 2^e does not clip ± `magnitude`.

    This is ceil(log2(magnitude / 127)), limited to ± `LIMIT`. For a magnitude of 0 it is
    `OF_ZEROS`.
    """
    if not magnitude > 0:
        return OF_ZEROS
    return min(max(math.ceil(math.log2(magnitude / INT8_MAX)), -LIMIT), LIMIT)


def quantise_array(
    values: NDArray[np.floating], exponent: int | NDArray[np.int64]
) -> NDArray[np.int8]:
    """Quantise an array to int8 with scale 2^exponent.

    Values are rounded half to even and clipped to −128 … 127.

    Args:
        values: array of any shape.
        exponent: one exponent, or an int array that broadcasts with `values`.
    """
    # A product by a power of two is exact, and far faster than `ldexp` of each value.
    return _steps(np.asarray(values, np.float64), np.ldexp(1.0, -exponent)).astype(np.int8)


def _steps(values: NDArray[np.float64], factor: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply values by a factor, round half to even and clip to the int8 range −128 … 127.

    Args:
        values: the values.
        factor: the reciprocal of the scale, one number or an array that broadcasts with the values.
    """
    steps: NDArray[np.float64] = values * factor
    np.rint(steps, out=steps)
    np.clip(steps, -128, INT8_MAX, out=steps)
    return steps


def shape_along(values: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """Reshape one value per channel so that the values broadcast along an axis of a tensor.

    Args:
        values: array of shape (channels,), or (1,) for one value for all channels.
        axis: axis of the channels.
        rank: number of dimensions of the result.
    """
    shape = [1] * rank
    if values.size > 1:
        shape[axis] = -1
    return values.reshape(shape)


def squared_error(values: NDArray[np.floating], exponent: int) -> float:
    """Return the sum of squared errors of quantising an array to int8.

    Args:
        values: array of any shape.
        exponent: the exponent e of the scale 2^e.
    """
    wide = np.asarray(values, np.float64)
    difference = _steps(wide, math.ldexp(1.0, -exponent))
    difference *= math.ldexp(1.0, exponent)
    difference -= wide
    difference *= difference
    return float(np.sum(difference))


def least_error(values: NDArray[np.floating], highest: int, tries: int = 3) -> int:
    """Return the exponent with the smallest squared quantisation error for an array of any shape.

    If two exponents have equal errors, the larger one wins.

    Args:
        values: the array.
        highest: the largest exponent to try.
        tries: number of exponents to try, from `highest` downwards.
    """
    return min(range(highest, highest - tries, -1), key=lambda e: (squared_error(values, e), -e))


def choose_exponents(
    normal: NormalGraph, plan: QuantisationPlan, measured: Mapping[str, int]
) -> Exponents:
    """Choose the exponents of all activations and weights.

    - Tensors that are connected by operators that only move data share one exponent: the largest
      exponent that their ranges require.
    - A residual is shifted left before it is added to the int32 accumulators, so its exponent is
      raised to at least the exponent of the accumulators.
    - The exponent of weights is raised until the bias and the residual fit into int32.

    Args:
        normal: the folded float model.
        plan: the operators that become int8.
        measured: exponent that each activation's range requires, by tensor name.

    Returns:
        The exponents.

    Raises:
        QuantisationError: the exponent of a residual cannot be raised far enough.
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
            return Exponents(exponents, weights.choose_exponents(exponents))
        asked.update({name: exponent for name, exponent in low.items() if name is not None})
    layer = next(group.nodes[0] for group in added if group.residual in low)
    raise QuantisationError(
        f"the weights of layer '{layer}' are too large to add its residual with a "
        "power-of-two scale; keep this layer in floating point (--keep-float)"
    )


class _Weights:
    """Exponents of the weights of each group (the operators of one int8 layer).

    An exponent is raised where a bias or a residual would otherwise not fit into int32.

    Args:
        normal: the folded float model.
        plan: the operators that become int8.
    """

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
        """Return the exponent of the scale of a group's int32 accumulators.

        Args:
            group: the group.
            activations: exponent of each activation, by tensor name.
        """
        if group.weight is None:
            return sum(activations[name] for name in group.operands)
        least = self._floors[group]
        if group.residual is not None:
            least = max(least, activations[group.residual] - MAX_RESIDUAL_SHIFT)
        return max(activations[group.operands[0]] + self._asked[group], least)

    def choose_exponents(self, activations: Mapping[str, int]) -> dict[str, int]:
        """Return the exponent of each group's weights, by name of the group's first operator.

        Args:
            activations: exponent of each activation, by tensor name.
        """
        return {
            group.nodes[0]: self.of_sums(group, activations) - activations[group.operands[0]]
            for group in self._asked
        }


class _Alike:
    """Sets of tensors that have to share an exponent.

    `join` merges the sets of the given tensors, and `highest` returns the largest exponent of each
    set.

    Args:
        names: names of all tensors. Each tensor starts in a set of its own.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._of = {name: {name} for name in names}

    def join(self, names: Iterable[str]) -> None:
        merged = set().union(*(self._of[name] for name in names))
        self._of.update(dict.fromkeys(merged, merged))

    def highest(self, asked: Mapping[str, int]) -> dict[str, int]:
        return {name: max(asked[other] for other in same) for name, same in self._of.items()}


def largest_magnitude(values: NDArray[np.floating]) -> float:
    """Return the largest magnitude in an array of any shape; 0 for an empty array."""
    return float(np.abs(values).max(initial=0.0))


def bias_floor(bias: float) -> int:
    """Return the smallest exponent of accumulators at which a bias fits into int32.

    Room is left for the products that are added to the bias.

    Args:
        bias: magnitude of the largest bias.
    """
    return math.ceil(math.log2(bias)) - INT32_BIAS_BITS if bias > 0 else -4 * LIMIT


Array = NDArray[np.floating]

WORTH = 1.0
"""Minimum mean gain over the channels, in dB, for which weights get one exponent per channel.
Separate exponents need a shift per channel, which takes one more cycle per accumulator."""


def by_channel(normal: NormalGraph, plan: QuantisationPlan, exponents: Exponents) -> Exponents:
    """Give weights one exponent per channel where that improves the accuracy enough.

    Weights can have one exponent per channel only if the epilogue adds nothing but a constant per
    channel to the accumulators, and if no channel would have to be shifted left. The mean gain has
    to be at least `WORTH` dB.

    Args:
        normal: the folded float model.
        plan: the operators that become int8.
        exponents: the exponents with one exponent per tensor.

    Returns:
        The extended exponents.
    """
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
    """Return the axis of the output channels in the weights of a Conv, Gemm or MatMul."""
    return 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1


def least_errors(slices: Array) -> NDArray[np.int64]:
    """Return the exponent with the smallest squared error, for each channel of weights.

    Exponents that are smaller than the largest exponent by more than `CHANNEL_SPREAD` are raised. A
    channel of zeros gets the largest exponent.

    Args:
        slices: weights of shape (channels, …).

    Returns:
        Int array of shape (channels,).
    """
    asked = np.array(
        [least_error(slice_, covering_exponent(largest_magnitude(slice_))) for slice_ in slices],
        np.int64,
    )
    empty = ~np.any(slices.reshape(len(slices), -1), axis=1)
    highest = int(asked[~empty].max(initial=asked.min()))
    result: NDArray[np.int64] = np.where(empty, highest, asked)
    return np.maximum(result, highest - CHANNEL_SPREAD)


def gain(slices: Array, exponent: int, own: NDArray[np.int64]) -> float:
    """Return the mean gain in dB from using one exponent per channel instead of one per tensor.

    Args:
        slices: weights of shape (channels, …).
        exponent: the exponent of the whole tensor.
        own: exponents per channel, int array of shape (channels,).

    Returns:
        Mean over the channels of the reduction of the squared error, in dB. One bit is worth 6 dB.
    """
    results = [
        10 * np.log10(squared_error(slice_, exponent) / error)
        for slice_, e in zip(slices, own.tolist(), strict=True)
        if e != exponent and (error := squared_error(slice_, e)) > 0
    ]
    return float(np.sum(results)) / len(slices)


def _own_exponents(
    group: Group, exponents: Exponents, slices: Array, biases: list[Array]
) -> NDArray[np.int64] | None:
    """Return a separate exponent for each channel of a group's weights.

    An exponent is raised where a bias or a shift would not fit otherwise.

    Args:
        group: the group.
        exponents: the exponents with one exponent per tensor.
        slices: weights of shape (channels, …).
        biases: constants that are added per channel.

    Returns:
        Int array of shape (channels,), or None if a channel would have to be shifted left.
    """
    data, out = exponents.activations[group.operands[0]], exponents.activations[group.output]
    own = np.maximum(least_errors(slices), out - data - MAX_SHIFT)
    for bias in biases:
        floors = [bias_floor(float(abs(value))) - data for value in bias.ravel()]
        own = np.maximum(own, floors)
    return own if own.max() <= out - data else None
