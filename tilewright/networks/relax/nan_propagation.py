"""Make each maximum and minimum in the functions that TVM generates propagate NaN.

TVM's maximum is `a > b ? a : b`, which is `b` if either operand is NaN. So `max(0, x)` is NaN if x
is NaN, but `max(x, 0)` is 0. Both compile to a single machine instruction, so this module moves
constants to the first operand. The maximum of two computed operands needs one more comparison.

In TVM, a maximum reduction starts with the smallest finite number, which is larger than −∞. Here,
it starts with −∞ (a minimum starts with ∞), and the padding of a pooling layer is changed in the
same way.
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
"""Attribute of functions whose code already propagates NaN."""
_FINITE = float(np.finfo(np.float32).max)


def keep_nan(first: Expression, second: Expression, choose: Combiner = tirx.Max) -> Expression:
    """Build the maximum or minimum of two floats, which is NaN if either operand is NaN.

    Args:
        first: operand that is evaluated three times. Pass the operand that is cheaper to compute.
        second: the other operand.
        choose: `tirx.Max` or `tirx.Min`.
    """
    return tirx.Select(is_number(first), choose(first, second), first)


def is_number(value: Expression) -> Condition:
    """Build the condition that a float is not NaN.

    The condition is `x <= x`, which TVM keeps and which becomes one vector comparison. TVM would
    simplify `x == x` to true and `x != x` to false, and does not vectorise `isnan`.
    """
    return tirx.LE(value, value)


def are_numbers(values: list[Expression]) -> Condition:
    """Build the condition that none of several floats is NaN.

    LLVM merges pairs of tests into one comparison.
    """
    return reduce(tirx.And, map(is_number, values))


def chosen_with_nan(value: Expression) -> tuple[Expression, Expression, Combiner] | None:
    """Match an expression that `keep_nan` created.

    Args:
        value: the expression.

    Returns:
        The first operand, the second operand, and the class (`tirx.Max` or `tirx.Min`). None for
        other expressions.
    """
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
    """Return a pass that makes the TensorIR functions of a module propagate NaN.

    Args:
        *kept: attributes of functions that the pass does not change, in addition to `NAN_SAFE`.
    """

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
    # `keep_nan` evaluates its first operand three times, and a load is cheap to repeat.
    if isinstance(second, TensorLoad) and not isinstance(first, TensorLoad):
        first, second = second, first
    return keep_nan(first, second, type(value))


def _equal(value: BinaryOperation) -> Expression:
    """Replace the test `x == x` of a float, which is false for NaN, by `x <= x`.

    TVM simplifies `x == x` to true, but not `x <= x`. Other comparisons are returned unchanged.
    """
    is_float = str(value.a.ty.dtype).startswith("float")
    return is_number(value.a) if is_float and _same(value.a, value.b) else value


def _unequal(value: BinaryOperation) -> Expression:
    """Replace `a != b` for floats by an expression that is also true if an operand is NaN.

    Without the replacement, the code that TVM generates gives false for NaN. Comparisons of other
    types are returned unchanged.
    """
    if not str(value.a.ty.dtype).startswith("float"):
        return value
    if _same(value.a, value.b):
        return _is_nan(value.a)
    return tirx.Or(value, tirx.Or(_is_nan(value.a), _is_nan(value.b)))


def _same(first: Expression, second: Expression) -> bool:
    return bool(tvm_ffi.structural_equal(first, second))


def _is_nan(value: BinaryOperation) -> Condition:
    """Build the condition that a float is NaN, from the bits of the float.

    TVM rewrites `not x <= x` to `x < x`, and lowers `isnan` to `x != x`. Both are false for NaN.
    """
    floats = str(value.ty.dtype)
    integers = floats.replace("float", "int")
    infinity, magnitude = int(np.array(np.inf, floats).view(integers)), np.iinfo(integers).max
    number = tirx.reinterpret(integers, value) & tirx.const(magnitude, integers)
    return number > tirx.const(infinity, integers)


def _reduces(body: Statement) -> bool:
    """Return whether a statement computes a maximum or minimum reduction.

    It then replaces a buffer element by the maximum or minimum of this element and another value.
    """
    results: list[BufferStore] = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, results.append))
    for store in results:
        chosen = chosen_with_nan(store.value)
        first = None if chosen is None else chosen[0]
        if isinstance(first, TensorLoad) and first.source.same_as(store.buffer):
            return True
    return False


def _unbounded(value: FloatConstant) -> Expression:
    """Replace the largest finite float32 by infinity, with the same sign.

    TVM uses the finite number to start maximum and minimum reductions, and as padding. Other
    constants are returned unchanged.
    """
    number = float(value.value)
    if str(value.ty.dtype) != "float32" or abs(number) != _FINITE:
        return value
    return tirx.const(np.inf if number > 0 else -np.inf, "float32")
