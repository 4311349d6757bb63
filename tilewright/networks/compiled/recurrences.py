"""Finds the steps of a recurrence, and writes all of them as one function.

`networks.recurrent` writes a recurrent operator step by step. Each is a product of the state by the
same weights, and operators on its numbers. As calls of their own these cost about as much as they
compute, so a loop does them. Shapes are (steps, gates) of what is given, (state, gates) of the
weights and (1, state) of a state.

    steps                             one after the other
      columns of the weights          some vectors of sums in registers
        the state                     one broadcast number, some vectors, an instruction each
      the state                       vectors: what comes of the sums
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
from tilewright.networks.compiled.vector_math import sigmoid_of, tanh_of, widened
from tilewright.networks.relax.bindings import Binding, FlatGraph, shape_of, variables
from tilewright.targets.anchor import DType

FEWEST = 4
"""Steps that are worth a function (`python -m benchmarks.cpu.networks --networks lstm_2,gru_2`)."""
MOST_BFLOAT16 = 1 << 17
"""Weights that vectors multiply sooner than tiles: between 49,000 and 262,000, where calls and
loops were measured, on a Xeon with AMX (`python -m benchmarks.cpu.networks --networks lstm_2,gru_2
--precision bf16`)."""
VECTOR = 16
PAIRS = frozenset((
    "relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.maximum",
    "relax.minimum",
))  # fmt: skip
EACH = frozenset(("relax.sigmoid", "relax.tanh", "relax.negative", "relax.nn.relu"))
_STEP = re.compile(r"(.+)/\d+/recurrent")
Same = TypeVar("Same")
Formula = tuple[Any, ...]
"""Of a number of a new state: (operator, expressions…), or what it reads at an offset: ("sums",
offset), ("given", offset), ("state", which), ("constant", which, offset), ("number", value)."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """`given` has the rows `first`, `first` + `by`, …, one a step; `begin` are the states before,
    `states` the expressions of those behind a step, that which is multiplied first. `results` are
    the variables of that state behind each step; `inside` are all that the function computes, the
    first of them `product`."""

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
        """Whether a loop over all steps takes less time than calls. Tiles of bfloat16 multiply a
        state by large weights faster than vectors do."""
        return dtype != "bfloat16" or self.weights.size <= MOST_BFLOAT16


def recurrences(flat: FlatGraph) -> list[Recurrence]:
    """All in a network whose steps are the same."""
    steps: dict[str, list[Binding]] = defaultdict(list)
    for binding in flat.bindings:
        if binding.op == "relax.matmul" and (found := _STEP.fullmatch(binding.node)):
            steps[found[1]].append(binding)
    order = {binding.var: number for number, binding in enumerate(flat.bindings)}
    made = (_Steps(flat, order, each).recurrence() for each in steps.values())
    return [each for each in made if each is not None]


class _Unlike(Exception):
    """Steps are not what a function can compute."""


def _same(found: Iterable[Same]) -> Same:
    """What all steps have. Raises `_Unlike` where one differs."""
    first, *others = found
    if any(other != first for other in others):
        raise _Unlike
    return first


@dataclass(eq=False)
class _Steps:
    flat: FlatGraph
    order: Mapping[RelaxVar, int]
    products: Sequence[Binding]
    constants: list[NDArray[np.float32]] = field(default_factory=list)

    def recurrence(self) -> Recurrence | None:
        """What the products are the steps of; None where they are no such."""
        if len(self.products) < FEWEST:
            return None
        try:
            return self._found()
        except _Unlike:
            return None

    def _found(self) -> Recurrence:
        weights = self._weights()
        last = self.products[-1]
        name = self.flat.by_var[last.args[0]].node.rpartition("/")[2]  # as of the step before
        results = [product.args[0] for product in self.products[1:]]
        results.append(self._named(f"{last.node.rpartition('/')[0]}/{name}"))
        steps = [_Step(self, product, weights.shape[0]) for product in self.products]
        shown = _same(step.expression(result) for step, result in zip(steps, results, strict=True))
        others = _same(
            [step.expression(var) for var in behind.states[1:]]
            for step, behind in itertools.pairwise(steps)
        )
        if len({len(step.states) for step in steps}) > 1:
            raise _Unlike
        begin, by = steps[0], steps[1].row - steps[0].row
        rows = all(one.row + by == other.row for one, other in itertools.pairwise(steps))
        given = begin.given is not None and all(begin.given.same_as(step.given) for step in steps)
        if by not in (1, -1) or not rows or not given:
            raise _Unlike
        inside = frozenset[RelaxVar]().union(*(step.inside for step in steps))
        self._check_use(inside, results)
        return Recurrence(
            begin.given, begin.row, by, weights, begin.states, (shown, *others), self.constants,
            results, inside, self.products[0].var,
        )  # fmt: skip

    def _weights(self) -> NDArray[np.float32]:
        """Those of all products."""
        known = [product.args[1] for product in self.products]
        if not all(isinstance(each, GenericConst) for each in known):
            raise _Unlike
        arrays = [each.value.numpy() for each in known]
        first = arrays[0]
        if first.ndim != 2 or first.dtype != np.float32 or any(n % VECTOR for n in first.shape):
            raise _Unlike
        one_row = all(product.shape == (1, first.shape[1]) for product in self.products)
        if not one_row or not all(np.array_equal(first, other) for other in arrays[1:]):
            raise _Unlike
        return np.ascontiguousarray(first)

    def _named(self, node: str) -> RelaxVar:
        for binding in self.flat.bindings[self.order[self.products[-1].var] :]:
            if binding.node == node and binding.shape is not None:
                return binding.var
        raise _Unlike

    def _check_use(self, inside: frozenset[RelaxVar], results: Sequence[RelaxVar]) -> None:
        """Raises `_Unlike` where somebody else reads more than the results."""
        shown = set(variables(self.flat.module["main"].body.body))
        for var in inside.difference(results):
            used = all(user.var in inside for user in self.flat.users.get(var, []))
            if not used or var in shown:
                raise _Unlike


class _Step:
    """Reads the expressions of one step, which multiplies by `product`."""

    def __init__(self, steps: _Steps, product: Binding, size: int) -> None:
        self._steps, self._flat, self._size = steps, steps.flat, size
        self._product = product
        self.states: list[RelaxVar] = [product.args[0]]
        self.inside: set[RelaxVar] = {product.var}
        self.given: RelaxVar | None = None
        self.row = -1

    def expression(self, var: RelaxVar) -> Formula:
        """Of a state behind the step, a number a place."""
        return self._of(var, 0)

    def _of(self, value: RelaxExpr, offset: int) -> Formula:
        if isinstance(value, GenericConst):
            return self._constant(value, offset)
        if value.same_as(self._product.var):
            return "sums", offset
        if (given := self._given(value, offset)) is not None:
            return given
        binding = self._flat.by_var.get(value)
        if binding is None or self._steps.order[value] < self._steps.order[self._product.var]:
            return self._state(value, offset)
        self.inside.add(value)
        if (part := part_of(self._flat, binding)) is not None:
            if part.through is not None:
                self.inside.add(part.through)
            return self._of(part.source, offset + part.begin)
        if binding.op in EACH or binding.op in PAIRS:
            if binding.shape is None or len(binding.shape) != 2 or binding.shape[0] != 1:
                raise _Unlike
            return binding.op, *(self._of(arg, offset) for arg in binding.args)
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

    def _given(self, var: RelaxVar, offset: int) -> Formula | None:
        """A number of the row that is this step's."""
        seen: list[RelaxVar] = []
        while (binding := self._flat.by_var.get(var)) is not None:
            part = part_of(self._flat, binding)
            if part is None:
                return None
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
    """`length` places of `source` from `begin` on, along an axis; `through` gives all parts."""

    source: RelaxVar
    axis: int
    begin: int
    length: int
    through: RelaxVar | None = None


