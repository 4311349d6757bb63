"""Find recurrences that are written step by step, and compile each into one function.

`networks.onnx.recurrent_operators` unrolls a recurrent operator (RNN, LSTM or GRU) into its steps.
Each step multiplies the state by the same weights, and computes the new state with elementwise
operators. As separate function calls, the calls would cost about as much time as the computation
itself. One function with a loop over the steps avoids these costs. The inputs have shape (steps,
gates), the weights (state, gates), and each state (1, state).

    loop over the steps
      loop over column tiles of the weights   sums of several vectors stay in registers
        loop over the state                   broadcast one value, multiply-add it to the vectors
      loop over the state                     in vectors: compute the new states from the sums
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.core.bfloat16 import rounded_array
from tilewright.core.tvm_types import Array, Expression, PrimFunc, RelaxExpr, RelaxVar, TirBuffer
from tilewright.networks.compiled.vector_math import bfloat16_to_float32, sigmoid_of, tanh_of
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.targets.anchor import DType

FEWEST = 4
"""Minimum number of steps for which one function for all steps is worthwhile (`python -m
benchmarks.cpu.networks --networks lstm_2,gru_2`)."""
MOST_BFLOAT16 = 1 << 17
"""Maximum number of weights for which the vectors of this function are used in place of bfloat16
tiles. The value lies between the two sizes that were measured, 49,000 and 262,000 weights (`python
-m benchmarks.cpu.networks --networks lstm_2,gru_2 --precision bf16`, on a Xeon with AMX)."""
VECTOR = 16
"""Number of float32 values per vector."""
PAIRS = frozenset((
    "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum",
    "relax.minimum",
))  # fmt: skip
"""Supported elementwise operators with two operands."""
EACH = frozenset(("relax.sigmoid", "relax.tanh", "relax.negative", "relax.nn.relu"))
"""Supported elementwise operators with one operand."""
# Name of the product in each step, as `networks.onnx.recurrent_operators` writes it.
_STEP = re.compile(r"(.+)/\d+/recurrent")
Same = TypeVar("Same")
Formula = tuple[Any, ...]
"""Expression that computes one element of a new state.

