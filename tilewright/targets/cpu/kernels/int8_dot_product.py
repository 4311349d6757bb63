"""Computes dot products of four pairs of int8 at once, by the processor's instruction.

`vpdpbusd` of x86 (AVX512-VNNI, AVX-VNNI) adds, in each lane of int32, the products of four bytes of
data by four weights. It takes unsigned data and signed weights. So 128 is added to the data (the
highest bit of each is flipped) where they are copied or read. The sums begin at -128 times the sum
of their weights, which is packed before the weights themselves. Nothing saturates: sums wrap modulo
2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.lazy_module import lazy_module
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

FOUR = 4
"""Numbers of a dot product."""
FLIP = -0x7F7F7F80
"""The highest bit of four bytes."""
WIDTHS = (4, 8, 16)
"""Lanes of vectors of 128, 256 and 512 bits."""


def check_dots(workload: Workload, spec: CpuSpec) -> None:
    """Raises `WorkloadError` for int8 on a processor without the instruction."""
    if workload.dtype == "int8" and not spec.dots:
        raise WorkloadError(
            f"{spec.name} computes no int8: {spec.model or 'this processor'} has no dot products "
            f"of int8 (AVX512-VNNI, AVX-VNNI) in vectors of {spec.lanes} that kernels here use; "
            "write dtype=float32, or name another target"
        )


def fours(numbers: int) -> int:
    """Dot products that `numbers` take; the last one with zeros."""
    return -(-numbers // FOUR)


def vector_of(numbers: int) -> int:
    """Lanes of the narrowest vector that holds `numbers`."""
    return next(width for width in WIDTHS if width >= numbers)


def flipped(four: Any, lanes: int = 1) -> Any:
    """Four bytes of data in an int32, or `lanes` of such, with 128 added to each byte."""
    flip = tirx.const(FLIP, "int32")
    return tirx.bitwise_xor(four, flip if lanes == 1 else tirx.Broadcast(flip, lanes))


def loaded(data: Any, place: list[Any], lanes: int = 1) -> Any:
    """`lanes` times four bytes of an int8 buffer from `place` on, each four an int32."""
    value = data.vload(place, f"int8x{FOUR * lanes}")
    return tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)


def gathered(data: Any, place: list[Any], first: Any, end: int) -> Any:
    """Four bytes one by one, number `first` of those behind `place` and its next; zeros from number
    `end` on."""
    found = tirx.const(0, "int32")
    for byte in range(FOUR):
        value = data[(*place[:-1], place[-1] + first + byte)]
        value = tirx.if_then_else(first + byte < end, value, tirx.const(0, "int8"))
        found = tirx.bitwise_or(found, byte_of_four(value, byte))
    return found


def byte_of_four(number: Any, byte: int) -> Any:
    """An int8 as byte number `byte` of an int32 that is zero else."""
    wide = tirx.bitwise_and(tirx.Cast("int32", number), tirx.const(255, "int32"))
    return tirx.shift_left(wide, tirx.const(8 * byte, "int32"))


def vector(buffer: Any, place: list[Any], lanes: int) -> Any:
    """`lanes` int32 of a buffer from `place` on."""
    return buffer.vload(place, f"int32x{lanes}")


def store(buffer: Any, value: Any, place: list[Any], lanes: int) -> None:
    """Puts a vector of `lanes`, or one number, into a buffer of int32 from `place` on."""
    T.buffer_store(buffer, value, [*place[:-1], lanes_at(place[-1], lanes)])


def add_dots(sums: Any, at: int, four: Any, weights: Any, lanes: int) -> None:
    """Adds to `lanes` sums, from place `at` of a buffer on, four data bytes times weights: `four`
    an int32 that was `flipped`, `weights` a vector of them."""

    def as_bytes(value: Any) -> Any:  # LLVM took int32 once, as TVM's own intrinsics still do
        return tirx.reinterpret(f"int8x{FOUR * lanes}", value)

    found = tirx.call_llvm_pure_intrin(
        f"int32x{lanes}",
        f"llvm.x86.avx512.vpdpbusd.{32 * lanes}",
        vector(sums, [at], lanes),
        as_bytes(tirx.Broadcast(four, lanes)),
        as_bytes(weights),
    )
    store(sums, found, [at], lanes)


def add_products(sums: Any, at: Any, numbers: Any, weights: Any, lanes: int) -> None:
    """Adds to `lanes` sums, from place `at` of a buffer on, int32 `numbers` of 16 bits times
    `weights` of `pack_words`, vectors of so many: `vpdpwssd` adds the products of two pairs of 16
    bits, and the upper half of these weights is zero. Other multiplications of int32 are slow."""
    if lanes not in WIDTHS:
        found = vector(sums, [at], lanes) + numbers * weights
    else:
        found = tirx.call_llvm_pure_intrin(
            f"int32x{lanes}",
            f"llvm.x86.avx512.vpdpwssd.{32 * lanes}",
            vector(sums, [at], lanes),
            tirx.reinterpret(f"int16x{2 * lanes}", numbers),
            tirx.reinterpret(f"int16x{2 * lanes}", weights),
        )
    store(sums, found, [at], lanes)


def words(numbers: Any, lanes: int) -> Any:
    """A vector of so many int8 as int32."""
    return tirx.Cast("int32" if lanes == 1 else f"int32x{lanes}", numbers)


def spread(number: Any, lanes: int) -> Any:
    """One int8 as so many int32."""
    wide = tirx.Cast("int32", number)
    return wide if lanes == 1 else tirx.Broadcast(wide, lanes)


def lanes_at(place: Any, lanes: int) -> Any:
    """The index of so many elements from `place` on."""
    return tirx.Ramp(place, 1, lanes) if lanes > 1 else place


def pack_words(weights: NDArray[Any], lanes: int) -> NDArray[Any]:
    """Weights of any shape for `add_products` of so many lanes; float32 as they are."""
    if weights.dtype != np.int8:
        return weights
    return weights.astype(np.int32) & (0xFFFF if lanes in WIDTHS else -1)


def word_at(w: Workload, word: Any) -> Any:
    """The weight that is in an int32 of `pack_words`, as an int32; a float32 as it is."""
    return word if w.dtype == "float32" else tirx.Cast("int32", tirx.Cast("int16", word))


def pack_fours(weights: NDArray[Any]) -> NDArray[np.int32]:
    """(tiles, numbers, width), numbers in fours → (tiles, 1 + numbers / 4, width): where the sums
    begin, then four weights an int32."""
    tiles, numbers, width = weights.shape
    begin = (-128 * weights.astype(np.int32).sum(axis=1, dtype=np.int32))[:, None]
    four = weights.astype(np.int8).reshape(tiles, numbers // FOUR, FOUR, width)
    words = np.ascontiguousarray(four.transpose(0, 1, 3, 2)).view("<i4")[..., 0]
    return np.concatenate([begin, words], axis=1).astype(np.int32)


def weight_at(weights: Any, tile: Any, number: Any, lane: Any) -> Any:
    """A weight out of what `pack_fours` packed, as an int32."""
    word = weights[tile, 1 + tirx.indexdiv(number, FOUR), lane]
    shift = tirx.Cast("int32", tirx.indexmod(number, FOUR)) * 8
    return tirx.Cast("int32", tirx.Cast("int8", tirx.shift_right(word, shift)))
