"""Lets NaN through every maximum and minimum of the functions that TVM makes of operators.

TVM's maximum is `a > b ? a : b`, which is `b` where either operand is NaN. So `max(0, x)` is NaN
where x is NaN, and `max(x, 0)` is 0. Both are one machine instruction, so constants are put first
here. The maximum of two computed operands needs one comparison more.

A reduction begins with the smallest finite number in TVM, which is larger than −∞. It begins with
−∞ here (of a minimum: ∞), and so does the padding of a pool.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, TensorLoad
from tvm.ir.transform import module_pass

from tilewright.core.tvm_types import (
    BinaryOperation,
    BufferStore,
    Combiner,
    Condition,
    Expression,
    FloatConstant,
    Pass,
    Statement,
)

NAN_SAFE = "tilewright.nan_safe"
"""Attribute of a function that gives NaN for NaN as it is written."""
_FINITE = float(np.finfo(np.float32).max)


def keep_nan(first: Expression, second: Expression, choose: Combiner = tirx.Max) -> Expression:
    """Return the maximum (or the minimum, with `choose=tirx.Min`) of two floats, NaN if either is
    NaN. `first` is read three times: give the one that is cheaper to compute."""
    return tirx.Select(is_number(first), choose(first, second), first)


def is_number(value: Expression) -> Condition:
    """Return the condition that a float is not NaN.

    TVM simplifies `x == x` to true and `x != x` to false, and computes `isnan` one by one. `x <= x`
    stays, as one comparison of vectors."""
    return tirx.LE(value, value)


def are_numbers(values: list[Expression]) -> Condition:
    """Return the condition that no float of several is NaN. LLVM merges two tests into one
    comparison."""
    return reduce(tirx.And, map(is_number, values))


def chosen_with_nan(value: Expression) -> tuple[Expression, Expression, Combiner] | None:
    """Return the first operand, the second one and the class (`tirx.Max`, `tirx.Min`) of an
    expression of `keep_nan`, or None for any other expression."""
    if not isinstance(value, tirx.Select):
        return None
    made, first = value.true_value, value.false_value
    if not isinstance(made, (tirx.Max, tirx.Min)) or not isinstance(value.condition, tirx.LE):
        return None
    same = tvm_ffi.structural_equal(made.a, first)
    tests_it = all(
        tvm_ffi.structural_equal(side, first) for side in (value.condition.a, value.condition.b)
    )
    return (first, made.b, type(made)) if same and tests_it else None


def propagating_nan(*kept: str) -> Pass:
    """Make a pass over a module whose operators are functions already. Functions with one of these
    attributes, or with `NAN_SAFE`, stay as they are."""

    def run(module: IRModule, _: object) -> IRModule:
        made = IRModule(dict(module.functions), attrs=module.attrs)
        for name, function in module.functions.items():
            if not isinstance(function, tirx.PrimFunc):
                continue
            if not any(key in (function.attrs or {}) for key in (NAN_SAFE, *kept)):
                made.update_func(name, function.with_body(_with_nan(function.body)))
        return made

    return module_pass(run, opt_level=0, name="TilewrightPropagateNan")


def _with_nan(body: Statement) -> Statement:
    body = tvm_ffi.structural_map(
        body,
        [(tirx.Max, _ordered), (tirx.Min, _ordered), (tirx.EQ, _equal), (tirx.NE, _unequal)],
    )
    if not _reduces(body):
        return body
    return tvm_ffi.structural_map(body, (tirx.FloatImm, _unbounded))


def _ordered(value: BinaryOperation) -> Expression:
    first, second = value.a, value.b
    if not str(value.ty.dtype).startswith("float") or isinstance(first, tirx.FloatImm):
        return value
    if isinstance(second, tirx.FloatImm):
        return type(value)(second, first)
    if isinstance(second, TensorLoad) and not isinstance(first, TensorLoad):
        first, second = second, first
    return keep_nan(first, second, type(value))


def _equal(value: BinaryOperation) -> Expression:
    """Return `x == x` of floats, by which models look for NaN, as a comparison that TVM does not
    simplify to true."""
    is_float = str(value.a.ty.dtype).startswith("float")
    return is_number(value.a) if is_float and _same(value.a, value.b) else value


def _unequal(value: BinaryOperation) -> Expression:
    """Return `a != b` of floats, which is false in TVM's code where an operand is NaN, as one that
    is true there."""
    if not str(value.a.ty.dtype).startswith("float"):
        return value
    if _same(value.a, value.b):
        return _is_nan(value.a)
    return tirx.Or(value, tirx.Or(_is_nan(value.a), _is_nan(value.b)))


def _same(first: Expression, second: Expression) -> bool:
    return bool(tvm_ffi.structural_equal(first, second))


def _is_nan(value: BinaryOperation) -> Condition:
    """Return the condition that a float is NaN, by its bits: TVM turns `not x <= x` round to
    `x < x`, and lowers `isnan` to `x != x`, which is false."""
    floats = str(value.ty.dtype)
    integers = floats.replace("float", "int")
    infinity, magnitude = int(np.array(np.inf, floats).view(integers)), np.iinfo(integers).max
    number = tirx.reinterpret(integers, value) & tirx.const(magnitude, integers)
    return number > tirx.const(infinity, integers)


def _reduces(body: Statement) -> bool:
    """Whether a statement combines what is in a buffer with the maximum or minimum."""
    found: list[BufferStore] = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, found.append))
    for store in found:
        chosen = chosen_with_nan(store.value)
        first = None if chosen is None else chosen[0]
        if isinstance(first, TensorLoad) and first.source.same_as(store.buffer):
            return True
    return False


def _unbounded(value: FloatConstant) -> Expression:
    """Return the constant that begins a reduction, or pads what is reduced, as infinite."""
    number = float(value.value)
    if str(value.ty.dtype) != "float32" or abs(number) != _FINITE:
        return value
    return tirx.const(np.inf if number > 0 else -np.inf, "float32")
