"""Writes expressions of bfloat16, which TVM's compiler for processors holds as uint16: the upper
half of a float32."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tilewright.core.bfloat16 import BELOW_HALF, NAN

_BITS = 16


def widened(stored: Any) -> Any:
    """A float32 of a uint16."""
    bits = tirx.shift_left(tirx.Cast("uint32", stored), tirx.const(_BITS, "uint32"))
    return tirx.reinterpret("float32", bits)


def narrowed(number: Any) -> Any:
    """A uint16 of a float32: the nearest, halves to even, as `targets.cpu.kernels.matrix_tiles`
    rounds."""

    def bits_of(value: int) -> Any:
        return tirx.const(value, "uint32")

    bits = tirx.Var("bits", "uint32")  # computed once, however often it is read
    odd = tirx.bitwise_and(tirx.shift_right(bits, bits_of(_BITS)), bits_of(1))
    near = tirx.shift_right(bits + odd + bits_of(BELOW_HALF), bits_of(_BITS))
    nan = tirx.bitwise_and(bits, bits_of(0x7FFFFFFF)) > bits_of(0x7F800000)
    made = tirx.Cast("uint16", tirx.Select(nan, bits_of(NAN), near))
    return tirx.Let(bits, tirx.reinterpret("uint32", number), made)