The first item is the name of an operator, followed by the formulas of its operands. For a value
that is read, it is one of these tuples instead: ("sums", offset), ("given", offset), ("state",
index), ("constant", index, offset) or ("number", value)."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A recurrence whose steps all have the same form.

    Attributes:
        given: variable of the inputs (steps, gates).
        first: row of the inputs that the first step reads.
        by: distance between the input rows of consecutive steps: 1, or −1 for a backward
            recurrence.
        weights: weights of shape (state, gates).
        begin: variables of the initial states.
        states: formulas of the states after a step. The first state is the one that is multiplied
            by the weights.
        constants: constants that the formulas read.
        results: variable of the first state after each step.
        inside: all variables that the function computes.
        product: variable of the product in the first step.
    """

    given: RelaxVar
    first: int
    by: int
    weights: NDArray[np.float32]
    begin: Sequence[RelaxVar]
    states: Sequence[Formula]
    constants: Sequence[NDArray[np.float32]]
    results: Sequence[RelaxVar]
    inside: frozenset[RelaxVar]
    product: RelaxVar

    def is_worth_a_function(self, dtype: DType) -> bool:
        """Return whether one function is faster than separate calls.

        Large weights are an exception: bfloat16 tiles multiply a state by them faster than the
        vectors of this function do.

        Args:
            dtype: type in which layers multiply.
        """
        return dtype != "bfloat16" or self.weights.size <= MOST_BFLOAT16


def recurrences(flat: FlatGraph) -> list[Recurrence]:
    """Find the recurrences of a network that can be compiled into one function each.

    Args:
        flat: the network.
    """
    steps: dict[str, list[Binding]] = defaultdict(list)
    for binding in flat.bindings:
        if binding.op == "relax.matmul" and (step_name := _STEP.fullmatch(binding.node)):
            steps[step_name[1]].append(binding)
    order = {binding.var: number for number, binding in enumerate(flat.bindings)}
    candidates = (_Steps(flat, order, products).recurrence() for products in steps.values())
    return [recurrence for recurrence in candidates if recurrence is not None]


class _Unlike(Exception):
    """Raised if the steps of a recurrence differ, or if one function cannot compute them."""


def _same(values: Iterable[Same]) -> Same:
    """Return the value that all steps of a recurrence have in common.

    Args:
        values: one value per step.

    Raises:
        _Unlike: two values differ.
    """
    first, *rest = values
    if any(other != first for other in rest):
        raise _Unlike
    return first


@dataclass(eq=False)
class _Steps:
    """The steps of one recurrent operator.

    Attributes:
        flat: the network.
        order: position of each variable in the network.
        products: the product of the state with the weights, one per step.
        constants: constants that were found in the steps.
    """

    flat: FlatGraph
    order: Mapping[RelaxVar, int]
    products: Sequence[Binding]
    constants: list[NDArray[np.float32]] = field(default_factory=list)

    def recurrence(self) -> Recurrence | None:
        """Return the recurrence, or None if the steps cannot be compiled into one function."""
        if len(self.products) < FEWEST:
            return None
        try:
            return self._find_recurrence()
        except _Unlike:
            return None

    def _find_recurrence(self) -> Recurrence:
        weights = self._weights()
        last = self.products[-1]
        # Results have the same name in every step.
        name = self.flat.by_var[last.args[0]].node.rpartition("/")[2]
        results = [product.args[0] for product in self.products[1:]]
        results.append(self._find_variable(f"{last.node.rpartition('/')[0]}/{name}"))
        steps = [_Step(self, product, weights.shape[0]) for product in self.products]
        shown = _same(step.expression(result) for step, result in zip(steps, results, strict=True))
        later_states = _same(
            [step.expression(var) for var in behind.states[1:]]
            for step, behind in itertools.pairwise(steps)
        )
        if len({len(step.states) for step in steps}) > 1:
            raise _Unlike
        begin, by = steps[0], steps[1].row - steps[0].row
        rows = all(earlier.row + by == later.row for earlier, later in itertools.pairwise(steps))
        given = begin.given is not None and all(begin.given.same_as(step.given) for step in steps)
        if by not in (1, -1) or not rows or not given:
            raise _Unlike
        inside = frozenset[RelaxVar]().union(*(step.inside for step in steps))
        self._check_use(inside, results)
        return Recurrence(
            begin.given, begin.row, by, weights, begin.states, (shown, *later_states),
            self.constants, results, inside, self.products[0].var,
        )  # fmt: skip

    def _weights(self) -> NDArray[np.float32]:
        """Return the weights by which every step multiplies its state, of shape (state, gates).

        Raises:
            _Unlike: the weights differ between steps, are not constant, or do not fill vectors.
        """
        known = [product.args[1] for product in self.products]
        if not all(isinstance(constant, GenericConst) for constant in known):
            raise _Unlike
        arrays = [constant.value.numpy() for constant in known]
        first = arrays[0]
        if first.ndim != 2 or first.dtype != np.float32 or any(n % VECTOR for n in first.shape):
            raise _Unlike
        one_row = all(product.shape == (1, first.shape[1]) for product in self.products)
        if not one_row or not all(np.array_equal(first, array) for array in arrays[1:]):
            raise _Unlike
        return np.ascontiguousarray(first)

    def _find_variable(self, node: str) -> RelaxVar:
        for binding in self.flat.bindings[self.order[self.products[-1].var] :]:
            if binding.node == node and binding.shape is not None:
                return binding.var
        raise _Unlike

    def _check_use(self, inside: frozenset[RelaxVar], results: Sequence[RelaxVar]) -> None:
        """Check that other operators and the network's results read only the state after each step.

        Args:
            inside: all variables that the function for the recurrence computes.
            results: variable of the first state after each step.

        Raises:
            _Unlike: a further variable of the recurrence is read.
        """
        shown = set(variables(self.flat.module["main"].body.body))
        for var in inside.difference(results):
            used = all(user.var in inside for user in self.flat.users.get(var, []))
            if not used or var in shown:
                raise _Unlike


class _Step:
    """One step of a recurrence, whose operators are converted to formulas.

    Args:
        steps: all steps of the recurrence.
        product: the product of the state with the weights in this step.
        size: length of a state.

    Attributes:
        states: variables of the states before the step.
        inside: variables that the step computes.
        given: variable of the inputs.
        row: row of the inputs that the step reads.
    """

    def __init__(self, steps: _Steps, product: Binding, size: int) -> None:
        self._steps, self._flat, self._size = steps, steps.flat, size
        self._product = product
        self.states: list[RelaxVar] = [product.args[0]]
        self.inside: set[RelaxVar] = {product.var}
        self.given: RelaxVar | None = None
        self.row = -1

    def expression(self, var: RelaxVar) -> Formula:
        """Return the formula that computes one element of a state after this step.

        Args:
            var: variable of the state after the step.
        """
        return self._element_of(var, 0)

    def _element_of(self, value: RelaxExpr, offset: int) -> Formula:
        if isinstance(value, GenericConst):
            return self._constant(value, offset)
        if value.same_as(self._product.var):
            return "sums", offset
        if (input_element := self._input_element(value, offset)) is not None:
            return input_element
        binding = self._flat.by_var.get(value)
        # What was computed before the product belongs to an earlier step: it is a state.
        if binding is None or self._steps.order[value] < self._steps.order[self._product.var]:
            return self._state(value, offset)
        self.inside.add(value)
        if (part := part_of(self._flat, binding)) is not None:
            if part.through is not None:
                self.inside.add(part.through)
            return self._element_of(part.source, offset + part.begin)
        if binding.op in EACH or binding.op in PAIRS:
            if binding.shape is None or len(binding.shape) != 2 or binding.shape[0] != 1:
                raise _Unlike
            return binding.op, *(self._element_of(arg, offset) for arg in binding.args)
        raise _Unlike

    def _state(self, var: RelaxVar, offset: int) -> Formula:
        if offset or shape_of(var) != (1, self._size):
            raise _Unlike
        for number, known in enumerate(self.states):
            if known.same_as(var):
                return "state", number
        self.states.append(var)
        return "state", len(self.states) - 1

    def _constant(self, value: GenericConst, offset: int) -> Formula:
        array = value.value.numpy()
        if array.dtype != np.float32:
            raise _Unlike
        if array.size == 1:
            return "number", float(array.item())
        if array.shape[-1] != array.size:
            raise _Unlike
        constants = self._steps.constants
        for number, known in enumerate(constants):
            if known.shape == (array.size,) and np.array_equal(known, array.ravel()):
                return "constant", number, offset
        constants.append(np.ascontiguousarray(array.ravel()))
        return "constant", len(constants) - 1, offset

    def _input_element(self, var: RelaxVar, offset: int) -> Formula | None:
        """Return the formula of one element of the input row that this step reads.

        Args:
            var: variable of the whole row or of a slice of it.
            offset: position of the element within the variable.

        Returns:
            The formula, or None if the variable is not a slice of the inputs.

        Raises:
            _Unlike: the step reads several rows.
        """
        seen: list[RelaxVar] = []
        while (binding := self._flat.by_var.get(var)) is not None:
            part = part_of(self._flat, binding)
            if part is None:
                return None
            # This part is a row of the inputs. Parts along the other axis only add to the offset.
            if part.axis == 0:
                source = shape_of(part.source) or ()
                if len(source) != 2 or part.length != 1:
                    return None
                if self.row not in (-1, part.begin):
                    raise _Unlike
                self.given, self.row = part.source, part.begin
                self.inside.update(seen)
                return "given", offset
            seen += [var] if part.through is None else [var, part.through]
            var, offset = part.source, offset + part.begin
        return None


@dataclass(frozen=True, eq=False)
class Part:
    """A slice of a tensor along one axis.

    Attributes:
        source: variable of the tensor.
        axis: number of the axis.
        begin: first index of the slice.
        length: length of the slice along the axis.
        through: if the slice is one result of a split, the variable that holds the tuple of all
            results; otherwise None.
    """

    source: RelaxVar
    axis: int
    begin: int
    length: int
    through: RelaxVar | None = None


def part_of(flat: FlatGraph, binding: Binding) -> Part | None:
    """Return the slice that an operator takes of a tensor, or None for any other operator.

    Args:
        flat: the network.
        binding: the operator: an element of a split's results, or a strided slice with stride 1.
    """
    if isinstance(binding.value, relax.TupleGetItem):
        split = flat.by_var.get(binding.value.tuple_value)
        if split is None or split.op != "relax.split" or binding.shape is None:
            return None
        attrs, shape = split.value.attrs, shape_of(split.args[0]) or ()
        axis, number = int(attrs.axis) % max(len(shape), 1), int(binding.value.index)
        places = attrs.indices_or_sections
        if hasattr(places, "value") or isinstance(places, int):
            begin = number * (shape[axis] // int(places))
        else:
            begin = 0 if number == 0 else int(list(places)[number - 1])
        return Part(split.args[0], axis, begin, binding.shape[axis], split.var)
    if binding.op != "relax.strided_slice" or binding.shape is None:
        return None
    source, *slice_arguments = binding.args
    numbers = [_integers(argument) for argument in slice_arguments]  # the strides are optional
    if len(numbers) not in (3, 4) or any(values is None or len(values) != 1 for values in numbers):
        return None
    (axis,), (begin,), _, *strides = (values or [] for values in numbers)
    whole = shape_of(source) or ()
    length = binding.shape[axis] if 0 <= axis < len(binding.shape) else 0
    inside = 0 <= axis < len(whole) and begin >= 0 and begin + length <= whole[axis]
    return Part(source, axis, begin, length) if inside and strides in ([], [[1]]) else None


def _integers(argument: RelaxExpr) -> list[int] | None:
    """Return the elements of a Relax tuple of constant integers.

    Args:
        argument: an argument of a call.

    Returns:
        The integers, or None if the argument is not a tuple or an element is not constant.
    """
    fields = getattr(argument, "fields", None)
    if fields is None or not all(
        isinstance(getattr(element, "value", None), int) for element in fields
    ):
        return None
    return [int(element.value) for element in fields]


# -- the function ------------------------------------------------------------------------------


MOST_VECTORS = 12
"""Maximum number of accumulator vectors. A core starts two multiply-adds per cycle, and each takes
four cycles. More accumulators would therefore not reduce the time in which the core waits for
results."""


def _negative(number: Expression) -> Expression:
    return tirx.const(0.0, "float32") - number


OPERATORS: Mapping[str, Callable[..., Expression]] = MappingProxyType({
    "relax.add": lambda one, other: one + other,
    "relax.subtract": lambda one, other: one - other,
    "relax.multiply": lambda one, other: one * other,
    "relax.divide": lambda one, other: one / other,
    "relax.maximum": tirx.max,
    "relax.minimum": tirx.min,
    "relax.negative": _negative,
    "relax.sigmoid": sigmoid_of,
    "relax.tanh": tanh_of,
    "relax.nn.relu": lambda number: tirx.max(tirx.const(0.0, "float32"), number),
})  # fmt: skip
"""Functions that create the TensorIR expression of an operator, by the name of the operator."""


def sums_of(gates: int, registers: int) -> int:
    """Return the number of columns whose sums are kept in registers at the same time.

    Args:
        gates: number of columns of the weights.
        registers: number of vectors of 16 values that fit into the processor's registers.
    """
    # Two registers remain for a vector of weights and for a number of the state.
    most = max(1, min(MOST_VECTORS, registers - 2))
    return VECTOR * next(n for n in range(most, 0, -1) if gates % (n * VECTOR) == 0)


def packed_weights(weights: NDArray[np.float32], width: int, bfloat16: bool) -> Array:
    """Reorder weights (state, gates) to (tiles, state, width), so that each tile is contiguous.

    Args:
        weights: the weights.
        width: columns per tile.
        bfloat16: round the weights to bfloat16, stored as uint16. This halves the number of bytes
            that each step reads.
    """
    tiled = weights.reshape(len(weights), -1, width).transpose(1, 0, 2)
    return rounded_array(tiled) if bfloat16 else np.ascontiguousarray(tiled)


def recurrence_function(
    found: Recurrence, given: tuple[int, ...], width: int, bfloat16: bool
) -> PrimFunc:
    """Build a TensorIR function that computes all steps of a recurrence.

    Args:
        found: the recurrence.
        given: shape (steps, gates) of the inputs.
        width: columns per tile of the weights.
        bfloat16: whether the weights are bfloat16, stored as uint16.

    Returns:
        A function of the inputs, the weights in the form of `packed_weights`, the initial states
        (1, state) and the constants (n,). It writes the first state after each step to a tensor
        (steps, state), whose rows have the order of the input rows.
    """
    size, gates = found.weights.shape
    steps = len(found.results)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        rows = T.arg("given", T.buffer(given, "float32"))
        kind = "uint16" if bfloat16 else "float32"
        weights = T.arg("weights", T.buffer((gates // width, size, width), kind))
        begin = [
            T.arg(f"begin_{i}", T.buffer((1, size), "float32")) for i in range(len(found.begin))
        ]
        constants = [
            T.arg(f"constant_{i}", T.buffer(array.shape, "float32"))
            for i, array in enumerate(found.constants)
        ]
        out = T.arg("out", T.buffer((steps, size), "float32"))
        states, new_states = (
            [T.alloc_buffer((size,), "float32") for _ in found.begin] for _ in range(2)
        )
        sums = T.alloc_buffer((gates,), "float32")
        for state, before in zip(states, begin, strict=True):
            with T.serial(0, size // VECTOR) as j, T.vectorized(0, VECTOR) as i:
                at = j * VECTOR + i
                T.buffer_store(state, before[0, at], [at])
        with T.serial(0, steps) as step:
            _multiply(states[0], weights, sums, (gates // width, size, width), bfloat16)
            row = found.first + step * found.by
            with T.serial(0, size // VECTOR) as j:
                for new_state, expression in zip(new_states, found.states, strict=True):
                    with T.vectorized(0, VECTOR) as i:
                        at = j * VECTOR + i
                        read = _Reader(sums, rows, row, states, constants, at)
                        T.buffer_store(new_state, read.number(expression), [at])
            place = step if found.by == 1 else steps - 1 - step
            for number, (state, new_state) in enumerate(zip(states, new_states, strict=True)):
                with T.serial(0, size // VECTOR) as j, T.vectorized(0, VECTOR) as i:
                    at = j * VECTOR + i
                    T.buffer_store(state, new_state[at], [at])
                    if number == 0:
                        T.buffer_store(out, new_state[at], [place, at])
    return builder.get()


def _multiply(
    state: TirBuffer,
    weights: TirBuffer,
    sums: TirBuffer,
    shape: tuple[int, int, int],
    bfloat16: bool,
) -> None:
    """Emit the loops that multiply a state by the weights and store the sums.

    Args:
        state: buffer of the state, of shape (size,).
        weights: buffer of the packed weights, of shape (tiles, size, width).
        sums: buffer that receives the result, of shape (tiles * width,).
        shape: tiles, size and width.
        bfloat16: whether the weights are bfloat16, stored as uint16.
    """
    tiles, size, width = shape
    with T.serial(0, tiles) as tile:
        held = [T.alloc_buffer((VECTOR,), "float32", scope="local") for _ in range(width // VECTOR)]
        for buffer in held:
            with T.vectorized(0, VECTOR) as i:
                T.buffer_store(buffer, tirx.const(0.0, "float32"), [i])
        with T.serial(0, size) as k:
            for number, buffer in enumerate(held):
                with T.vectorized(0, VECTOR) as i:
                    weight = weights[tile, k, number * VECTOR + i]
                    weight = bfloat16_to_float32(weight) if bfloat16 else weight
                    T.buffer_store(buffer, buffer[i] + state[k] * weight, [i])
        for number, buffer in enumerate(held):
            with T.vectorized(0, VECTOR) as i:
                T.buffer_store(sums, buffer[i], [tile * width + number * VECTOR + i])


class _Reader:
    """Converts a recurrence's formulas to TensorIR expressions, for one element of the states.

    Args:
        sums: buffer of the product of the state with the weights.
        rows: buffer of the inputs, of shape (steps, gates).
        row: row of the inputs that the step reads.
        states: buffers of the states before the step.
        constants: buffers of the constants.
        at: index of the element.
    """

    def __init__(
        self, sums: TirBuffer, rows: TirBuffer, row: Expression, states: Sequence[TirBuffer],
        constants: Sequence[TirBuffer], at: Expression,
    ) -> None:  # fmt: skip
        self._sums, self._rows, self._row, self._at = sums, rows, row, at
        self._states, self._constants = states, constants

    def number(self, expression: Formula) -> Expression:
        """Convert a formula to a TensorIR expression."""
        kind, *rest = expression
        if kind == "sums":
            return self._sums[self._at + rest[0]]
        if kind == "given":
            return self._rows[self._row, self._at + rest[0]]
        if kind == "state":
            return self._states[rest[0]][self._at]
        if kind == "constant":
            return self._constants[rest[0]][self._at + rest[1]]
        if kind == "number":
            return tirx.const(rest[0], "float32")
        return OPERATORS[kind](*map(self.number, rest))
