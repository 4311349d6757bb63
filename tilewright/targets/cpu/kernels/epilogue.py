"""Epilogue of a kernel: the fused operations on a sum, from the bias to the activation.

Depending on the workload, the epilogue is computed in float32, in integers exactly like the
reference, or in float32 on quantised values. The module also defines how data and weights are
converted before they are multiplied.

Activations are arithmetic expressions, so that LLVM vectorises them. A call of the C library would
compute one value at a time. `exp` is a power of two times a polynomial (Cephes' expf), and `erf` is
a quotient of polynomials (Eigen's). The error of both is at most 4 units in the last place of 1.
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
    """Apply the epilogue of a convolution to a tensor expression of accumulators.

    The epilogue consists of the operations that are fused with the convolution, such as bias and
    activation.

    Args:
        w: the workload.
        sums: the accumulators, whose shape is at least `shape` along each axis.
        shape: shape of the output, (n, channel block, y, x, channel within the block).
        inputs: operands of the epilogue by name, from `epilogue_inputs`.

    Returns:
        A tensor expression of the output.
    """

    def value(
        n: Expression, o: Expression, y: Expression, x: Expression, b: Expression
    ) -> Expression:
        return epilogue_value(w, inputs, sums[n, o, y, x, b], (n, o, y, x, b))

    return te.compute(shape, value, name="out")


def epilogue_inputs(w: Workload, shape: tuple[int, ...], ob: int) -> dict[str, Tensor]:
    """Create placeholders for the operands of a convolution's epilogue, such as its bias.

    Args:
        w: the workload.
        shape: shape of the output, (n, channel block, y, x, channel within the block).
        ob: output channels per block.

    Returns:
        Placeholders by name of the operand.
    """
    channels = (w.out_channels // ob, ob)
    return {
        name: te.placeholder(shape_of_tensor(w, name, channels, shape), dtype, name=name)
        for name, dtype in epilogue_tensors(w).items()
    }


def shape_of_tensor(
    w: Workload, name: str, channels: tuple[int, ...], out: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of an operand of the epilogue.

    Args:
        w: the workload.
        name: name of the operand.
        channels: the shape to return for an operand with one value per output channel.
        out: shape of the output, which all other operands have, except for the array of
            quantisation scales and zero points.
    """
    if name == QUANTISATION:
        return (1 + sum(NUMBERS.get(step.kind, 0) for step in w.epilogue),)
    return channels if name in A_CHANNEL else out


def sums_type(w: Workload) -> str:
    """Return the element type of a kernel's accumulators.

    Quantised convolutions with groups use float32. They add few products, so that float32 is as
    fast as integers, and sums below 2^24 are exact.

    Args:
        w: the workload.
    """
    if w.dtype == "int8":
        return "float32" if w.dequantises and w.groups > 1 else "int32"
    return "float32"


def widen_number(w: Workload, number: Expression) -> Expression:
    """Convert a value of the data or of the weights to the element type of the accumulators.

    Args:
        w: the workload.
        number: the value.
    """
    return number if w.dtype == "float32" else tirx.Cast(sums_type(w), number)


def real(number: Expression, zero: Expression) -> Expression:
    """Convert an integer of the data to float32 and subtract its zero point.

    Args:
        number: the integer.
        zero: the zero point, an int32.

    Returns:
        The real number that the integer represents, divided by the quantisation scale.
    """
    return tirx.Cast("float32", tirx.Cast("int32", number) - zero)


def multiply_number(w: Workload, number: Expression, weight: Expression) -> Expression:
    """Multiply a value of the data by a weight, in the element type of the accumulators.

    Args:
        w: the workload.
        number: the value.
        weight: the weight, as `packed_words` has converted it.
    """
    if sums_type(w) == "float32":
        return number * weight
    return tirx.Cast("int32", number) * word_at(weight)


def packed_words(w: Workload, weights: Array, pairs: bool) -> Array:
    """Convert weights to the element type in which a kernel multiplies them, float32 or int32.

    Args:
        w: the workload.
        weights: weights of any shape.
        pairs: for int32, clear the upper half of each word, because the kernel multiplies with an
            instruction for pairs of 16-bit numbers: see `pack_words`.

    Returns:
        Float32 or int32 weights of the same shape.
    """
    if sums_type(w) == "float32":
        return weights.astype(np.float32, copy=False)
    return pack_words(weights, pairs)