def part_of(flat: FlatGraph, binding: Binding) -> Part | None:
    """What an operator only takes a part of."""
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
    source, *given = binding.args
    numbers = [_integers(argument) for argument in given]  # strides may be left out
    if len(numbers) not in (3, 4) or any(each is None or len(each) != 1 for each in numbers):
        return None
    (axis,), (begin,), _, *strides = (each or [] for each in numbers)
    whole = shape_of(source) or ()
    length = binding.shape[axis] if 0 <= axis < len(binding.shape) else 0
    inside = 0 <= axis < len(whole) and begin >= 0 and begin + length <= whole[axis]
    return Part(source, axis, begin, length) if inside and strides in ([], [[1]]) else None


def _integers(argument: RelaxExpr) -> list[int] | None:
    """Of an argument that is a tuple of known numbers."""
    fields = getattr(argument, "fields", None)
    if fields is None or not all(isinstance(getattr(each, "value", None), int) for each in fields):
        return None
    return [int(each.value) for each in fields]


# -- the function ------------------------------------------------------------------------------


MOST_VECTORS = 12
"""Of sums: more wait for nothing, as a core begins two multiply-adds a cycle, of four cycles."""


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


def sums_of(gates: int, registers: int) -> int:
    """How many sums are in registers at a time, of a processor that holds `registers` vectors."""
    most = max(1, min(MOST_VECTORS, registers - 2))
    return VECTOR * next(n for n in range(most, 0, -1) if gates % (n * VECTOR) == 0)


