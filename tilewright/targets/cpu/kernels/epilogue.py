"""Writes a kernel's epilogue: the fused steps on a sum, from the bias to the activation.

The steps are computed in float32, in integers as the reference does, or on reals that integers
stand for. Here is also what their data and weights are as numbers.

Activations are expressions of arithmetic alone, so that LLVM computes them in vectors. A call of
the C library would take one number at a time. `exp` is 2 to a whole number times a polynomial
(Cephes' expf), `erf` a quotient of polynomials (Eigen's). Both are within 4 units of the last place
of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e, log, log2, pi, sqrt

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, Place, Tensor, TirBuffer
from tilewright.targets.cpu.kernels.int8_dot_product import pack_words, word_at, wrapping_sum
from tilewright.targets.epilogue import EpilogueOp
from tilewright.targets.steps import STEP_KINDS
from tilewright.targets.steps.float_activations import FUNCTIONS
from tilewright.targets.steps.quantised import BYTES, NUMBERS
from tilewright.targets.steps.step import AluOperation
from tilewright.targets.workload import Workload

te = lazy_module("tvm.te")
tirx = lazy_module("tvm.tirx")


def with_epilogue(
    w: Workload, sums: Tensor, shape: tuple[int, ...], inputs: Mapping[str, Tensor]
) -> Tensor:
    """The result of all steps of the epilogue on `sums`, a te tensor of `shape` (n, channel block,
    y, x, channel of a block), or larger; `inputs` are those of `epilogue_inputs`."""

    def value(
        n: Expression, o: Expression, y: Expression, x: Expression, b: Expression
    ) -> Expression:
        return epilogue_value(w, inputs, sums[n, o, y, x, b], (n, o, y, x, b))

    return te.compute(shape, value, name="out")


def epilogue_inputs(w: Workload, shape: tuple[int, ...], ob: int) -> dict[str, Tensor]:
    """The placeholders of `epilogue_tensors`."""
    channels = (w.out_channels // ob, ob)
    return {
        name: te.placeholder(shape_of_tensor(w, name, channels, shape), dtype, name=name)
        for name, dtype in epilogue_tensors(w).items()
    }


def shape_of_tensor(
    w: Workload, name: str, channels: tuple[int, ...], out: tuple[int, ...]
) -> tuple[int, ...]:
    """Of what an epilogue takes by that name, given the shapes of values a channel and of the
    output."""
    if name == QUANTISATION:
        return (1 + sum(NUMBERS.get(step.kind, 0) for step in w.epilogue),)
    return channels if name in A_CHANNEL else out


def sums_type(w: Workload) -> str:
    """Of the sums of products. Few products a sum are as fast in float32, and it holds their sums
    exactly up to 2^24."""
    if w.dtype == "int8":
        return "float32" if w.dequantises and w.groups > 1 else "int32"
    return "float32"


def widened(w: Workload, number: Expression) -> Expression:
    """A number of the data or the weights, as its products are summed."""
    return number if w.dtype == "float32" else tirx.Cast(sums_type(w), number)


def real(number: Expression, zero: Expression) -> Expression:
    """The number that an integer of the data stands for, times its scale, in float32; `zero` is
    the zero point, an int32."""
    return tirx.Cast("float32", tirx.Cast("int32", number) - zero)


def multiplied(w: Workload, number: Expression, weight: Expression) -> Expression:
    """A number of the data times a weight of `packed_words`."""
    if sums_type(w) == "float32":
        return number * weight
    return tirx.Cast("int32", number) * word_at(weight)


def packed_words(w: Workload, weights: Array, pairs: bool) -> Array:
    """Weights of any shape, each as a kernel multiplies it, integers by `pairs` or not."""
    if sums_type(w) == "float32":
        return weights.astype(np.float32, copy=False)
    return pack_words(weights, pairs)


QUANTISATION = "quantisation"
A_CHANNEL = frozenset({"bias", "shr_channel", "scale"})
"""Tensors with one value an output channel; others but `QUANTISATION` are like the output."""
_STEPS = {
    "bias", "add", "residual", "offset", "shr", "shr_channel", "shl", "min", "max", "dequantise",
    "add_dequantised", "round", "quantise",
}  # fmt: skip
_FLOATS = {"bias": "float32", "residual": "float32"}
_INTEGERS = {"bias": "int32", "shr_channel": "int32", "add": "int32", "residual": "int8"}


def computes(step: EpilogueOp) -> bool:
    """Whether kernels compute a step: those known by name, and those that ALU operations make
    up."""
    return (
        step.kind in _STEPS
        or step.kind in FUNCTIONS
        or bool(STEP_KINDS[step.kind].operations(step.value))
    )


def epilogue_tensors(w: Workload) -> dict[str, str]:
    """The element types of what the epilogue's steps take, in the order a kernel takes them."""
    kinds = {step.kind for step in w.epilogue}
    if w.dequantises:
        found = {QUANTISATION: "float32", "scale": "float32"}
        if "bias" in kinds:
            found["bias"] = "float32"
        added = next((step for step in w.epilogue if step.kind == "add_dequantised"), None)
        return found if added is None else found | {"added": BYTES[added.value]}
    known = _INTEGERS if w.dtype == "int8" else _FLOATS
    return {name: dtype for name, dtype in known.items() if name in kinds}


