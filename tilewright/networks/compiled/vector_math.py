"""Implement operators with exp, erf and tanh as polynomials, which are computed in vectors.

For exp, erf and tanh, and for sigmoid, SiLU, GELU and softmax, which contain them, TVM would call
the C library once per element. TVM would also round element by element in QuantizeLinear. There, it
would round halves away from zero, although ONNX rounds halves to even.

The module also contains conversions from and to bfloat16. TVM's CPU compiler stores bfloat16 as
uint16, the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import e, log, log2, pi, sqrt
from typing import TypeVar

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst

from tilewright.core.bfloat16 import BELOW_HALF, NAN
from tilewright.core.tvm_types import BlockBuilder, Expression, Place, RelaxCall, RelaxExpr, Tensor
from tilewright.networks.relax.nan_propagation import NAN_SAFE

Axis = TypeVar("Axis")
Legalization = Callable[[BlockBuilder, RelaxCall], RelaxExpr]
"""Function that TVM's pass `LegalizeOps` calls to replace an operator."""

ROUNDS = 1.5 * 2**23
"""Constant that rounds a float32 number to an integer when it is added to the number. The sum is so
large that it has no fractional bits."""
EXP = (
    0.0013814540579915047, 0.00836874544620514, 0.04166838899254799, 0.1666652113199234,
    0.4999999403953552, 1.0, 1.0,
)  # fmt: skip
"""Polynomial coefficients of exp, from the highest to the lowest degree. They minimise the largest
relative error, which is 3.1e-9 for |x| up to half of log 2."""
LOG_2_HIGH = 0.693359375
"""The upper bits of log 2, rounded to so few bits that the product with an 8-bit integer is exact
in float32."""


def vector_legalizations() -> Mapping[str, Legalization]:
    """Return functions that replace operators in TVM's `LegalizeOps` pass, by operator name.

    TVM's implementation is kept for operators on types other than float32, and for quantisations to
    other types than int8 and uint8.
    """
    elementwise = {
        "relax.exp": _exp_everywhere,
        "relax.erf": topi.fast_erf,
        "relax.tanh": topi.fast_tanh,
        "relax.sigmoid": _sigmoid,
        "relax.nn.silu": _silu,
        "relax.nn.gelu": _gelu,
        "relax.nn.gelu_tanh": _gelu_tanh,
    }
    legalizations = {name: _legalization(name, compute) for name, compute in elementwise.items()}
    along_axis = {"relax.nn.softmax": _softmax, "relax.nn.log_softmax": _log_softmax}
    legalizations |= {
        name: _legalization(name, compute, along_axis=True) for name, compute in along_axis.items()
    }
    return {**legalizations, "relax.quantize": _quantise}


def _legalization(
    name: str, compute: Callable[..., Tensor], *, along_axis: bool = False
) -> Legalization:
    usual = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalized(builder: BlockBuilder, call: RelaxCall) -> RelaxExpr:
        (x,) = call.args
        if str(x.ty.dtype) != "float32":
            return usual(builder, call)
        hint = name.rpartition(".")[2]
        if not along_axis:
            return builder.call_te(compute, x, primfunc_name_hint=hint)
        axis = int(call.attrs.axis) % int(x.ty.ndim)
        # The maximum of a row may ignore NaN, because the sum of the row's exponentials propagates
        # it.
        return builder.call_te(
            compute, x, axis, primfunc_name_hint=hint, primfunc_attrs={NAN_SAFE: 1}
        )

    return legalized


