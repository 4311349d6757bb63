"""Chooses the power of two that each int8 tensor counts in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from networks.errors import QuantisationError
from networks.graph import NormalGraph
from networks.quantise.plan import SAME_SCALE, Group, Plan

INT8_MAX = 127
OF_ZEROS = -7
"""The exponent of a tensor of nothing but zeros: 127 of its steps are almost 1."""
LIMIT = 60
"""No exponent is beyond ± this."""
INT32_BIAS_BITS = 30


@dataclass(frozen=True)
class Exponents:
    """A tensor's real value is its integer times two to its exponent. `activations` by tensor,
    constants among them included; `weights` by the first operator of the group."""

    activations: Mapping[str, int]
    weights: Mapping[str, int]


def covering(largest: float) -> int:
    """The smallest exponent at which ± `largest` is not cut off: ceil(log2(largest / 127))."""
    if not largest > 0:
        return OF_ZEROS
    return min(max(math.ceil(math.log2(largest / INT8_MAX)), -LIMIT), LIMIT)


def quantised(values: NDArray[np.floating], exponent: int) -> NDArray[np.int8]:
    """The int8 of an array of any shape: rounded half to even, cut off at −128 and 127."""
    steps = np.rint(np.ldexp(np.asarray(values, np.float64), -exponent))
    return np.clip(steps, -128, INT8_MAX).astype(np.int8)


def squared_error(values: NDArray[np.floating], exponent: int) -> float:
    """What int8 at this exponent changes in an array of any shape: the sum of squares."""
    wide = np.asarray(values, np.float64)
    return float(
        np.sum((np.ldexp(quantised(wide, exponent).astype(np.float64), exponent) - wide) ** 2)
    )


def least_error(values: NDArray[np.floating], highest: int, tries: int = 3) -> int:
    """The exponent with the least squared error among `highest` and those below it; for an array of
    any shape. At equal errors the highest."""
    return min(range(highest, highest - tries, -1), key=lambda e: (squared_error(values, e), -e))


def choose(normal: NormalGraph, plan: Plan, measured: Mapping[str, int]) -> Exponents:
    """The exponents of all tensors; `measured` gives what ranges ask for, by activation.

    Tensors between which values only move get one exponent, the highest asked for. A residual's is
    raised to that of the sums it is added to, which it reaches by a left shift, and a weight's
    until the bias fits. Raises `QuantisationError` where a residual's cannot be.
    """
    tensors = normal.tensors()
    asked = {
        name: _of_constant(tensors[name]) if name in tensors else measured[name]
        for name in plan.tensors
    }
    alike = _Alike(plan.tensors)
    for node in normal.graph.node:
        if node.op_type in SAME_SCALE and node.name in {*plan.alone, *plan.layout}:
            alike.join([name for name in (*node.input, *node.output) if name in plan.tensors])
    weights = _Weights(normal, plan)
    for _ in range(2 * LIMIT):
        exponents = alike.highest(asked)
        low = {
            group.residual: weights.of_sums(group, exponents)
            for group in plan.groups
            if group.residual is not None
            and exponents[group.residual] < weights.of_sums(group, exponents)
        }
        if not low:
            return Exponents(exponents, weights.chosen(plan.groups, exponents))
        asked.update(low)
    layer = next(group.nodes[0] for group in plan.groups if group.residual in low)
    raise QuantisationError(
        f"no power of two suits the residual that is added in layer '{layer}': its weights are too "
        "large; keep that layer in float"
    )


class _Weights:
    """The exponents that weights ask for, raised where a bias would not fit."""

    def __init__(self, normal: NormalGraph, plan: Plan) -> None:
        tensors, nodes = normal.tensors(), {node.name: node for node in normal.graph.node}
        self._asked = {
            name: _of_constant(tensors[name]) for name in {g.weight for g in plan.groups}
        }
        self._floors = {
            group.nodes[0]: _bias_floor(
                [tensors[nodes[name].input[place]] for name, place in group.biases]
            )
            for group in plan.groups
        }

    def of_sums(self, group: Group, activations: Mapping[str, int]) -> int:
        """The exponent of a group's int32 sums."""
        own = activations[group.data] + self._asked[group.weight]
        return max(own, self._floors[group.nodes[0]])

    def chosen(self, groups: Iterable[Group], activations: Mapping[str, int]) -> dict[str, int]:
        """The exponents of the weights, by the first operator of each group."""
        return {g.nodes[0]: self.of_sums(g, activations) - activations[g.data] for g in groups}


class _Alike:
    """Classes of tensors that share an exponent."""

    def __init__(self, names: Iterable[str]) -> None:
        self._of = {name: {name} for name in names}

    def join(self, names: Iterable[str]) -> None:
        merged = set().union(*(self._of[name] for name in names))
        self._of.update(dict.fromkeys(merged, merged))

    def highest(self, asked: Mapping[str, int]) -> dict[str, int]:
        return {name: max(asked[other] for other in same) for name, same in self._of.items()}


def _of_constant(tensor: onnx.TensorProto) -> int:
    values = numpy_helper.to_array(tensor)
    return least_error(values, covering(float(np.abs(values).max(initial=0.0))))


def _bias_floor(biases: Iterable[onnx.TensorProto]) -> int:
    """The least exponent of the sums at which their bias is well within int32."""
    values = (numpy_helper.to_array(bias) for bias in biases)
    largest = max((float(np.abs(v).max(initial=0.0)) for v in values), default=0.0)
    return math.ceil(math.log2(largest)) - INT32_BIAS_BITS if largest > 0 else -4 * LIMIT
