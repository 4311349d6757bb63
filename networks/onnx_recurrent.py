"""LSTM, GRU and RNN, unrolled over a sequence of known length into products, activations and sums.

The equations are those of the ONNX operators. With gates g, data x(t) and state h(t-1):

    s(t) = x(t)·Wᵀ + h(t-1)·Rᵀ + Wb + Rb

The products with the data are one for all steps; those with the state share their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from networks.graph import STANDARD_DOMAINS, Absorbed, NormalGraph, Shape
from networks.onnx_file import is_stub, stub

MAX_STEPS = 512
"""Of all directions: a step is a dozen operators, each of which is imported and compiled."""

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip
KNOWN = ("Sigmoid", "Tanh", "Relu")
"""Activations without parameters, which are operators of their own."""
LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLES = 4, 5, 6, 7
"""The places of optional inputs."""


def obstacle(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], tensors: Mapping[str, onnx.TensorProto]
) -> str:
    """Why a recurrent operator cannot be unrolled; "" where it can."""
    attributes = _attributes(node)
    if _input(node, PEEPHOLES):
        return "peepholes (its input P) are not computed"
    if attributes.get("clip"):
        return "clip, which cuts what its activations read, is not computed"
    if attributes.get("input_forget"):
        return "input_forget=1, which couples two gates, is not computed"
    if unknown := [name for name in _activations(node) if name not in KNOWN]:
        return f"the activation {unknown[0]} is not computed, only {', '.join(KNOWN)}"
    shape = shapes.get(node.input[0])
    if shape is None:
        return "the length of its sequence is not known before the model runs"
    if any(_input(node, place) not in tensors for place in (1, 2)):
        return "its weights must be constants, here they are computed"
    if _input(node, 3) and _input(node, 3) not in tensors:
        return "its biases must be constants, here they are computed"
    steps = shape[0]
    lengths = _input(node, LENGTHS)
    if lengths:
        known = tensors.get(lengths)
        if known is None or is_stub(known) or (numpy_helper.to_array(known) != steps).any():
            return (
                "lengths of single sequences (its input sequence_lens) are not heeded; all must be "
                f"{steps}, as constants"
            )
    if steps * len(_directions(node)) > MAX_STEPS:
        return f"it has {steps} steps, and at most {MAX_STEPS} of all directions are unrolled"
    return ""


def steps_first(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Give recurrent operators whose data begin with the batch (layout=1) the other form, between
    transpositions, in place; those transpositions. onnxruntime runs that form alone."""
    nodes: list[onnx.NodeProto] = []
    added: list[onnx.NodeProto] = []
    for position, node in enumerate(graph.node):
        before: list[onnx.NodeProto] = []
        after: list[onnx.NodeProto] = []
        if node.op_type in GATES and _attributes(node).get("layout"):
            name = node.name or f"{node.op_type}_{position}"
            for attribute in [a for a in node.attribute if a.name == "layout"]:
                node.attribute.remove(attribute)
            for place in (0, INITIAL_H, INITIAL_C):
                if given := _input(node, place):
                    node.input[place] = f"{name}/{given}/steps_first"
                    before.append(_transposed(given, node.input[place], [1, 0, 2]))
            for place, result in enumerate(node.output):
                if result:
                    node.output[place] = f"{name}/{result}/steps_first"
                    order = [1, 0, 2] if place else [2, 0, 1, 3]
                    after.append(_transposed(node.output[place], result, order))
        nodes += [*before, node, *after]
        added += [*before, *after]
    if added:
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return added


def _transposed(source: str, result: str, order: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], name=f"{result}/transpose", perm=order)