def epilogue_value(
    w: Workload,
    inputs: Mapping[str, Tensor | TirBuffer],
    found: Expression,
    at: Place,
    channel: Place | None = None,
) -> Expression:
    """All steps on `found`, the sum at the place `at`: (n, channel block, y, x, channel), or others
    where `channel`, the place in the bias, is given."""
    place = (at[1], at[-1]) if channel is None else channel
    if w.dequantises:
        return _in_reals(w, inputs, found, at, place)
    if w.dtype == "int8":
        tensors = {name: inputs[name][place if name in A_CHANNEL else at] for name in inputs}
        return _in_integers(w, tensors, found)
    for step in w.epilogue:
        if step.kind == "bias":
            found = found + inputs["bias"][place]
        elif step.kind == "residual":
            found = found + inputs["residual"][at]
        elif step.kind in FUNCTIONS:
            found = activated(step.kind, found)
        else:
            found = _clipped(step, found)
    return found


def _clipped(step: EpilogueOp, number: Expression) -> Expression:
    """The larger or the smaller of a constant and a float32, NaN of NaN: TVM's maximum and minimum
    are their second operand where one is NaN."""
    clip = tirx.max if step.kind == "max" else tirx.min
    return clip(tirx.const(float(step.value), "float32"), number)


def _in_reals(
    w: Workload,
    inputs: Mapping[str, Tensor | TirBuffer],
    found: Expression,
    at: Place,
    channel: Place,
) -> Expression:
    """All steps of an epilogue that begins with `dequantise`."""

    place = 1

    def number(offset: int) -> Expression:
        return inputs[QUANTISATION][place + offset]

    def rounded(found: Expression) -> Expression:
        return _rounded_bits(tirx.max(tirx.min(found * number(0), number(2)), number(1)))

    for step in w.epilogue:
        if step.kind == "dequantise":
            found = tirx.Cast("float32", found) * inputs["scale"][channel]
        elif step.kind == "bias":
            found = found + inputs["bias"][channel]
        elif step.kind == "add_dequantised":
            real = tirx.Cast("float32", inputs["added"][at]) - number(0)
            found = found + real * number(1)
        elif step.kind == "round":
            integer = rounded(found) - int(np.float32(_ROUNDS).view(np.int32))
            found = tirx.Cast("float32", integer) * number(3)
        elif step.kind == "quantise":
            integer = rounded(found) + tirx.reinterpret("int32", number(3))
            found = tirx.Cast(w.out_dtype, integer)
        else:
            found = _clipped(step, found)
        place += NUMBERS.get(step.kind, 0)
    return found


_ROUNDS = 1.5 * 2**23


def _rounded_bits(number: Expression) -> Expression:
    """An int32: the integer nearest to a small float32, ties to even, plus the bits of `_ROUNDS`,
    of which the lowest eight are 0.

    TVM computes `nearbyint` one by one. `_ROUNDS` has no bits behind the point: a number that is
    added to it is rounded, and the lowest bits of the sum are the integer's."""
    return tirx.reinterpret("int32", number + tirx.const(_ROUNDS, "float32"))


def data_zero(inputs: Mapping[str, Tensor | TirBuffer]) -> Expression:
    """The zero point of the data, an int32; of epilogues without a `dequantise` step 0."""
    if QUANTISATION not in inputs:
        return tirx.const(0, "int32")
    return tirx.reinterpret("int32", inputs[QUANTISATION][0])


