"""Writes activations as expressions of arithmetic alone, so that LLVM computes them in vectors.

A call of the C library would take one number at a time. `exp` is 2 to a whole number times a
polynomial (Cephes' expf), `erf` a quotient of polynomials (Eigen's). Both are within 4 units of the
last place of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import e, log, log2, pi, sqrt
from typing import Any

from tilewright.core.lazy_module import lazy_module

tirx = lazy_module("tvm.tirx")

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_EXP_BOUNDS = -88.0, 89.0
_ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BELOW = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
_ERF_MOST = 4.0


def _named(value: Any, use: Callable[[Any], Any]) -> Any:
    """`use` of a value that is computed once."""
    name = tirx.Var("v", "float32")
    return tirx.Let(name, value, use(name))


def _number(value: float) -> Any:
    return tirx.const(value, "float32")


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """The highest power's first."""
    found = _number(coefficients[0])
    for each in coefficients[1:]:
        found = found * x + _number(each)
    return found


def _cut(x: Any, least: float, most: float) -> Any:
    """x within two bounds, NaN of NaN: TVM's maximum and minimum are their second operand then."""
    return tirx.max(_number(least), tirx.min(_number(most), x))


def exp(x: Any) -> Any:
    """Of arguments above −88; infinite above 88.3, where the power is 2^128, NaN of NaN."""

    def split(x: Any) -> Any:
        return _named(tirx.floor(x * _number(log2(e)) + _number(0.5)), lambda n: parts(x, n))

    def parts(x: Any, n: Any) -> Any:
        rest = x - n * _number(0.693359375)
        rest = rest - n * _number(log(2) - 0.693359375)
        # n is in the lowest bits of the sum. A conversion to an integer has no value for NaN.
        bits = tirx.reinterpret("int32", n + _number(1.5 * 2**23 + 127))
        power = tirx.reinterpret("float32", tirx.shift_left(bits, 23))
        series = lambda r: (_polynomial(r, _EXP) * r * r + r + _number(1)) * power  # noqa: E731
        return _named(rest, series)

    return _named(_cut(x, *_EXP_BOUNDS), split)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(−x))."""
    return _number(1) / (_number(1) + exp(-x))


def erf(x: Any) -> Any:
    """Of arguments that are cut at ±4, where float32 knows no number between it and ±1."""

    def quotient(x: Any) -> Any:
        ratio = lambda s: x * _polynomial(s, _ERF_ABOVE) / _polynomial(s, _ERF_BELOW)  # noqa: E731
        return _named(x * x, ratio)

    return _named(_cut(x, -_ERF_MOST, _ERF_MOST), quotient)


def _hard_sigmoid(x: Any) -> Any:
    return tirx.max(_number(0), tirx.min(_number(1), x * _number(1 / 6) + _number(0.5)))


_EXPRESSIONS: Mapping[str, Callable[[Any], Any]] = {
    "sigmoid": sigmoid,
    "tanh": lambda x: _number(2) * sigmoid(_number(2) * x) - _number(1),
    "swish": lambda x: x * sigmoid(x),
    "gelu": lambda x: _number(0.5) * x * (_number(1) + erf(x * _number(sqrt(0.5)))),
    "gelu_tanh": lambda x: x * sigmoid(
        _number(sqrt(8 / pi)) * x * (_number(1) + _number(0.044715) * x * x)
    ),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x: x * _hard_sigmoid(x),
}  # fmt: skip
CYCLES: Mapping[str, float] = {
    "sigmoid": 14.0, "tanh": 15.0, "swish": 15.0, "gelu": 16.0, "gelu_tanh": 18.0,
    "hard_sigmoid": 2.0, "hard_swish": 2.5,
}  # fmt: skip
"""Of a vector, by the operations that it takes, two a cycle, and half of a division's time."""


def activated(kind: str, x: Any) -> Any:
    """An activation (`targets.steps.float_activations`) of a float32 expression."""
    return _named(x, _EXPRESSIONS[kind])