QUANTISATION = "quantisation"
"""Name of the epilogue operand that contains the scales and zero points of the quantised
tensors."""
A_CHANNEL = frozenset({"bias", "shr_channel", "scale"})
"""Names of the epilogue operands that have one value per output channel. All other operands have
the shape of the output, except for `QUANTISATION`."""
_STEPS = {
    "bias", "add", "residual", "offset", "shr", "shr_channel", "shl", "min", "max", "dequantise",
    "add_dequantised", "round", "quantise",
}  # fmt: skip
_FLOATS = {"bias": "float32", "residual": "float32"}
_INTEGERS = {"bias": "int32", "shr_channel": "int32", "add": "int32", "residual": "int8"}


def computes(step: EpilogueOp) -> bool:
    """Return whether the kernels can compute a step of an epilogue.

    They can compute the steps that this module knows by name, and all steps that consist of ALU
    operations of the VTA (see `STEP_KINDS`).

    Args:
        step: the step.
    """
    return (
        step.kind in _STEPS
        or step.kind in FUNCTIONS
        or bool(STEP_KINDS[step.kind].operations(step.value))
    )


def epilogue_tensors(w: Workload) -> dict[str, str]:
    """Return the operands of the epilogue in the order in which kernels take them.

    Args:
        w: the workload.

    Returns:
        Element types by name of the operand.
    """
    kinds = {step.kind for step in w.epilogue}
    if w.dequantises:
        dtypes = {QUANTISATION: "float32", "scale": "float32"}
        if "bias" in kinds:
            dtypes["bias"] = "float32"
        added = next((step for step in w.epilogue if step.kind == "add_dequantised"), None)
        return dtypes if added is None else dtypes | {"added": BYTES[added.value]}
    possible_dtypes = _INTEGERS if w.dtype == "int8" else _FLOATS
    return {name: dtype for name, dtype in possible_dtypes.items() if name in kinds}


def epilogue_value(
    w: Workload,
    inputs: Mapping[str, Tensor | TirBuffer],
    found: Expression,
    at: Place,
    channel: Place | None = None,
) -> Expression:
    """Apply all steps of the epilogue to one accumulator.

    Args:
        w: the workload.
        inputs: operands of the epilogue by name.
        found: the accumulator.
        at: indices of the output value. Without `channel` they are (n, channel block, y, x, channel
            within the block).
        channel: indices into operands with one value per output channel, such as the bias. Default:
            the channel block and the channel within the block, from `at`.

    Returns:
        An expression of the output value.
    """
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
            found = apply_activation(step.kind, found)
        else:
            found = _clip_number(step, found)
    return found


def _clip_number(step: EpilogueOp, number: Expression) -> Expression:
    """Apply a `min` or `max` step to a float32 value; NaN stays NaN.

    If one operand is NaN, TVM's maximum and minimum return the second operand. `number` is
    therefore the second operand.

    Args:
        step: the step, which contains the constant to compare with.
        number: the value.
    """
    clip = tirx.max if step.kind == "max" else tirx.min
    return clip(tirx.const(float(step.value), "float32"), number)


def _in_reals(
    w: Workload,
    inputs: Mapping[str, Tensor | TirBuffer],
    value: Expression,
    at: Place,
    channel: Place,
) -> Expression:
    """Apply all steps of an epilogue that begins with `dequantise`, in float32.

    Args:
        w: the workload.
        inputs: operands of the epilogue by name.
        value: the accumulator.
        at: indices of the output value.
        channel: indices into operands with one value per output channel, such as the bias.
    """
    place = 1

    def number(offset: int) -> Expression:
        return inputs[QUANTISATION][place + offset]

    def rounded(value: Expression) -> Expression:
        return _rounded_bits(tirx.max(tirx.min(value * number(0), number(2)), number(1)))

    for step in w.epilogue:
        if step.kind == "dequantise":
            value = tirx.Cast("float32", value) * inputs["scale"][channel]
        elif step.kind == "bias":
            value = value + inputs["bias"][channel]
        elif step.kind == "add_dequantised":
            real = tirx.Cast("float32", inputs["added"][at]) - number(0)
            value = value + real * number(1)
        elif step.kind == "round":
            integer = rounded(value) - int(np.float32(_ROUNDS).view(np.int32))
            value = tirx.Cast("float32", integer) * number(3)
        elif step.kind == "quantise":
            integer = rounded(value) + tirx.reinterpret("int32", number(3))
            value = tirx.Cast(w.out_dtype, integer)
        else:
            value = _clip_number(step, value)
        place += NUMBERS.get(step.kind, 0)
    return value