def _in_integers(w: Workload, tensors: Mapping[str, Expression], found: Expression) -> Expression:
    """All steps on an int32 sum, which wrap as the reference's do, and its lowest eight bits;
    `tensors` are the values at its place."""
    for step in w.epilogue:
        constant = tirx.const(step.value, "int32")
        if step.kind in ("bias", "add"):
            found = wrapping_sum(found, tensors[step.kind])
        elif step.kind == "residual":
            residual = tirx.shift_left(tirx.Cast("int32", tensors["residual"]), constant)
            found = wrapping_sum(found, residual)
        elif step.kind == "offset":
            found = wrapping_sum(found, constant)
        elif step.kind == "shr_channel":
            found = tirx.shift_right(found, tensors["shr_channel"])
        elif step.kind in ("shr", "shl"):
            shift = tirx.shift_right if step.kind == "shr" else tirx.shift_left
            found = shift(found, constant)
        elif step.kind in ("min", "max"):
            found = (tirx.max if step.kind == "max" else tirx.min)(found, constant)
        else:
            found = _composed(STEP_KINDS[step.kind].operations(step.value), found)
    return tirx.Cast("int8", found)


def _composed(operations: Sequence[AluOperation], found: Expression) -> Expression:
    """A step on an int32 sum that ALU operations make up."""
    of = {
        "add": wrapping_sum, "min": tirx.min, "max": tirx.max, "shr": tirx.shift_right
    }  # fmt: skip
    copy = found
    for each in operations:
        constant = tirx.const(each.value, "int32")
        if each.place == "take":
            copy = found
        elif each.place == "aside":
            copy = of[each.operation](copy, constant)
        else:
            found = of[each.operation](found, copy if each.place == "back" else constant)
    return found


def row_inputs(w: Workload, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The placeholders of `epilogue_tensors`, of an output of `shape` (..., channels)."""
    return {
        name: te.placeholder(shape_of_tensor(w, name, (w.out_channels,), shape), dtype, name=name)
        for name, dtype in epilogue_tensors(w).items()
    }


def with_row_epilogue(w: Workload, sums: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """What `with_epilogue` does, on rows of output channels: `sums` of shape (..., channels), the
    bias of shape (channels,)."""

    def value(*place: Expression) -> Expression:
        return epilogue_value(w, inputs, sums[place], place, place[-1:])

    return te.compute(sums.shape, value, name="out")


# -- activations -------------------------------------------------------------------------------


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


def _named(value: Expression, use: Callable[[Expression], Expression]) -> Expression:
    """`use` of a value that is computed once."""
    name = tirx.Var("v", "float32")
    return tirx.Let(name, value, use(name))


def _number(value: float) -> Expression:
    return tirx.const(value, "float32")


def _polynomial(x: Expression, coefficients: tuple[float, ...]) -> Expression:
    """The highest power's first."""
    found = _number(coefficients[0])
    for each in coefficients[1:]:
        found = found * x + _number(each)
    return found


def _cut(x: Expression, least: float, most: float) -> Expression:
    """x within two bounds, NaN of NaN: TVM's maximum and minimum are their second operand then."""
    return tirx.max(_number(least), tirx.min(_number(most), x))


def exp(x: Expression) -> Expression:
    """Of arguments above −88; infinite above 88.3, where the power is 2^128, NaN of NaN."""

    def split(x: Expression) -> Expression:
        return _named(tirx.floor(x * _number(log2(e)) + _number(0.5)), lambda n: parts(x, n))

    def parts(x: Expression, n: Expression) -> Expression:
        rest = x - n * _number(0.693359375)
        rest = rest - n * _number(log(2) - 0.693359375)
        # n is in the lowest bits of the sum. A conversion to an integer has no value for NaN.
        bits = tirx.reinterpret("int32", n + _number(1.5 * 2**23 + 127))
        power = tirx.reinterpret("float32", tirx.shift_left(bits, 23))
        series = lambda r: (_polynomial(r, _EXP) * r * r + r + _number(1)) * power  # noqa: E731
        return _named(rest, series)

    return _named(_cut(x, *_EXP_BOUNDS), split)


def sigmoid(x: Expression) -> Expression:
    """1 / (1 + exp(−x))."""
    return _number(1) / (_number(1) + exp(-x))


def erf(x: Expression) -> Expression:
    """Of arguments that are cut at ±4, where float32 knows no number between it and ±1."""

    def quotient(x: Expression) -> Expression:
        ratio = lambda s: x * _polynomial(s, _ERF_ABOVE) / _polynomial(s, _ERF_BELOW)  # noqa: E731
        return _named(x * x, ratio)

    return _named(_cut(x, -_ERF_MOST, _ERF_MOST), quotient)


def _hard_sigmoid(x: Expression) -> Expression:
    return tirx.max(_number(0), tirx.min(_number(1), x * _number(1 / 6) + _number(0.5)))


_EXPRESSIONS: Mapping[str, Callable[[Expression], Expression]] = {
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


def activated(kind: str, x: Expression) -> Expression:
    """An activation (`targets.steps.float_activations`) of a float32 expression."""
    return _named(x, _EXPRESSIONS[kind])