def _quantise(builder: BlockBuilder, call: RelaxCall) -> RelaxExpr:
    x, scale, zero = call.args
    dtype, axis = str(call.attrs.out_dtype), int(call.attrs.axis)
    if str(x.ty.dtype) != "float32" or dtype not in ("int8", "uint8"):
        return tvm.ir.Op.get("relax.quantize").get_attr("FLegalize")(builder, call)
    least, most = (float(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    known = isinstance(scale, GenericConst)
    # Multiply like the kernels, since dividing a vector takes as long as twenty operations.
    if known:
        steps_of_one = np.float64(1) / scale.value.numpy().astype(np.float64)
        scale = relax.const(steps_of_one.astype(np.float32))

    def compute(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        def value(*place: Expression) -> Expression:
            at = () if scale.ndim == 0 else (place[axis],)
            zero_at = () if zero.ndim == 0 else (place[axis],)
            begin = tirx.Cast("float32", zero[zero_at])
            exact = x[place] * scale[at] if known else x[place] / scale[at]
            steps = tirx.max(tirx.min(exact, most - begin), least - begin)
            # The lowest bits of the sum are the nearest integer, with ties to even.
            nearest = tirx.reinterpret("int32", steps + tirx.const(ROUNDS, "float32"))
            integer = nearest - int(np.float32(ROUNDS).view(np.int32))
            return tirx.Cast(dtype, integer + tirx.Cast("int32", zero[zero_at]))

        return te.compute(x.shape, value, name="quantize")

    # Integers cannot represent NaN. The result for NaN is undefined, so that no test is needed.
    return builder.call_te(
        compute, x, scale, zero, primfunc_name_hint="quantize", primfunc_attrs={NAN_SAFE: 1}
    )


def _exp_everywhere(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *place: exp_of(x[place]), name="exp")


def _sigmoid(x: Tensor) -> Tensor:
    return te.compute(x.shape, lambda *place: sigmoid_of(x[place]), name="sigmoid")


def _silu(x: Tensor) -> Tensor:
    return x * _sigmoid(x)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + topi.fast_erf(x * sqrt(0.5)))


def _gelu_tanh(x: Tensor) -> Tensor:
    # 0.5 (1 + tanh y) is the sigmoid of 2 y.
    return x * _sigmoid(x * (1.0 + 0.044715 * x * x) * (2 * sqrt(2 / pi)))


def _softmax(x: Tensor, axis: int) -> Tensor:
    _, exponentials, total = _exponentials(x, axis)

    def value(*place: Expression) -> Expression:
        return exponentials[place] * (
            1.0 / total[_remove_axis(place, axis)]
        )  # one division per row

    return te.compute(x.shape, value, name="softmax")


def _log_softmax(x: Tensor, axis: int) -> Tensor:
    most, _, total = _exponentials(x, axis)

    def value(*place: Expression) -> Expression:
        row = _remove_axis(place, axis)
        return x[place] - most[row] - tirx.log(total[row])

    return te.compute(x.shape, value, name="log_softmax")


def _exponentials(x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the three intermediate results of a softmax.

    Args:
        x: the elements.
        axis: axis of the softmax.

    Returns:
        The maximum m along the axis, the exponentials exp(x − m), and the sum of the exponentials.
    """
    size, shape = x.shape[axis], _remove_axis(x.shape, axis)

    def along(place: Place, index: Expression) -> Place:
        return (*place[:axis], index, *place[axis:])

    k, j = te.reduce_axis((0, size), name="k"), te.reduce_axis((0, size), name="j")
    most = te.compute(shape, lambda *row: te.max(x[along(row, k)], axis=k), name="most")
    exponentials = te.compute(
        x.shape,
        lambda *place: _exp_below_zero(x[place] - most[_remove_axis(place, axis)]),
        name="exponentials",
    )
    total = te.compute(
        shape, lambda *row: te.sum(exponentials[along(row, j)], axis=j), name="total"
    )
    return most, exponentials, total


def _remove_axis(place: Sequence[Axis], axis: int) -> tuple[Axis, ...]:
    return (*place[:axis], *place[axis + 1 :])


def sigmoid_of(number: Expression) -> Expression:
    """Build the expression of the sigmoid of a float32, with an absolute error of at most 1e-7."""
    return tirx.const(1.0, "float32") / (tirx.const(1.0, "float32") + _exp(-number))


def tanh_of(number: Expression) -> Expression:
    """Build the expression of tanh of a float32, with an absolute error of at most 2e-7."""
    two = tirx.const(2.0, "float32")
    return two * sigmoid_of(two * number) - tirx.const(1.0, "float32")


def exp_of(x: Expression) -> Expression:
    """Build the expression of exp(x) for any float32, accurate to 2 units in the last place.

    The result is infinite above 88.73, subnormal below −87.34, 0 below −103.98, and NaN for NaN.
    """
    # NaN stays NaN, as it is the second operand.
    cut = tirx.max(_float(-104.0), tirx.min(_float(89.0), x))
    n = tirx.floor(cut * log2(e) + 0.5)
    rest = cut - n * _float(LOG_2_HIGH)  # exact, since the constant has nine bits
    rest = rest - n * _float(log(2) - LOG_2_HIGH)
    # 2^n in two factors, since neither 2^128 nor 2^-150 is a normal float32
    half = tirx.floor(n * 0.5)
    return _polynomial(rest) * _power_of_two(half) * _power_of_two(n - half)


def _exp(x: Expression) -> Expression:
    """Build the expression of exp(x), which is simpler than `exp_of` but has a smaller range.

    The result is 0 below about −87.7, infinite above about 88.4, and NaN for NaN.
    """
    cut = tirx.max(_float(-88.0), tirx.min(_float(89.0), x))
    return _exp_within(cut)


def _exp_below_zero(x: Expression) -> Expression:
    """Build the expression of exp(x) for x ≤ 0, with a relative error of at most 3e-7.

    The result is 0 below about −87.7, and NaN for NaN.
    """
    result = _exp_within(tirx.max(x, tirx.const(-88.0, "float32")))
    return tirx.max(result, x)  # TVM's maximum returns its second operand for NaN


def _exp_within(x: Expression) -> Expression:
    """Build the expression of exp(x) for x from −88 to 89.

    The result is 2^n · exp(f), where n is x / log 2 rounded to an integer and f = x − n · log 2 is
    at most half of log 2 in magnitude.
    """
    n = tirx.floor(x * log2(e) + 0.5)
    rest = x - n * log(2)
    return _polynomial(rest) * _power_of_two(n)


def _power_of_two(n: Expression) -> Expression:
    """Build the expression of 2^n for a float32 n that is an integer from −126 to 127.

    Adding n to 1.5 · 2^23 moves n to the lowest bits of the sum. The exponent bias of 127 is added
    at the same time. TVM would round with `nearbyint`, element by element. LLVM vectorises these
    calls, but only with half the width of AVX-512.
    """
    return tirx.reinterpret("float32", tirx.reinterpret("int32", n + (1.5 * 2**23 + 127)) << 23)


def _polynomial(rest: Expression) -> Expression:
    result = tirx.const(EXP[0], "float32")
    for coefficient in EXP[1:]:
        result = result * rest + coefficient
    return result


def _float(value: float) -> Expression:
    return tirx.const(value, "float32")


# -- bfloat16 ----------------------------------------------------------------------------------


_BITS = 16


def bfloat16_to_float32(stored: Expression) -> Expression:
    """Build the expression that converts a bfloat16, stored as uint16, to float32."""
    bits = tirx.shift_left(tirx.Cast("uint32", stored), tirx.const(_BITS, "uint32"))
    return tirx.reinterpret("float32", bits)


def float32_to_bfloat16(number: Expression) -> Expression:
    """Build the expression that rounds a float32 to bfloat16, stored as uint16.

    Ties are rounded to even, as in `targets.cpu.kernels.amx_tiles`.
    """

    def bits_of(value: int) -> Expression:
        return tirx.const(value, "uint32")

    bits = tirx.Var("bits", "uint32")  # a variable, so that it is computed once
    odd = tirx.bitwise_and(tirx.shift_right(bits, bits_of(_BITS)), bits_of(1))
    near = tirx.shift_right(bits + odd + bits_of(BELOW_HALF), bits_of(_BITS))
    nan = tirx.bitwise_and(bits, bits_of(0x7FFFFFFF)) > bits_of(0x7F800000)
    rounded = tirx.Cast("uint16", tirx.Select(nan, bits_of(NAN), near))
    return tirx.Let(bits, tirx.reinterpret("uint32", number), rounded)