def packed_weights(weights: NDArray[np.float32], width: int, bfloat16: bool) -> Array:
    """(state, gates) → (tiles, state, width): what one tile reads lies in one piece. With
    `bfloat16` in that type, as uint16: half as much is read in each step."""
    tiled = weights.reshape(len(weights), -1, width).transpose(1, 0, 2)
    return rounded_array(tiled) if bfloat16 else np.ascontiguousarray(tiled)


def recurrence_function(
    found: Recurrence, given: tuple[int, ...], width: int, bfloat16: bool
) -> PrimFunc:
    """A function of what is given (steps, gates), `packed_weights`, the states before (1, state)
    and constants (n,); it gives the state behind each step, (steps, state), in the order in which
    steps lie in what is given."""
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
        states, behind = (
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
                for made, expression in zip(behind, found.states, strict=True):
                    with T.vectorized(0, VECTOR) as i:
                        at = j * VECTOR + i
                        read = _Reader(sums, rows, row, states, constants, at)
                        T.buffer_store(made, read.number(expression), [at])
            place = step if found.by == 1 else steps - 1 - step
            for number, (state, made) in enumerate(zip(states, behind, strict=True)):
                with T.serial(0, size // VECTOR) as j, T.vectorized(0, VECTOR) as i:
                    at = j * VECTOR + i
                    T.buffer_store(state, made[at], [at])
                    if number == 0:
                        T.buffer_store(out, made[at], [place, at])
    return builder.get()


def _multiply(
    state: TirBuffer,
    weights: TirBuffer,
    sums: TirBuffer,
    shape: tuple[int, int, int],
    bfloat16: bool,
) -> None:
    """state (size,) by weights (tiles, size, width) to sums (tiles * width,)."""
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
                    weight = widened(weight) if bfloat16 else weight
                    T.buffer_store(buffer, buffer[i] + state[k] * weight, [i])
        for number, buffer in enumerate(held):
            with T.vectorized(0, VECTOR) as i:
                T.buffer_store(sums, buffer[i], [tile * width + number * VECTOR + i])


class _Reader:
    """What expressions read at the place `at` of a step."""

    def __init__(
        self, sums: TirBuffer, rows: TirBuffer, row: Expression, states: Sequence[TirBuffer],
        constants: Sequence[TirBuffer], at: Expression,
    ) -> None:  # fmt: skip
        self._sums, self._rows, self._row, self._at = sums, rows, row, at
        self._states, self._constants = states, constants

    def number(self, expression: Formula) -> Expression:
        """Of an expression."""
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
