"""Writes the loop over the steps of a recurrence.

steps                             one after the other
  columns of the weights          some vectors of sums in registers
    the state                     one broadcast number, some vectors, an instruction each
  the state                       vectors: what comes of the sums
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tilewright.core.bfloat16 import rounded_array
from tilewright.networks.compiled.bfloat16_numbers import widened
from tilewright.networks.compiled.recurrences import VECTOR, Expression, Recurrence
from tilewright.networks.compiled.vector_math import sigmoid_of, tanh_of

MOST_VECTORS = 12
"""Of sums: more wait for nothing."""


def _negative(number: Any) -> Any:
    return tirx.const(0.0, "float32") - number


OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType({
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


def packed_weights(weights: NDArray[np.float32], width: int, bfloat16: bool) -> NDArray[Any]:
    """(state, gates) → (tiles, state, width): what one tile reads lies in one piece. With
    `bfloat16` in that type, as uint16: half as much is read in each step."""
    tiled = weights.reshape(len(weights), -1, width).transpose(1, 0, 2)
    return rounded_array(tiled) if bfloat16 else np.ascontiguousarray(tiled)


def recurrence_function(
    found: Recurrence, given: tuple[int, ...], width: int, bfloat16: bool
) -> Any:
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
    state: Any, weights: Any, sums: Any, shape: tuple[int, int, int], bfloat16: bool
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
        self, sums: Any, rows: Any, row: Any, states: Sequence[Any], constants: Sequence[Any],
        at: Any,
    ) -> None:  # fmt: skip
        self._sums, self._rows, self._row, self._at = sums, rows, row, at
        self._states, self._constants = states, constants

    def number(self, expression: Expression) -> Any:
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