_ROUNDS = 1.5 * 2**23
"""Constant that rounds a small float32 number to an integer when it is added to the number; see
`_rounded_bits`."""


def _rounded_bits(number: Expression) -> Expression:
    """Round a small float32 to the nearest integer, with ties to even.

    A float32 as large as `_ROUNDS` has no fractional bits. If a small number is added to `_ROUNDS`,
    the sum is therefore rounded, and its lowest bits are the integer. TVM's `nearbyint` would be
    computed for one value at a time.

    Returns:
        An int32: the integer plus the bits of `_ROUNDS`, whose lowest eight bits are 0.
    """
    return tirx.reinterpret("int32", number + tirx.const(_ROUNDS, "float32"))


def data_zero(inputs: Mapping[str, Tensor | TirBuffer]) -> Expression:
    """Return the zero point of the data as an int32; it is 0 if the epilogue does not dequantise.

    Args:
        inputs: operands of the epilogue by name.
    """
    if QUANTISATION not in inputs:
        return tirx.const(0, "int32")
    return tirx.reinterpret("int32", inputs[QUANTISATION][0])


def _in_integers(w: Workload, tensors: Mapping[str, Expression], value: Expression) -> Expression:
    """Apply all steps of the epilogue to an int32 accumulator. Overflows wrap, as in the reference.

    Args:
        w: the workload.
        tensors: operands of the epilogue by name, already indexed for this output value.
        value: the accumulator.

    Returns:
        The lowest eight bits of the result, as int8.
    """
    for step in w.epilogue:
        constant = tirx.const(step.value, "int32")
        if step.kind in ("bias", "add"):
            value = wrapping_sum(value, tensors[step.kind])
        elif step.kind == "residual":
            residual = tirx.shift_left(tirx.Cast("int32", tensors["residual"]), constant)
            value = wrapping_sum(value, residual)
        elif step.kind == "offset":
            value = wrapping_sum(value, constant)
        elif step.kind == "shr_channel":
            value = tirx.shift_right(value, tensors["shr_channel"])
        elif step.kind in ("shr", "shl"):
            shift = tirx.shift_right if step.kind == "shr" else tirx.shift_left
            value = shift(value, constant)
        elif step.kind in ("min", "max"):
            value = (tirx.max if step.kind == "max" else tirx.min)(value, constant)
        else:
            value = _apply_operations(STEP_KINDS[step.kind].operations(step.value), value)
    return tirx.Cast("int8", value)


def _apply_operations(operations: Sequence[AluOperation], value: Expression) -> Expression:
    """Apply the integer operations of one epilogue step to an int32 value."""
    functions = {
        "add": wrapping_sum, "min": tirx.min, "max": tirx.max, "shr": tirx.shift_right
    }  # fmt: skip
    copy = value
    for operation in operations:
        constant = tirx.const(operation.value, "int32")
        if operation.place == "take":
            copy = value
        elif operation.place == "aside":
            copy = functions[operation.operation](copy, constant)
        else:
            value = functions[operation.operation](
                value, copy if operation.place == "back" else constant
            )
    return value