def unroll(normal: NormalGraph) -> None:
    """Replace every recurrent operator that nothing is in the way of, in place."""
    shapes, tensors = normal.shapes(), normal.tensors()
    nodes: list[onnx.NodeProto] = []
    for node in normal.graph.node:
        known = node.op_type in GATES and node.domain in STANDARD_DOMAINS
        if not known or obstacle(node, shapes, tensors):
            nodes.append(node)
            continue
        writer = _Unrolled(normal, node, shapes, tensors)
        writer.write()
        nodes += writer.nodes
        for each in writer.nodes:
            normal.add_operator(each)
        steps = f"unrolled into {writer.steps} steps, whose operators follow"
        normal.absorbed[node.name] = Absorbed(writer.projections[0], steps)
    if len(nodes) != len(normal.graph.node):
        normal.replace_nodes(nodes)


@dataclass(frozen=True)
class _Direction:
    """`projected` names the sums of products with the data, a step each; `recurrent` the weights
    (hidden, gates · hidden) of the state, `inner` the GRU's bias within its reset."""

    prefix: str
    projected: Sequence[str]
    recurrent: str
    inner: str


class _Unrolled:
    """The operators that one recurrent operator becomes. States are (batch, hidden)."""

    def __init__(
        self,
        normal: NormalGraph,
        node: onnx.NodeProto,
        shapes: Mapping[str, Shape],
        tensors: Mapping[str, onnx.TensorProto],
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.projections: list[str] = []
        self._normal = normal
        self._node = node
        self._tensors = tensors
        self._opset = max(
            (o.version for o in normal.model.opset_import if o.domain in STANDARD_DOMAINS),
            default=14,
        )
        self.steps, self._batch, _ = shapes[node.input[0]]
        _, rows, self._inputs = shapes[node.input[1]]
        self._gates = GATES[node.op_type]
        self._hidden = rows // self._gates
        self._resets_after = bool(_attributes(node).get("linear_before_reset"))
        self._taken = {operator.name for operator in normal.operators}

    def write(self) -> None:
        """Append them."""
        data = self._node.input[0]
        states, cells, all_steps = [], [], []
        for place, name in enumerate(_directions(self._node)):
            several = len(_directions(self._node)) > 1
            made, last, cell = self._direction(data, place, name, f"{name}/" * several)
            all_steps.append(made)
            states.append(last)
            cells.append(cell)
        outputs = [*self._node.output, "", "", ""]
        if outputs[0]:
            self._whole(all_steps, outputs[0])
        for name, values in ((outputs[1], states), (outputs[2], cells)):
            if name:
                self._last(values, name)

    def _direction(
        self, data: str, place: int, name: str, prefix: str
    ) -> tuple[list[str], str, str]:
        """The states after each step, in the order of the data, and the last state and cell."""
        direction = self._projected(data, place, prefix)
        state = self._initial(INITIAL_H, place, f"{prefix}initial_h")
        cell = self._initial(INITIAL_C, place, f"{prefix}initial_c")
        order = range(self.steps) if name == "forward" else range(self.steps - 1, -1, -1)
        made = [""] * self.steps
        activations = _activations(self._node)
        own = activations[place * len(activations) // len(_directions(self._node)) :]
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._node.op_type]
        for t in order:
            state, cell = step(direction, t, state, cell, own)
            made[t] = state
        return made, state, cell

    def _projected(self, data: str, place: int, prefix: str) -> _Direction:
        weight = self._constant(f"{prefix}weight", (self._inputs, self._columns), self._weight(
            1, place
        ))  # fmt: skip
        recurrent = self._constant(f"{prefix}recurrence", (self._hidden, self._columns), (
            self._weight(2, place)
        ))  # fmt: skip
        sums = self._emit("MatMul", [data, weight], f"{prefix}input")
        self.projections.append(self.nodes[-1].name)
        bias, inner = self._biases(place)
        if bias is not None:
            sums = self._emit("Add", [sums, self._constant(f"{prefix}bias", bias.shape, bias)],
                              f"{prefix}input_bias")  # fmt: skip
        flat = [self.steps * self._batch, self._columns]
        rows = self._emit("Reshape", [sums, self._integers(f"{prefix}rows", flat)],
                          f"{prefix}input_rows")  # fmt: skip
        projected = self._split(rows, [self._batch] * self.steps, 0, f"{prefix}steps")
        named = "" if inner is None else self._constant(f"{prefix}inner", inner.shape, inner)
        return _Direction(prefix, projected, recurrent, named)

    @property
    def _columns(self) -> int:
        return self._gates * self._hidden

    def _weight(self, place: int, direction: int) -> NDArray[np.float32] | None:
        """(inputs, gates · hidden) of one direction; None without data."""
        tensor = self._tensors[self._node.input[place]]
        return None if is_stub(tensor) else numpy_helper.to_array(tensor)[direction].T

    def _biases(self, direction: int) -> tuple[NDArray[np.float32] | None, ...]:
        """What is added to all gates, and what a GRU that resets after the product adds before."""
        name = _input(self._node, 3)
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
        given = _input(self._node, place)
        if not given or (place == INITIAL_C and self._node.op_type != "LSTM"):
            return ""
        if len(_directions(self._node)) > 1:
            given = self._split(given, [1, 1], 0, f"{name}_split")[direction]
        shape = self._integers(f"{name}_shape", [self._batch, self._hidden])
        return self._emit("Reshape", [given, shape], name)

    def _sums(self, d: _Direction, t: int, state: str) -> str:
        if not state:
            return d.projected[t]
        product = self._emit("MatMul", [state, d.recurrent], f"{d.prefix}{t}/recurrent")
        return self._emit("Add", [product, d.projected[t]], f"{d.prefix}{t}/sums")

    def _lstm(
        self, d: _Direction, t: int, state: str, cell: str, activations: Sequence[str]
    ) -> tuple[str, str]:
        at, h = f"{d.prefix}{t}/", self._hidden
        three, last = self._split(self._sums(d, t, state), [3 * h, h], 1, f"{at}gates")
        opened = self._emit(activations[0], [three], f"{at}opened")
        i, o, f = self._split(opened, [h, h, h], 1, f"{at}iof")
        new = self._emit("Mul", [i, self._emit(activations[1], [last], f"{at}new")], f"{at}taken")
        if cell:
            new = self._emit("Add", [self._emit("Mul", [f, cell], f"{at}kept"), new], f"{at}cell")
        shown = self._emit(activations[2], [new], f"{at}shown")
        return self._emit("Mul", [o, shown], f"{at}state"), new

    def _gru(
        self, d: _Direction, t: int, state: str, cell: str, activations: Sequence[str]
    ) -> tuple[str, str]:
        at, h = f"{d.prefix}{t}/", self._hidden
        x_gates, x_new = self._split(d.projected[t], [2 * h, h], 1, f"{at}data")
        if state and self._resets_after:
            product = self._emit("MatMul", [state, d.recurrent], f"{at}recurrent")
            h_gates, inner = self._split(product, [2 * h, h], 1, f"{at}products")
        elif state:
            first, last = self._gru_weights(d)
            h_gates = self._emit("MatMul", [state, first], f"{at}recurrent")
        gates = self._emit("Add", [h_gates, x_gates], f"{at}sums") if state else x_gates
        z, r = self._split(self._emit(activations[0], [gates], f"{at}opened"), [h, h], 1, f"{at}zr")
        if self._resets_after:
            parts = [name for name in (inner if state else "", d.inner) if name]
            added = self._emit("Add", parts, f"{at}inner") if len(parts) > 1 else "".join(parts)
            reset = self._emit("Mul", [r, added], f"{at}reset") if added else ""
        else:
            kept = self._emit("Mul", [r, state], f"{at}reset") if state else ""
            reset = self._emit("MatMul", [kept, last], f"{at}new_product") if kept else ""
        sums = self._emit("Add", [reset, x_new], f"{at}new_sums") if reset else x_new
        new = self._emit(activations[1], [sums], f"{at}new")
        # (1 - z)·new + z·state, as new + z·(state - new)
        if state:
            change = self._emit("Sub", [state, new], f"{at}change")
        else:
            change = self._emit("Neg", [new], f"{at}change")
        moved = self._emit("Mul", [z, change], f"{at}moved")
        return self._emit("Add", [new, moved], f"{at}state"), ""

    def _gru_weights(self, d: _Direction) -> tuple[str, str]:
        """Those of the gates, and of the new state behind the reset."""
        names = f"{d.recurrent}/gates", f"{d.recurrent}/new"
        sizes = 2 * self._hidden, self._hidden
        if names[0] not in {tensor.name for tensor in self._normal.graph.initializer}:
            whole = self._normal.tensors()[d.recurrent]
            values = None if is_stub(whole) else numpy_helper.to_array(whole)
            for name, size, begin in zip(names, sizes, (0, sizes[0]), strict=True):
                part = None if values is None else values[:, begin : begin + size]
                self._add(name, (self._hidden, size), part)
        return names

    def _rnn(
        self, d: _Direction, t: int, state: str, cell: str, activations: Sequence[str]
    ) -> tuple[str, str]:
        return self._emit(activations[0], [self._sums(d, t, state)], f"{d.prefix}{t}/state"), ""

    def _whole(self, states: Sequence[Sequence[str]], output: str) -> None:
        """The states of all steps: (steps, directions, batch, hidden)."""
        shape = self._integers("states_shape", [self.steps, 1, self._batch, self._hidden])
        parts = []
        for place, each in enumerate(states):
            rows = self._emit("Concat", each, f"states_{place}", axis=0) if self.steps > 1 else (
                each[0]
            )  # fmt: skip
            parts.append(self._emit("Reshape", [rows, shape], f"states_{place}_shaped"))
        if len(parts) > 1:
            self._emit("Concat", parts, "states", axis=1)
        self.nodes[-1].output[0] = output

    def _last(self, states: Sequence[str], output: str) -> None:
        """The states after the last step: (directions, batch, hidden)."""
        shape = self._integers("last_shape", [1, self._batch, self._hidden])
        parts = [
            self._emit("Reshape", [state, shape], f"{output}_{place}")
            for place, state in enumerate(states)
        ]
        if len(parts) > 1:
            self._emit("Concat", parts, f"{output}_whole", axis=0)
        self.nodes[-1].output[0] = output

    def _emit(self, kind: str, inputs: Sequence[str], name: str, **attributes: object) -> str:
        """Append an operator; its result."""
        name = self._named(name)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def _split(self, source: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
        if len(sizes) == 1:
            return [source]
        name = self._named(name)
        results = [f"{name}.{place}" for place in range(len(sizes))]
        if self._opset < 13:
            node = helper.make_node("Split", [source], results, axis=axis, split=list(sizes))
        else:
            node = helper.make_node(
                "Split", [source, self._integers(f"{name}/sizes", sizes)], results, axis=axis
            )
        node.name = name
        self.nodes.append(node)
        return results

    def _named(self, name: str) -> str:
        """A name that no operator has."""
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _integers(self, name: str, values: Sequence[int]) -> str:
        return self._constant(f"{name}", (len(values),), np.array(values, np.int64))

    def _constant(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> str:
        name = f"{self._node.name}/{name.removeprefix(f'{self._node.name}/')}#"
        self._add(name, shape, values)
        return name

    def _add(self, name: str, shape: Shape, values: NDArray[np.generic] | None) -> None:
        if values is None:
            self._normal.add_tensor(stub(name, shape, onnx.TensorProto.FLOAT))
        else:
            array = np.ascontiguousarray(values)
            self._normal.add_tensor(numpy_helper.from_array(array, name))


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""


def _attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _directions(node: onnx.NodeProto) -> tuple[str, ...]:
    given = next((a.s.decode() for a in node.attribute if a.name == "direction"), "forward")
    return ("forward", "reverse") if given == "bidirectional" else (given,)


def _activations(node: onnx.NodeProto) -> list[str]:
    """Of all directions, with the capitals of ONNX's operators."""
    given = [each for a in node.attribute if a.name == "activations" for each in a.strings]
    named = [each.decode().capitalize() for each in given]
    return named or list(ACTIVATIONS[node.op_type]) * len(_directions(node))
