"""Computes dot products of several pairs of int8 at once, by the processor's instructions.

`FOURS`: `vpdpbusd` of x86 (AVX512-VNNI, AVX-VNNI) adds, in each lane of int32, the products of four
bytes of data by four weights. It takes unsigned data and signed weights. So 128 is added to signed
data (the highest bit of each is flipped) where they are copied or read. The sums begin at -128
times the sum of their weights, which is packed before the weights themselves.

`SIGNED_FOURS`: `sdot` of AArch64 does the same with signed data. There unsigned data are made
signed, by the same bit, and sums of signed ones begin at 0.

`TWOS`: `vpmaddwd` of all x86 adds the products of two pairs of 16 bits. Data and weights are
widened to those, and the zero point of the data is subtracted where they are copied.

Nothing saturates: sums wrap modulo 2^32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import WorkloadError
from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, Tensor, TirBuffer
from tilewright.targets.cpu.spec import ARM_DOTS, CpuSpec
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

WIDTHS = (4, 8, 16)
"""Lanes of vectors of 128, 256 and 512 bits."""
SIGN = 128
"""What makes an int8 an unsigned number."""
_VPDPBUSD, _SDOT = "llvm.x86.avx512.vpdpbusd", "llvm.aarch64.neon.sdot.v4i32.v16i8"
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class DotProduct:
    """An instruction that adds `numbers` products to each lane of a vector of int32. It takes data
    of the type `takes`."""

    numbers: int
    takes: str

    def steps(self, numbers: int) -> int:
        """Instructions that so many products take; the last one with zeros."""
        return -(-numbers // self.numbers)

    def flip(self, data_type: str) -> int:
        """What the numbers that it takes are larger by than data of a type, once their highest bit
        is flipped; 0 where it is not."""
        if self is TWOS or data_type == self.takes:
            return 0
        return SIGN if self.takes == "uint8" else -SIGN

    @property
    def products(self) -> int:
        """Vector registers that hold products before they are added: `vpmaddwd` only multiplies."""
        return 1 if self is TWOS else 0

    def offset(self, w: Workload, zero: Expression) -> Expression:
        """What the numbers of the data are larger by in `prepared` than the real ones, an int32;
        `zero` is their zero point."""
        if self is TWOS:
            return tirx.const(0, "int32")
        return zero + tirx.const(self.flip(w.data_dtype), "int32")

    def begin(self, w: Workload, packed: Expression, zero: Expression, lanes: int) -> Expression:
        """What so many sums begin with; `packed` is what the weights say of it, a vector."""
        if self is TWOS:
            return _spread(tirx.const(0, "int32"), lanes)
        return packed * _spread(self.offset(w, zero), lanes) if w.dequantises else packed

    def border(self, w: Workload, zero: Expression) -> Expression:
        """The step of numbers in the padding: each is the zero point."""
        if self is TWOS or not (w.dequantises or self.flip(w.data_dtype)):
            return tirx.const(0, "int32")  # TVM reinterprets no constant 0
        byte = tirx.Cast("uint32", self.offset(w, zero))  # TVM knows no int32 that wraps
        if self is SIGNED_FOURS:
            byte = tirx.bitwise_and(byte, tirx.const(0xFF, "uint32"))
        return tirx.reinterpret("int32", byte * tirx.const(0x01010101, "uint32"))

    def loaded(
        self,
        w: Workload,
        data: TirBuffer,
        place: list[Expression],
        zero: Expression,
        lanes: int = 1,
    ) -> Expression:
        """`lanes` steps of a buffer of bytes from `place` on, each as the instruction takes it, an
        int32."""
        count = self.numbers * lanes
        value = data.vload(place, f"{w.data_dtype}x{count}")
        kind = "int32" if lanes == 1 else f"int32x{lanes}"
        if self is not TWOS:
            return self._flipped(w, tirx.reinterpret(kind, value), lanes)
        wide = tirx.Cast(f"int16x{count}", value)
        if w.dequantises:
            wide = wide - tirx.Broadcast(tirx.Cast("int16", zero), count)
        return tirx.reinterpret(kind, wide)

    def gathered(
        self,
        w: Workload,
        data: TirBuffer,
        place: list[Expression],
        zero: Expression,
        first: Expression,
        end: int,
    ) -> Expression:
        """A step of numbers read one by one, number `first` of those behind `place` and its next;
        from number `end` on they are any, for their weights are zero."""
        found = tirx.const(0, "int32")
        for each in range(self.numbers):
            value = data[(*place[:-1], place[-1] + first + each)]
            value = tirx.if_then_else(first + each < end, value, tirx.const(0, w.data_dtype))
            if self is TWOS and w.dequantises:
                value = tirx.Cast("int32", value) - zero
            found = tirx.bitwise_or(found, self.placed(value, each))
        return self._flipped(w, found)

    def placed(self, number: Expression, place: int) -> Expression:
        """A number as that of a step, an int32 that is zero else."""
        bits = 32 // self.numbers
        wide = tirx.bitwise_and(tirx.Cast("int32", number), tirx.const((1 << bits) - 1, "int32"))
        return tirx.shift_left(wide, tirx.const(bits * place, "int32"))

    @property
    def ones(self) -> int:
        """A step of data that are one."""
        return 0x00010001 if self is TWOS else 0x01010101

    def add(
        self, sums: TirBuffer, at: int, step: Expression, weights: Expression, lanes: int
    ) -> None:
        """Adds to `lanes` sums, from place `at` of a buffer on, the products of a step of data, an
        int32, and of weights, a vector of them."""
        before, spread = vector(sums, [at], lanes), tirx.Broadcast(step, lanes)
        if self is TWOS:
            found = _twos(before, spread, weights, lanes)
        else:
            name = _SDOT if self is SIGNED_FOURS else f"{_VPDPBUSD}.{32 * lanes}"
            found = _fours(name, before, spread, weights, lanes)
        store(sums, found, [at], lanes)

    def pack(self, weights: Array, per_offset: bool = False) -> NDArray[np.int32]:
        """(tiles, numbers, width), numbers in whole steps → (tiles, 1 + steps, width): where the
        sums begin, then the weights of a step as an int32. Sums of `TWOS` begin at 0, others at
        minus the sum of their weights times `flip` of int8, or, `per_offset`, times 1."""
        tiles, numbers, width = weights.shape
        begin = np.zeros((tiles, 1, width), np.int32)
        if self is not TWOS:
            factor = -1 if per_offset else -self.flip("int8")
            begin = factor * weights.astype(np.int32).sum(axis=1, dtype=np.int32)[:, None]
        kind = np.int16 if self is TWOS else np.int8
        steps = weights.astype(kind).reshape(tiles, numbers // self.numbers, self.numbers, width)
        words = np.ascontiguousarray(steps.transpose(0, 1, 3, 2)).view("<i4")[..., 0]
        return np.concatenate([begin, words], axis=1).astype(np.int32)

    def weight_at(
        self, weights: Tensor, tile: Expression, number: Expression, lane: Expression
    ) -> Expression:
        """A weight out of what `pack` packed, as an int32."""
        bits = 32 // self.numbers
        word = weights[tile, 1 + tirx.indexdiv(number, self.numbers), lane]
        shift = tirx.Cast("int32", tirx.indexmod(number, self.numbers)) * bits
        return tirx.Cast("int32", tirx.Cast(f"int{bits}", tirx.shift_right(word, shift)))

    def _flipped(self, w: Workload, step: Expression, lanes: int = 1) -> Expression:
        """Numbers of data in an int32, or `lanes` of such, as it takes them."""
        if not self.flip(w.data_dtype):
            return step
        return tirx.bitwise_xor(step, _spread(tirx.const(-0x7F7F7F80, "int32"), lanes))


TWOS = DotProduct(2, "int16")
FOURS, SIGNED_FOURS = DotProduct(4, "uint8"), DotProduct(4, "int8")


def dot_product(spec: CpuSpec) -> DotProduct:
    """The widest that a processor has."""
    if spec.dots == ARM_DOTS:
        return SIGNED_FOURS
    return FOURS if spec.dots else TWOS


def computes_int8(spec: CpuSpec) -> bool:
    """Whether kernels here compute int8 on a processor."""
    return bool(spec.dots) or spec.architecture == "x86_64"


def check_dots(workload: Workload, spec: CpuSpec) -> None:
    """Raises `WorkloadError` for int8 on a processor without such an instruction."""
    if workload.dtype == "int8" and not computes_int8(spec):
        raise WorkloadError(
            f"{spec.name} computes no int8: {spec.model or 'this processor'} is no x86, and has no "
            "dot products of AArch64 (asimddp); write dtype=float32, or name another target"
        )
    if workload.dequantises and spec.precision == "f32":
        raise WorkloadError(
            f"{spec.name} computes quantised layers in float32; write precision=int8, or leave "
            "precision out"
        )


def vector_of(numbers: int) -> int:
    """Lanes of the narrowest vector that holds `numbers`."""
    return next(width for width in WIDTHS if width >= numbers)


def _fours(
    name: str, before: Expression, spread: Expression, weights: Expression, lanes: int
) -> Expression:
    def as_bytes(
        value: Expression,
    ) -> Expression:  # LLVM took int32 once, as TVM's own intrinsics still do
        return tirx.reinterpret(f"int8x{4 * lanes}", value)

    return tirx.call_llvm_pure_intrin(
        f"int32x{lanes}", name, before, as_bytes(spread), as_bytes(weights)
    )


def _twos(before: Expression, one: Expression, other: Expression, lanes: int) -> Expression:
    """With the products of two pairs of 16 bits in each of so many lanes. LLVM makes one
    instruction of both additions where there is one (`vpdpwssd`). Without the fence, which is no
    instruction, it would add the products of several steps first, for which there are no
    registers."""

    def as_words(value: Expression) -> Expression:
        return tirx.reinterpret(f"int16x{2 * lanes}", value)

    products = tirx.call_llvm_pure_intrin(
        f"int32x{lanes}", f"llvm.x86.{_PAIRS[lanes]}", as_words(one), as_words(other)
    )
    total = tirx.reinterpret(f"float32x{lanes}", wrapping_sum(before, products, lanes))
    fenced = tirx.call_llvm_pure_intrin(f"float32x{lanes}", "llvm.arithmetic.fence", total)
    return tirx.reinterpret(f"int32x{lanes}", fenced)


def wrapping_sum(one: Expression, other: Expression, lanes: int = 1) -> Expression:
    """Of two int32, or vectors of them, modulo 2^32. TVM tells LLVM that sums of signed numbers
    never wrap, and takes what is cast from unsigned ones for positive: neither is so."""
    kind = "int32" if lanes == 1 else f"int32x{lanes}"
    unsigned = tirx.reinterpret(f"u{kind}", one) + tirx.reinterpret(f"u{kind}", other)
    return tirx.reinterpret(kind, unsigned)


def _spread(number: Expression, lanes: int) -> Expression:
    return number if lanes == 1 else tirx.Broadcast(number, lanes)


def vector(buffer: TirBuffer, place: list[Expression], lanes: int) -> Expression:
    """`lanes` int32 of a buffer from `place` on."""
    return buffer.vload(place, f"int32x{lanes}")


def store(buffer: TirBuffer, value: Expression, place: list[Expression], lanes: int) -> None:
    """Puts a vector of `lanes`, or one number, into a buffer of int32 from `place` on."""
    T.buffer_store(buffer, value, [*place[:-1], lanes_at(place[-1], lanes)])


def multiplies_pairs(spec: CpuSpec, lanes: int) -> bool:
    """Whether `add_products` of so many lanes uses `vpmaddwd`: other multiplications of int32 are
    slow on x86."""
    return spec.architecture == "x86_64" and lanes in WIDTHS


def add_products(
    sums: TirBuffer,
    at: Expression,
    numbers: Expression,
    weights: Expression,
    lanes: int,
    pairs: bool,
) -> None:
    """Adds to `lanes` sums, from place `at` of a buffer on, int32 `numbers` of 16 bits times
    `weights` of `pack_words`, vectors of so many. `vpmaddwd` adds the products of two `pairs` of 16
    bits, and the upper half of these weights is zero."""
    before = vector(sums, [at], lanes)
    found = _twos(before, numbers, weights, lanes) if pairs else before + numbers * weights
    store(sums, found, [at], lanes)


def words(numbers: Expression, lanes: int) -> Expression:
    """A vector of so many int8 as int32."""
    return tirx.Cast("int32" if lanes == 1 else f"int32x{lanes}", numbers)


def spread(number: Expression, lanes: int) -> Expression:
    """One int8 as so many int32."""
    return _spread(tirx.Cast("int32", number), lanes)


def lanes_at(place: Expression, lanes: int) -> Expression:
    """The index of so many elements from `place` on."""
    return tirx.Ramp(place, 1, lanes) if lanes > 1 else place


def pack_words(weights: Array, pairs: bool) -> NDArray[np.int32]:
    """Weights of any shape for `add_products`, by `pairs` or not."""
    return weights.astype(np.int32) & np.int32(0xFFFF if pairs else -1)


def word_at(word: Expression) -> Expression:
    """The weight that is in an int32 of `pack_words`, as an int32."""
    return tirx.Cast("int32", tirx.Cast("int16", word))