def row_inputs(w: Workload, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Create placeholders for the operands of a matrix product's epilogue.

    Args:
        w: the workload.
        shape: shape of the output, (..., channels).

    Returns:
        Placeholders by name of the operand.
    """
    return {
        name: te.placeholder(shape_of_tensor(w, name, (w.out_channels,), shape), dtype, name=name)
        for name, dtype in epilogue_tensors(w).items()
    }


def with_row_epilogue(w: Workload, sums: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Apply the epilogue of a matrix product to a tensor expression of accumulators.

    Args:
        w: the workload.
        sums: the accumulators, shape (..., channels).
        inputs: operands of the epilogue by name, from `row_inputs`.

    Returns:
        A tensor expression of the output.
    """

    def value(*place: Expression) -> Expression:
        return epilogue_value(w, inputs, sums[place], place, place[-1:])

    return te.compute(sums.shape, value, name="out")


# -- activations -------------------------------------------------------------------------------


_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
"""Polynomial coefficients of Cephes' `expf`, from the highest to the lowest degree."""
_EXP_BOUNDS = -88.0, 89.0
"""Lower and upper limit to which the arguments of `exp` are clipped."""
_ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
"""Coefficients of the numerator polynomial of Eigen's `erf`, from the highest to the lowest
degree."""
_ERF_BELOW = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
"""Coefficients of the denominator polynomial of Eigen's `erf`, from the highest to the lowest
degree."""
_ERF_MOST = 4.0
"""Absolute value to which the arguments of `erf` are clipped."""


def _let(value: Expression, use: Callable[[Expression], Expression]) -> Expression:
    """Bind `value` to a variable, so that it is computed once, and return `use(variable)`."""
    name = tirx.Var("v", "float32")
    return tirx.Let(name, value, use(name))


def _number(value: float) -> Expression:
    return tirx.const(value, "float32")


def _polynomial(x: Expression, coefficients: tuple[float, ...]) -> Expression:
    """Evaluate a polynomial; coefficients are ordered from highest to lowest degree."""
    value = _number(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + _number(coefficient)
    return value


def _clip(x: Expression, least: float, most: float) -> Expression:
    """Clip x to a range; NaN stays NaN, since TVM then returns the second operand."""
    return tirx.max(_number(least), tirx.min(_number(most), x))


def exp(x: Expression) -> Expression:
    """Return the exponential of a float32 expression.

    Arguments below −88 are treated as −88. The result is infinite above 88.3, where the power of
    two is 2^128, and NaN for NaN.

    Args:
        x: the argument.
    """

    def split(x: Expression) -> Expression:
        return _let(tirx.floor(x * _number(log2(e)) + _number(0.5)), lambda n: parts(x, n))

    def parts(x: Expression, n: Expression) -> Expression:
        # log 2 in two parts. The first has few bits, so that its product with n is exact.
        rest = x - n * _number(0.693359375)
        rest = rest - n * _number(log(2) - 0.693359375)
        # n is in the lowest bits of the sum. Converting NaN to an integer would be undefined.
        bits = tirx.reinterpret("int32", n + _number(1.5 * 2**23 + 127))
        power = tirx.reinterpret("float32", tirx.shift_left(bits, 23))
        series = lambda r: (_polynomial(r, _EXP) * r * r + r + _number(1)) * power  # noqa: E731
        return _let(rest, series)

    return _let(_clip(x, *_EXP_BOUNDS), split)


def sigmoid(x: Expression) -> Expression:
    """Return 1 / (1 + exp(−x)).

    Args:
        x: the argument.
    """
    return _number(1) / (_number(1) + exp(-x))


def erf(x: Expression) -> Expression:
    """Return the error function of a float32 expression.

    Arguments are clipped to ±4, beyond which the result is ±1 in float32.

    Args:
        x: the argument.
    """

    def quotient(x: Expression) -> Expression:
        ratio = lambda s: x * _polynomial(s, _ERF_ABOVE) / _polynomial(s, _ERF_BELOW)  # noqa: E731
        return _let(x * x, ratio)

    return _let(_clip(x, -_ERF_MOST, _ERF_MOST), quotient)


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
"""Estimated cycles per vector, by activation: the number of its operations at two per cycle, plus
half the time of a division."""


def apply_activation(kind: str, x: Expression) -> Expression:
    """Return an activation function of a float32 expression: see `targets.steps.float_activations`.

    Args:
        kind: name of the function.
        x: the argument.
    """
    return _let(x, _EXPRESSIONS[kind])
