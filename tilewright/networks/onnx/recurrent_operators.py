"""Unroll ONNX's recurrent operators LSTM, GRU and RNN over a known number of steps.

The unrolled form consists of the matrix products, activations and sums in the operator's equations.
`obstacle` gives the reason if an operator cannot be unrolled.

`steps_first` converts batch-first operators to the layout in which the steps are the first
dimension.
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

MAX_STEPS = 512
"""Maximum number of steps of all directions of an operator that is unrolled. Each step becomes
about a dozen operators, which have to be imported and compiled."""

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip
KNOWN = ("Sigmoid", "Tanh", "Relu")
"""Supported activation functions. They have no parameters, and ONNX has an operator for each of
them."""
LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = 4, 5, 6, 7
"""Indices of the optional inputs: sequence lengths, initial hidden state, initial cell state, and
peephole weights."""


def obstacle(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], tensors: Mapping[str, onnx.TensorProto]
) -> str:
    """Return the reason why a recurrent operator cannot be unrolled.

    Args:
        node: an LSTM, GRU or RNN.
        shapes: known shapes by tensor name.
        tensors: constants by tensor name.

    Returns:
        The reason, "" if the operator can be unrolled.
    """
    attributes = attributes_of(node)
    if input_at(node, PEEPHOLES):
        return "peepholes (input P) are not supported"
    if attributes.get("clip"):
        return "the attribute clip, which clips the inputs of the activations, is not supported"
    if attributes.get("input_forget"):
        return "input_forget=1, which couples two gates, is not supported"
    if unknown := [name for name in activations_of(node) if name not in KNOWN]:
        return f"the activation {unknown[0]} is not supported, only {', '.join(KNOWN)}"
    shape = shapes.get(node.input[0])
    if shape is None:
        return "the length of its sequence is not known before the model runs"
    if any(input_at(node, place) not in tensors for place in (1, 2)):
        return "its weights must be constants, but they are computed"
    if input_at(node, 3) and input_at(node, 3) not in tensors:
        return "its biases must be constants, but they are computed"
    steps = shape[0]
    lengths = input_at(node, LENGTHS)
    if lengths:
        known = tensors.get(lengths)
        if known is None or is_stub(known) or (numpy_helper.to_array(known) != steps).any():
            return (
                "different lengths of sequences (input sequence_lens) are not supported; "
                f"all lengths must be the constant {steps}"
            )
    if steps * len(directions_of(node)) > MAX_STEPS:
        return (
            f"it has {steps} steps, but at most {MAX_STEPS} steps of all directions can be unrolled"
        )
    return ""


def input_at(node: onnx.NodeProto, place: int) -> str:
    """Return the name of one of an operator's inputs.

    Args:
        node: the operator.
        place: index of the input.

    Returns:
        The name, or "" if the operator does not have this input.
    """
    return node.input[place] if place < len(node.input) else ""


def attributes_of(node: onnx.NodeProto) -> dict[str, object]:
    """Return the values of the attributes that an operator states explicitly, by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def directions_of(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the directions of a recurrent operator, each "forward" or "reverse"."""
    given = next((a.s.decode() for a in node.attribute if a.name == "direction"), "forward")
    return ("forward", "reverse") if given == "bidirectional" else (given,)


def activations_of(node: onnx.NodeProto) -> list[str]:
    """Return the activations of all directions as ONNX operator types, such as "Tanh"."""
    given = [string for a in node.attribute if a.name == "activations" for string in a.strings]
    named = [item.decode().capitalize() for item in given]
    return named or list(ACTIVATIONS[node.op_type]) * len(directions_of(node))


def steps_first(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Convert batch-first recurrent operators (layout=1) to layout=0, in place.

    Transposes are inserted before and after each of these operators. onnxruntime supports only
    layout=0.

    Args:
        graph: the graph.

    Returns:
        The inserted Transposes.
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
            for place in (0, INITIAL_H, INITIAL_C):
                if given := input_at(node, place):
                    node.input[place] = f"{name}/{given}/steps_first"
                    before.append(_transpose_node(given, node.input[place], [1, 0, 2]))
            for place, result in enumerate(node.output):
                if result:
                    node.output[place] = f"{name}/{result}/steps_first"
                    order = [1, 0, 2] if place else [2, 0, 1, 3]
                    after.append(_transpose_node(node.output[place], result, order))
        nodes += [*before, node, *after]
        added += [*before, *after]
    if added:
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return added


def _transpose_node(source: str, result: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], name=f"{result}/transpose", perm=order)


class RecurrentWriter:
    """Writer of the operators and constants that replace one recurrent operator.

    Operators are collected in `nodes`. Constants are added to the graph immediately.

    Args:
        normal: the graph.
        node: the recurrent operator. Its name is the prefix of all new names.

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
        """Append an operator and return the name of its result.

        Args:
            kind: ONNX type of the operator.
            inputs: names of the input tensors.
            name: name of the operator and of its result, without the prefix.
            **attributes: attributes of the operator.
        """
        name = self._free_name(name)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def split(self, source: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
        """Append a Split and return the names of its parts.

        Args:
            source: name of the tensor to split.
            sizes: length of each part. If there is only one part, nothing is appended and `source`
                is returned.
            axis: axis along which the tensor is split.
            name: name of the operator, without the prefix.
        """
        if len(sizes) == 1:
            return [source]
        name = self._free_name(name)
        results = [f"{name}.{place}" for place in range(len(sizes))]
        lengths = self.integers(f"{name}/sizes", sizes)
        node = helper.make_node("Split", [source, lengths], results, name=name, axis=axis)
        self.nodes.append(node)
        return results

    def gates(self, source: str, count: int, size: int, name: str) -> list[str]:
        """Cut a matrix into parts with the same number of columns, one part per gate.

        Every part is a separate Slice, because TVM can fuse a Slice with the operators after it. It
        cannot do this with the results of a Split.

        Args:
            source: name of the matrix, of shape (rows, count · size).
            count: number of parts.
            size: columns per part.
            name: prefix of the names of the parts.

        Returns:
            Names of the parts.
        """
        if count == 1:
            return [source]
        return [
            self._columns_of(source, place * size, (place + 1) * size, f"{name}.{place}")
            for place in range(count)
        ]

    def _columns_of(self, source: str, begin: int, end: int, name: str) -> str:
        given = [self._column(place) for place in (begin, end, 1)]
        return self.emit("Slice", [source, *given], name)

    def _column(self, place: int) -> str:
        """Return the name of a constant int64 vector with a single element, a column index.

        Args:
            place: the index. The constant is added on first use.
        """
        if place not in self._columns:
            self._columns[place] = self.integers(f"column/{place}", [place])
        return self._columns[place]

    def columns(self, whole: str, sizes: Mapping[str, int]) -> list[str]:
        """Split a constant matrix into constants that hold consecutive columns.

        Args:
            whole: name of the matrix, of shape (rows, columns).
            sizes: number of columns of each part, by suffix of the part's name. Constants that
                already exist are not added again.

        Returns:
            Names of the parts.
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
        """Add a constant int64 vector and return its name.

        Args:
            name: name of the constant, without the prefix.
            values: elements of the vector.
        """
        return self.constant(f"{name}", (len(values),), np.array(values, np.int64))

    def constant(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> str:
        """Add a constant and return its full name, prefixed with the recurrent operator's name.

        Args:
            name: name of the constant, without the prefix.
            shape: shape of the constant.
            values: elements of the constant. If None, a float32 stub without data is added.
        """
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}#"
        self._add(name, shape, values)
        return name

    def _free_name(self, name: str) -> str:
        """Return an unused operator name that is derived from `name`, and mark it as used."""
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _add(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> None:
        """Add a constant to the graph.

        Args:
            name: full name of the constant.
            shape: shape of the constant.
            values: elements of the constant. If None, a float32 tensor without data is added.
        """
        if values is None:
            self._normal.add_tensor(stub(name, shape, onnx.TensorProto.FLOAT))
        else:
            array = np.ascontiguousarray(values)
            self._normal.add_tensor(numpy_helper.from_array(array, name))


@dataclass(frozen=True)
class Direction:
    """Constants and inputs that all steps of one direction of a recurrent operator read.

    A direction is "forward" or "reverse".

    Attributes:
        prefix: prefix of the names of the direction's operators.
        projected: for each step, the name of the product of the data and the weights, plus biases,
            of shape (batch, gates · hidden).
        recurrent: name of the weights of the state, of shape (hidden, gates · hidden).
        inner: name of the bias that a GRU adds before it multiplies by the reset gate; "" if there
            is none.
        hidden: number of elements of the state.
        resets_after: whether a GRU multiplies by the reset gate after the product with the state
            instead of before it.
        activations: activation functions of the direction, as ONNX operator types.
    """

    prefix: str
    projected: Sequence[str]
    recurrent: str
    inner: str
    hidden: int
    resets_after: bool
    activations: Sequence[str]


Step = Callable[[RecurrentWriter, Direction, int, str, str], tuple[str, str]]
"""Function that appends the operators of one step to the graph. Its arguments are the writer, the
direction, the index of the step, and the names of the previous state and cell, both of shape
(batch, hidden); "" stands for zeros. It returns the names of the new state and cell."""


def _sums(w: RecurrentWriter, d: Direction, t: int, state: str) -> str:
    """Append x(t)·Wᵀ + h(t-1)·Rᵀ plus biases for step `t`, and return the name of the result.

    Args:
        w: the writer.
        d: the direction.
        t: index of the step.
        state: name of the state h(t-1); "" if it is zero.
    """
    if not state:
        return d.projected[t]
    product = w.emit("MatMul", [state, d.recurrent], f"{d.prefix}{t}/recurrent")
    return w.emit("Add", [product, d.projected[t]], f"{d.prefix}{t}/sums")


def lstm(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """Append one step of an LSTM: c(t) = f·c(t-1) + i·g and h(t) = o·tanh(c(t)).

    Here i, o and f are the input, output and forget gates, and g is the new value of the cell. The
    matrix of gates contains them in the order i, o, f, g.

    Args:
        w: the writer.
        d: the direction.
        t: index of the step.
        state: name of the state h(t-1), of shape (batch, hidden); "" if it is zero.
        cell: name of the cell c(t-1), of shape (batch, hidden); "" if it is zero.

    Returns:
        Names of the state h(t) and of the cell c(t).
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
    """Append one step of a GRU: h(t) = (1 - z)·n + z·h(t-1).

    Here z is the update gate and n the new value, in which the reset gate r multiplies the previous
    state.

    Args:
        w: the writer.
        d: the direction.
        t: index of the step.
        state: name of the state h(t-1), of shape (batch, hidden); "" if it is zero.
        cell: not used.

    Returns:
        Name of the state h(t), and "".
    """
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
    # (1 - z)·new + z·state, as new + z·(state - new)
    if state:
        change = w.emit("Sub", [state, new], f"{at}change")
    else:
        change = w.emit("Neg", [new], f"{at}change")
    moved = w.emit("Mul", [z, change], f"{at}moved")
    return w.emit("Add", [new, moved], f"{at}state"), ""


def rnn(w: RecurrentWriter, d: Direction, t: int, state: str, cell: str) -> tuple[str, str]:
    """Append one step of an RNN: h(t) = activation(x(t)·Wᵀ + h(t-1)·Rᵀ + biases).

    Args:
        w: the writer.
        d: the direction.
        t: index of the step.
        state: name of the state h(t-1), of shape (batch, hidden); "" if it is zero.
        cell: not used.

    Returns:
        Name of the state h(t), and "".
    """
    return w.emit(d.activations[0], [_sums(w, d, t, state)], f"{d.prefix}{t}/state"), ""


STEPS: Mapping[str, Step] = {"LSTM": lstm, "GRU": gru, "RNN": rnn}


OLDEST_OPSET = 13
"""Oldest opset of a graph whose recurrent operators are unrolled. The operators of a step are
written in the form of this opset. Nearly all models are converted to a newer opset beforehand."""


def unroll_recurrent(normal: NormalGraph) -> None:
    """Unroll recurrent operators in place into the operators of their steps, where possible.

    `obstacle` states which operators cannot be unrolled. Graphs with an opset below `OLDEST_OPSET`
    are not changed.
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
        for item in unrolled.writer.nodes:
            normal.add_operator(item)
        steps = f"unrolled into {unrolled.steps} steps, whose operators follow"
        normal.absorbed[node.name] = Absorbed(unrolled.projections[0], steps)
    if len(nodes) != len(normal.graph.node):
        normal.replace_nodes(nodes)


class _Unrolled:
    """Conversion of one recurrent operator to the operators of its steps.

    States have shape (batch, hidden).

    Args:
        normal: the graph.
        node: the recurrent operator.
        shapes: known shapes by tensor name.
        tensors: constants by tensor name.

    Attributes:
        writer: writer of the new operators.
        projections: for each direction, the name of the matrix product of the weights and the data
            of all steps.
        steps: number of steps.
    """

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
        """Write the operators of all directions and steps, and the recurrent operator's outputs."""
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
            self._write_all_states(all_steps, outputs[0])
        for role, name, values in (("h", outputs[1], states), ("c", outputs[2], cells)):
            if name:
                self._write_last_states(values, name, role)

    def _direction(
        self, data: str, place: int, name: str, prefix: str
    ) -> tuple[list[str], str, str]:
        """Write all steps of one direction.

        Args:
            data: name of the data.
            place: index of the direction.
            name: "forward" or "reverse".
            prefix: prefix of the names of new operators.

        Returns:
            Names of the states after each step, in the order of the data; name of the last state;
            name of the last cell.
        """
        direction = self._project_inputs(data, place, prefix)
        state = self._initial(INITIAL_H, place, f"{prefix}initial_h")
        cell = self._initial(INITIAL_C, place, f"{prefix}initial_c")
        order = range(self.steps) if name == "forward" else range(self.steps - 1, -1, -1)
        made = [""] * self.steps
        step = STEPS[self._node.op_type]
        for t in order:
            state, cell = step(self.writer, direction, t, state, cell)
            made[t] = state
        return made, state, cell

    def _project_inputs(self, data: str, place: int, prefix: str) -> Direction:
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
        """Return the transposed weights of one direction, or None if they have no data.

        Args:
            place: input index of the weights: 1 for the weights of the data, 2 for the weights of
                the state.
            direction: index of the direction.

        Returns:
            float32 array of shape (inputs or hidden, gates · hidden).
        """
        tensor = self._tensors[self._node.input[place]]
        return None if is_stub(tensor) else numpy_helper.to_array(tensor)[direction].T

    def _biases(self, direction: int) -> tuple[NDArray[np.float32] | None, ...]:
        """Return the two biases of one direction, each None if it is not needed.

        Returns:
            First, the bias that is added to the products with the data, of shape (gates · hidden,).
            Second, the bias that a GRU adds before it multiplies by the reset gate, of shape
            (hidden,). Only a GRU with `linear_before_reset` has the second one.
        """
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
        """Return the name of the state or cell before the first step, or "" if it is zero.

        Args:
            place: index of the input that holds the initial states or cells of all directions.
            direction: index of the direction.
            name: name of the operator that reshapes the state to (batch, hidden).
        """
        given = input_at(self._node, place)
        if not given or (place == INITIAL_C and self._node.op_type != "LSTM"):
            return ""
        if len(directions_of(self._node)) > 1:
            given = self.writer.split(given, [1, 1], 0, f"{name}_split")[direction]
        shape = self.writer.integers(f"{name}_shape", [self._batch, self._hidden])
        return self.writer.emit("Reshape", [given, shape], name)

    def _write_all_states(self, states: Sequence[Sequence[str]], output: str) -> None:
        """Write the states of all steps to an output of shape (steps, directions, batch, hidden).

        Args:
            states: for each direction, the names of the states after each step.
            output: name of the output.
        """
        shape = self.writer.integers("states_shape", [self.steps, 1, self._batch, self._hidden])
        parts = []
        for place, state in enumerate(states):
            rows = state[0]
            if self.steps > 1:
                rows = self.writer.emit("Concat", state, f"states_{place}", axis=0)
            parts.append(self.writer.emit("Reshape", [rows, shape], f"states_{place}_shaped"))
        if len(parts) > 1:
            self.writer.emit("Concat", parts, "states", axis=1)
        self.writer.nodes[-1].output[0] = output

    def _write_last_states(self, states: Sequence[str], output: str, role: str) -> None:
        """Write the states after the last step to an output of shape (directions, batch, hidden).

        Args:
            states: for each direction, the name of the last state or cell.
            output: name of the output.
            role: "h" for states and "c" for cells, used in names.
        """
        shape = self.writer.integers(f"last_{role}_shape", [1, self._batch, self._hidden])
        parts = [
            self.writer.emit("Reshape", [state, shape], f"{output}_{place}")
            for place, state in enumerate(states)
        ]
        if len(parts) > 1:
            self.writer.emit("Concat", parts, f"{output}_whole", axis=0)
        self.writer.nodes[-1].output[0] = output
