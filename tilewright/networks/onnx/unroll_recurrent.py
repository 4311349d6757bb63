"""Unroll LSTM, GRU and RNN over a known number of steps.

The operators of a step follow the equations of the ONNX standard: products, activations and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilewright.networks.onnx.files import is_stub, stub
from tilewright.networks.onnx.graph import STANDARD_DOMAINS, Absorbed, NormalGraph, Shape
from tilewright.networks.onnx.opset import opset_of
from tilewright.networks.onnx.recurrent_operators import (
    GATES,
    INITIAL_C,
    INITIAL_H,
    activations_of,
    attributes_of,
    directions_of,
    input_at,
    obstacle,
)


class RecurrentWriter:
    """Writes the operators that replace a recurrent operator.

    Constants are added to the graph immediately.

    Args:
        normal: the graph.
        node: the recurrent operator.

    Attributes:
        nodes: the operators written so far.
    """

    def __init__(self, normal: NormalGraph, node: onnx.NodeProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._normal = normal
        self._node = node
        self._columns: dict[int, str] = {}
        self._taken = {operator.name for operator in normal.operators}

    def emit(self, kind: str, inputs: Sequence[str], name: str, **attributes: object) -> str:
        """Append an operator and return the name of its result."""
        name = self._named(name)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def split(self, source: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
        """Split a tensor into parts of the given sizes along an axis and return their names."""
        if len(sizes) == 1:
            return [source]
        name = self._named(name)
        results = [f"{name}.{index}" for index in range(len(sizes))]
        lengths = self.integers(f"{name}/sizes", sizes)
        node = helper.make_node("Split", [source, lengths], results, name=name, axis=axis)
        self.nodes.append(node)
        return results

    def gates(self, source: str, count: int, size: int, name: str) -> list[str]:
        """Split the columns of a tensor into `count` parts of `size` columns each.

        Each part is a separate Slice, because TVM can fuse a Slice with the operator that reads it,
        but not the results of a Split.

        Returns:
            The names of the parts.
        """
        if count == 1:
            return [source]
        return [
            self._columns_of(source, index * size, (index + 1) * size, f"{name}.{index}")
            for index in range(count)
        ]

    def _columns_of(self, source: str, begin: int, end: int, name: str) -> str:
        bounds = [self._column(place) for place in (begin, end, 1)]
        return self.emit("Slice", [source, *bounds], name)

    def _column(self, place: int) -> str:
        """Return the name of a constant int64 vector with this one number; it is written once."""
        if place not in self._columns:
            self._columns[place] = self.integers(f"column/{place}", [place])
        return self._columns[place]

    def columns(self, whole: str, sizes: Mapping[str, int]) -> list[str]:
        """Split the columns of a constant into further constants and return their names.

        Args:
            whole: name of a constant of shape (rows, columns).
            sizes: number of columns of each part, by suffix of its name.
        """
        names = [f"{whole}/{end}" for end in sizes]
        if names[0] in {tensor.name for tensor in self._normal.graph.initializer}:
            return names
        tensor = self._normal.tensors()[whole]
        values, begin = None if is_stub(tensor) else numpy_helper.to_array(tensor), 0
        for name, size in zip(names, sizes.values(), strict=True):
            part = None if values is None else values[:, begin : begin + size]
            self._add(name, (tensor.dims[0], size), part)
            begin += size
        return names

    def integers(self, name: str, values: Sequence[int]) -> str:
        """Add a constant int64 vector and return its name."""
        return self.constant(f"{name}", (len(values),), np.array(values, np.int64))

    def constant(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> str:
        """Add a constant and return its name, which begins with the name of the recurrent operator.

        Args:
            name: suffix of the name.
            shape: its shape.
            values: its values; None for a float32 stub without data.
        """
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}#"
        self._add(name, shape, values)
        return name

    def _named(self, name: str) -> str:
        """Return an operator name that is not taken yet."""
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _add(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> None:
        """Add a constant with this name; values of None add a float32 stub."""
        if values is None:
            self._normal.add_tensor(stub(name, shape, onnx.TensorProto.FLOAT))
        else:
            array = np.ascontiguousarray(values)
            self._normal.add_tensor(numpy_helper.from_array(array, name))


@dataclass(frozen=True)
class Direction:
    """One direction of a recurrent operator.

    Attributes:
        prefix: prefix of operator names.
        projected: for each step, the name of the products with the data plus the biases.
        recurrent: name of the weights for the state, of shape (hidden, gates · hidden).
        inner: name of the GRU bias that is multiplied by the reset gate, "" if there is none.
        hidden: size of the state.
        resets_after: whether a GRU applies its reset gate after the product instead of before.
        activations: types of the activation operators.
    """

    prefix: str
    projected: Sequence[str]
    recurrent: str
    inner: str
    hidden: int
    resets_after: bool
    activations: Sequence[str]


Step = Callable[[RecurrentWriter, Direction, int, str, str], tuple[str, str]]
"""Writes step t, given the names of the state and the cell, each (batch, hidden) or "" for zeros.
Returns the names of the next state and cell."""


def _sums(w: RecurrentWriter, d: Direction, t: int, state: str) -> str:
    """Write x(t)·Wᵀ + h(t-1)·Rᵀ plus the biases."""
    if not state:
        return d.projected[t]
    product = w.emit("MatMul", [state, d.recurrent], f"{d.prefix}{t}/recurrent")
    return w.emit("Add", [product, d.projected[t]], f"{d.prefix}{t}/sums")


def lstm(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """Write one LSTM step with gates i, o, f and c.

    The cell is c(t) = f·c(t-1) + i·c, and the state is h(t) = o·tanh(c(t)).
    """
    at, h = f"{d.prefix}{t}/", d.hidden
    *gates, last = w.gates(_sums(w, d, t, state), 4, h, f"{at}gates")
    i, o, f = (
        w.emit(d.activations[0], [gate], f"{at}{name}")
        for name, gate in zip("iof", gates, strict=True)
    )
    new = w.emit("Mul", [i, w.emit(d.activations[1], [last], f"{at}new")], f"{at}taken")
    if cell:
        new = w.emit("Add", [w.emit("Mul", [f, cell], f"{at}kept"), new], f"{at}cell")
    shown = w.emit(d.activations[2], [new], f"{at}shown")
    return w.emit("Mul", [o, shown], f"{at}state"), new


def gru(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """Write one GRU step with gates z, r and h: h(t) = (1 - z)·h + z·h(t-1)."""
    at, h = f"{d.prefix}{t}/", d.hidden
    x_gates, x_new = w.split(d.projected[t], [2 * h, h], 1, f"{at}data")
    if state and d.resets_after:
        product = w.emit("MatMul", [state, d.recurrent], f"{at}recurrent")
        h_gates, inner = w.split(product, [2 * h, h], 1, f"{at}products")
    elif state:
        first, last = w.columns(d.recurrent, {"gates": 2 * h, "new": h})
        h_gates = w.emit("MatMul", [state, first], f"{at}recurrent")
    gates = w.emit("Add", [h_gates, x_gates], f"{at}sums") if state else x_gates
    z, r = w.split(w.emit(d.activations[0], [gates], f"{at}opened"), [h, h], 1, f"{at}zr")
    if d.resets_after:
        parts = [name for name in (inner if state else "", d.inner) if name]
        added = w.emit("Add", parts, f"{at}inner") if len(parts) > 1 else "".join(parts)
        reset = w.emit("Mul", [r, added], f"{at}reset") if added else ""
    else:
        kept = w.emit("Mul", [r, state], f"{at}reset") if state else ""
        reset = w.emit("MatMul", [kept, last], f"{at}new_product") if kept else ""
    sums = w.emit("Add", [reset, x_new], f"{at}new_sums") if reset else x_new
    new = w.emit(d.activations[1], [sums], f"{at}new")
    # (1 - z)·new + z·state, computed as new + z·(state - new)
    if state:
        change = w.emit("Sub", [state, new], f"{at}change")
    else:
        change = w.emit("Neg", [new], f"{at}change")
    moved = w.emit("Mul", [z, change], f"{at}moved")
    return w.emit("Add", [new, moved], f"{at}state"), ""


def rnn(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """Write one step of a plain RNN: h(t) is the activation of the sums."""
    return w.emit(d.activations[0], [_sums(w, d, t, state)], f"{d.prefix}{t}/state"), ""


STEPS: Mapping[str, Step] = {"LSTM": lstm, "GRU": gru, "RNN": rnn}
"""The function that writes a step, by operator type."""


OLDEST_OPSET = 13
"""Oldest opset whose operators a step uses. Nearly all models have been converted to a newer
one."""


def unroll_recurrent(normal: NormalGraph) -> None:
    """Replace each recurrent operator that can be unrolled by the operators of its steps.

    The graph is changed in place.
    """
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
        for new_node in unrolled.writer.nodes:
            normal.add_operator(new_node)
        steps = f"unrolled into {unrolled.steps} steps, whose operators follow"
        normal.absorbed[node.name] = Absorbed(unrolled.projections[0], steps)
    if len(nodes) != len(normal.graph.node):
        normal.replace_nodes(nodes)


class _Unrolled:
    """Writes the operators of one recurrent operator. States have shape (batch, hidden)."""

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
        """Write all operators."""
        data = self._node.input[0]
        states, cells, all_steps = [], [], []
        for index, name in enumerate(directions_of(self._node)):
            several = len(directions_of(self._node)) > 1
            step_states, last, cell = self._direction(data, index, name, f"{name}/" * several)
            all_steps.append(step_states)
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
        """Write one direction.

        Returns the states after each step in the order of the data, the last state and the last
        cell.
        """
        direction = self._projected(data, place, prefix)
        state = self._initial(INITIAL_H, place, f"{prefix}initial_h")
        cell = self._initial(INITIAL_C, place, f"{prefix}initial_c")
        order = range(self.steps) if name == "forward" else range(self.steps - 1, -1, -1)
        step_states = [""] * self.steps
        step = STEPS[self._node.op_type]
        for t in order:
            state, cell = step(self.writer, direction, t, state, cell)
            step_states[t] = state
        return step_states, state, cell

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
        direction_activations = activations[
            place * len(activations) // len(directions_of(self._node)) :
        ]
        return Direction(
            prefix,
            projected,
            recurrent,
            named,
            self._hidden,
            self._resets_after,
            direction_activations,
        )

    @property
    def _columns(self) -> int:
        return self._gates * self._hidden

    def _weight(self, place: int, direction: int) -> NDArray[np.float32] | None:
        """Return the weights of one direction as (inputs, gates · hidden), or None for stubs."""
        tensor = self._tensors[self._node.input[place]]
        return None if is_stub(tensor) else numpy_helper.to_array(tensor)[direction].T

    def _biases(self, direction: int) -> tuple[NDArray[np.float32] | None, ...]:
        """Return the bias of all gates, and the GRU bias that is multiplied by the reset gate.

        Each is None if it does not exist.
        """
        name = input_at(self._node, 3)
        if not name:
            return None, None
        if is_stub(self._tensors[name]):
            both = np.zeros((2, self._columns), np.float32)  # a stub: only the shapes are used
        else:
            both = numpy_helper.to_array(self._tensors[name])[direction].reshape(2, -1)
        if self._node.op_type != "GRU" or not self._resets_after:
            return both.sum(0, dtype=both.dtype), None
        outer = both[0].copy()
        outer[: 2 * self._hidden] += both[1][: 2 * self._hidden]
        return outer, both[1][2 * self._hidden :].copy()

    def _initial(self, place: int, direction: int, name: str) -> str:
        """Return the name of an initial state, "" if it is zero."""
        state = input_at(self._node, place)
        if not state or (place == INITIAL_C and self._node.op_type != "LSTM"):
            return ""
        if len(directions_of(self._node)) > 1:
            state = self.writer.split(state, [1, 1], 0, f"{name}_split")[direction]
        shape = self.writer.integers(f"{name}_shape", [self._batch, self._hidden])
        return self.writer.emit("Reshape", [state, shape], name)

    def _whole(self, states: Sequence[Sequence[str]], output: str) -> None:
        """Write the states of all steps as (steps, directions, batch, hidden)."""
        shape = self.writer.integers("states_shape", [self.steps, 1, self._batch, self._hidden])
        parts = []
        for index, step_states in enumerate(states):
            rows = step_states[0]
            if self.steps > 1:
                rows = self.writer.emit("Concat", step_states, f"states_{index}", axis=0)
            parts.append(self.writer.emit("Reshape", [rows, shape], f"states_{index}_shaped"))
        if len(parts) > 1:
            self.writer.emit("Concat", parts, "states", axis=1)
        self.writer.nodes[-1].output[0] = output

    def _last(self, states: Sequence[str], output: str, role: str) -> None:
        """Write the states after the last step as (directions, batch, hidden)."""
        shape = self.writer.integers(f"last_{role}_shape", [1, self._batch, self._hidden])
        parts = [
            self.writer.emit("Reshape", [state, shape], f"{output}_{index}")
            for index, state in enumerate(states)
        ]
        if len(parts) > 1:
            self.writer.emit("Concat", parts, f"{output}_whole", axis=0)
        self.writer.nodes[-1].output[0] = output
