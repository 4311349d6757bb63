"""Unrolls a recurrent operator into the graph of its steps.

The products with the data are one for all steps; those with the state share their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tilewright.networks.graph import STANDARD_DOMAINS, Absorbed, NormalGraph, Shape
from tilewright.networks.onnx_file import is_stub
from tilewright.networks.onnx_opset import opset_of
from tilewright.networks.recurrent.equations import STEPS, Direction
from tilewright.networks.recurrent.operators import (
    GATES,
    INITIAL_C,
    INITIAL_H,
    activations_of,
    attributes_of,
    directions_of,
    input_at,
    obstacle,
)
from tilewright.networks.recurrent.writer import RecurrentWriter

OLDEST_OPSET = 13
"""The opset that the operators of a step are written in; nearly all models are raised to it."""


def unroll(normal: NormalGraph) -> None:
    """Replace every recurrent operator that nothing is in the way of, in place."""
    if opset_of(normal.model) < OLDEST_OPSET:
        return
    shapes, tensors = normal.shapes(), normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        known = node.op_type in GATES and node.domain in STANDARD_DOMAINS
        if not known or obstacle(node, shapes, tensors):
            nodes.append(node)
            continue
        unrolled = _Unrolled(normal, node, shapes, tensors)
        unrolled.write()
        nodes += unrolled.writer.nodes
        for each in unrolled.writer.nodes:
            normal.add_operator(each)
        steps = f"unrolled into {unrolled.steps} steps, whose operators follow"
        normal.absorbed[node.name] = Absorbed(unrolled.projections[0], steps)
    if len(nodes) != len(normal.graph.node):
        normal.replace_nodes(nodes)


class _Unrolled:
    """The operators that one recurrent operator becomes. States are (batch, hidden)."""

    def __init__(
        self,
        normal: NormalGraph,
        node: onnx.NodeProto,
        shapes: Mapping[str, Shape],
        tensors: Mapping[str, onnx.TensorProto],
    ) -> None:
        self.writer = RecurrentWriter(normal, node)
        self.projections: list[str] = []
        self._node = node
        self._tensors = tensors
        self.steps, self._batch, _ = shapes[node.input[0]]
        _, rows, self._inputs = shapes[node.input[1]]
        self._gates = GATES[node.op_type]
        self._hidden = rows // self._gates
        self._resets_after = bool(attributes_of(node).get("linear_before_reset"))

    def write(self) -> None:
        """Append them."""
        data = self._node.input[0]
        states, cells, all_steps = [], [], []
        for place, name in enumerate(directions_of(self._node)):
            several = len(directions_of(self._node)) > 1
            made, last, cell = self._direction(data, place, name, f"{name}/" * several)
            all_steps.append(made)
            states.append(last)
            cells.append(cell)
        outputs = [*self._node.output, "", "", ""]
        if outputs[0]:
            self._whole(all_steps, outputs[0])
        for role, name, values in (("h", outputs[1], states), ("c", outputs[2], cells)):
            if name:
                self._last(values, name, role)

    def _direction(
        self, data: str, place: int, name: str, prefix: str
    ) -> tuple[list[str], str, str]:
        """The states after each step, in the order of the data, and the last state and cell."""
        direction = self._projected(data, place, prefix)
        state = self._initial(INITIAL_H, place, f"{prefix}initial_h")
        cell = self._initial(INITIAL_C, place, f"{prefix}initial_c")
        order = range(self.steps) if name == "forward" else range(self.steps - 1, -1, -1)
        made = [""] * self.steps
        step = STEPS[self._node.op_type]
        for t in order:
            state, cell = step(self.writer, direction, t, state, cell)
            made[t] = state
        return made, state, cell

    def _projected(self, data: str, place: int, prefix: str) -> Direction:
        w = self.writer
        shape = (self._inputs, self._columns)
        weight = w.constant(f"{prefix}weight", shape, self._weight(1, place))
        shape = (self._hidden, self._columns)
        recurrent = w.constant(f"{prefix}recurrence", shape, self._weight(2, place))
        sums = w.emit("MatMul", [data, weight], f"{prefix}input")
        self.projections.append(w.nodes[-1].name)
        bias, inner = self._biases(place)
        if bias is not None:
            added = w.constant(f"{prefix}bias", bias.shape, bias)
            sums = w.emit("Add", [sums, added], f"{prefix}input_bias")
        flat = w.integers(f"{prefix}rows", [self.steps * self._batch, self._columns])
        rows = w.emit("Reshape", [sums, flat], f"{prefix}input_rows")
        projected = w.split(rows, [self._batch] * self.steps, 0, f"{prefix}steps")
        named = "" if inner is None else w.constant(f"{prefix}inner", inner.shape, inner)
        activations = activations_of(self._node)
        own = activations[place * len(activations) // len(directions_of(self._node)) :]
        return Direction(prefix, projected, recurrent, named, self._hidden, self._resets_after, own)

    @property
    def _columns(self) -> int:
        return self._gates * self._hidden

    def _weight(self, place: int, direction: int) -> NDArray[np.float32] | None:
        """(inputs, gates · hidden) of one direction; None without data."""
        tensor = self._tensors[self._node.input[place]]
        return None if is_stub(tensor) else numpy_helper.to_array(tensor)[direction].T

    def _biases(self, direction: int) -> tuple[NDArray[np.float32] | None, ...]:
        """What is added to all gates, and what a GRU that resets after the product adds before."""
        name = input_at(self._node, 3)
        if not name:
            return None, None
        if is_stub(self._tensors[name]):
            both = np.zeros((2, self._columns), np.float32)  # shapes are all that is asked
        else:
            both = numpy_helper.to_array(self._tensors[name])[direction].reshape(2, -1)
        if self._node.op_type != "GRU" or not self._resets_after:
            return both.sum(0, dtype=both.dtype), None
        outer = both[0].copy()
        outer[: 2 * self._hidden] += both[1][: 2 * self._hidden]
        return outer, both[1][2 * self._hidden :].copy()

    def _initial(self, place: int, direction: int, name: str) -> str:
        """A state before the first step; "" where it is zero."""
        given = input_at(self._node, place)
        if not given or (place == INITIAL_C and self._node.op_type != "LSTM"):
            return ""
        if len(directions_of(self._node)) > 1:
            given = self.writer.split(given, [1, 1], 0, f"{name}_split")[direction]
        shape = self.writer.integers(f"{name}_shape", [self._batch, self._hidden])
        return self.writer.emit("Reshape", [given, shape], name)

    def _whole(self, states: Sequence[Sequence[str]], output: str) -> None:
        """The states of all steps: (steps, directions, batch, hidden)."""
        shape = self.writer.integers("states_shape", [self.steps, 1, self._batch, self._hidden])
        parts = []
        for place, each in enumerate(states):
            rows = each[0]
            if self.steps > 1:
                rows = self.writer.emit("Concat", each, f"states_{place}", axis=0)
            parts.append(self.writer.emit("Reshape", [rows, shape], f"states_{place}_shaped"))
        if len(parts) > 1:
            self.writer.emit("Concat", parts, "states", axis=1)
        self.writer.nodes[-1].output[0] = output

    def _last(self, states: Sequence[str], output: str, role: str) -> None:
        """The states after the last step: (directions, batch, hidden)."""
        shape = self.writer.integers(f"last_{role}_shape", [1, self._batch, self._hidden])
        parts = [
            self.writer.emit("Reshape", [state, shape], f"{output}_{place}")
            for place, state in enumerate(states)
        ]
        if len(parts) > 1:
            self.writer.emit("Concat", parts, f"{output}_whole", axis=0)
        self.writer.nodes[-1].output[0] = output
