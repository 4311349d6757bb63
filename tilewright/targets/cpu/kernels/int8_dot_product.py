"""Dot products of int8 pairs with the processor's instructions.

`FOURS`: `vpdpbusd` of x86 (AVX512-VNNI, AVX-VNNI) adds the products of four bytes of data by four
weights to each int32 lane. It takes unsigned data and signed weights. Signed data are therefore
increased by 128, by flipping the highest bit of each when they are copied or read. The sums start
at -128 times the sum of their weights. These initial values are packed in front of the weights.

`SIGNED_FOURS`: `sdot` of AArch64 does the same with signed data. Unsigned data are made signed by
flipping the same bit, and sums of signed data start at 0.

`TWOS`: `vpmaddwd`, which all x86 processors have, adds the products of two pairs of 16-bit numbers.
Data and weights are widened to 16 bits, and the zero point of the data is subtracted when they are
copied.

No sum saturates: sums wrap modulo 2^32.
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
"""Offset between an int8 and the unsigned number that results from flipping its highest bit."""
_VPDPBUSD, _SDOT = "llvm.x86.avx512.vpdpbusd", "llvm.aarch64.neon.sdot.v4i32.v16i8"
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class DotProduct:
    """Instruction that adds dot products to the lanes of an int32 vector.

    Attributes:
        numbers: products per lane.
        takes: element type of the data that the instruction takes.
    """

    numbers: int
    takes: str

    def steps(self, numbers: int) -> int:
        """Return the number of instructions for a number of products per lane, rounded up.

        Args:
            numbers: number of products.
        """
        return -(-numbers // self.numbers)

    def flip(self, data_type: str) -> int:
        """Return the offset that is added by flipping the highest bit of the data.

        Args:
            data_type: element type of the data.

        Returns:
            128 or -128, or 0 if the instruction takes the data unchanged.
        """
        if self is TWOS or data_type == self.takes:
            return 0
        return SIGN if self.takes == "uint8" else -SIGN

    @property
    def products(self) -> int:
        """Number of registers that hold products before they are added.

        `vpmaddwd` only multiplies, so that it needs one.
        """
        return 1 if self is TWOS else 0

    def offset(self, w: Workload, zero: Expression) -> Expression:
        """Return the offset between numbers as they are multiplied and the reals they represent.

        Args:
            w: the workload.
            zero: zero point of the data.

        Returns:
            An int32 expression.
        """
        if self is TWOS:
            return tirx.const(0, "int32")
        return zero + tirx.const(self.flip(w.data_dtype), "int32")

    def begin(self, w: Workload, packed: Expression, zero: Expression, lanes: int) -> Expression:
        """Return the initial values of sums.

        Args:
            w: the workload.
            packed: initial values from the packed weights, a vector.
            zero: zero point of the data.
            lanes: number of sums.
        """
        if self is TWOS:
            return _spread(tirx.const(0, "int32"), lanes)
        return packed * _spread(self.offset(w, zero), lanes) if w.dequantises else packed

    def border(self, w: Workload, zero: Expression) -> Expression:
        """Return a step of data in the padding, where each number is the zero point.

        Args:
            w: the workload.
            zero: zero point of the data.
        """
        if self is TWOS or not (w.dequantises or self.flip(w.data_dtype)):
            return tirx.const(0, "int32")  # TVM cannot reinterpret a constant 0
        byte = tirx.Cast("uint32", self.offset(w, zero))  # TVM assumes that an int32 never wraps
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
        """Load steps of data from a buffer of bytes.

        Args:
            w: the workload.
            data: the buffer.
            place: indices of the first number.
            zero: zero point of the data.
            lanes: number of steps.

        Returns:
            One int32 per step, as the instruction takes it.
        """
        count = self.numbers * lanes
        value = data.vload(place, f"{w.data_dtype}x{count}")
        kind = "int32" if lanes == 1 else f"int32x{lanes}"
        if self is not TWOS:
            return self._flip_signs(w, tirx.reinterpret(kind, value), lanes)
        wide = tirx.Cast(f"int16x{count}", value)
        if w.dequantises:
            wide = wide - tirx.Broadcast(tirx.Cast("int16", zero), count)
        return tirx.reinterpret(kind, wide)

    def gather_numbers(
        self,
        w: Workload,
        data: TirBuffer,
        place: list[Expression],
        zero: Expression,
        first: Expression,
        end: int,
    ) -> Expression:
        """Read the numbers of a step one by one instead of with one load.

        Args:
            w: the workload.
            data: buffer of the data.
            place: indices of the number that `first` and `end` are counted from.
            zero: zero point of the data.
            first: position of the first number to read.
            end: position after the last number that exists. Numbers from there on are not read, and
                their values do not matter because their weights are zero.

        Returns:
            An int32, as the instruction takes it.
        """
        step = tirx.const(0, "int32")
        for offset in range(self.numbers):
            value = data[(*place[:-1], place[-1] + first + offset)]
            value = tirx.if_then_else(first + offset < end, value, tirx.const(0, w.data_dtype))
            if self is TWOS and w.dequantises:
                value = tirx.Cast("int32", value) - zero
            step = tirx.bitwise_or(step, self.place_number(value, offset))
        return self._flip_signs(w, step)

    def place_number(self, number: Expression, place: int) -> Expression:
        """Return a step that contains one number, with zeros in the other positions.

        Args:
            number: the number.
            place: position of the number in the step.

        Returns:
            An int32 expression.
        """
        bits = 32 // self.numbers
        wide = tirx.bitwise_and(tirx.Cast("int32", number), tirx.const((1 << bits) - 1, "int32"))
        return tirx.shift_left(wide, tirx.const(bits * place, "int32"))

    @property
    def unit_step(self) -> int:
        """Step of data in which each number is one."""
        return 0x00010001 if self is TWOS else 0x01010101

    def add(
        self, sums: TirBuffer, at: int, step: Expression, weights: Expression, lanes: int
    ) -> None:
        """Add the products of a step of data by weights to sums.

        Args:
            sums: buffer of the sums.
            at: place of the first sum.
            step: step of the data, an int32.
            weights: weights of the step, a vector with one int32 per lane.
            lanes: number of sums.
        """
        old_sums, data = vector(sums, [at], lanes), tirx.Broadcast(step, lanes)
        if self is TWOS:
            new_sums = _twos(old_sums, data, weights, lanes)
        else:
            name = _SDOT if self is SIGNED_FOURS else f"{_VPDPBUSD}.{32 * lanes}"
            new_sums = _fours(name, old_sums, data, weights, lanes)
        store(sums, new_sums, [at], lanes)

    def pack(self, weights: Array, per_offset: bool = False) -> NDArray[np.int32]:
        """Pack weights for dot products.

        Initial values of the sums are minus the sum of the weights times the offset `flip` of int8
        data, or times 1 with `per_offset`. They are 0 for `TWOS`.

        Args:
            weights: shape (tiles, numbers, width). The numbers fill whole steps.
            per_offset: whether the kernel multiplies the initial values by the offset.

        Returns:
            Shape (tiles, 1 + steps, width): the initial values, then the weights of each step as an
                int32.
        """
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
        """Return a weight from the array that `pack` returned, as an int32.

        Args:
            weights: the packed weights.
            tile: number of the tile.
            number: number of the weight along the depth.
            lane: lane within the tile.
        """
        bits = 32 // self.numbers
        word = weights[tile, 1 + tirx.indexdiv(number, self.numbers), lane]
        shift = tirx.Cast("int32", tirx.indexmod(number, self.numbers)) * bits
        return tirx.Cast("int32", tirx.Cast(f"int{bits}", tirx.shift_right(word, shift)))

    def _flip_signs(self, w: Workload, step: Expression, lanes: int = 1) -> Expression:
        """Flip the highest bit of each number in `lanes` int32 if the instruction requires it."""
        if not self.flip(w.data_dtype):
            return step
        # 0x80808080 as a signed number: the highest bit of each byte.
        return tirx.bitwise_xor(step, _spread(tirx.const(-0x7F7F7F80, "int32"), lanes))


TWOS = DotProduct(2, "int16")
FOURS, SIGNED_FOURS = DotProduct(4, "uint8"), DotProduct(4, "int8")


def dot_product(spec: CpuSpec) -> DotProduct:
    """Return the widest dot product that a processor has.

    Args:
        spec: the processor.
    """
    if spec.dots == ARM_DOTS:
        return SIGNED_FOURS
    return FOURS if spec.dots else TWOS


def computes_int8(spec: CpuSpec) -> bool:
    """Return whether the kernels support int8 on a processor.

    Args:
        spec: the processor.
    """
    return bool(spec.dots) or spec.architecture == "x86_64"


def check_dots(workload: Workload, spec: CpuSpec) -> None:
    """Check that a processor can compute a workload if it is in int8.

    Args:
        workload: the workload.
        spec: the processor.

    Raises:
        WorkloadError: the processor has no suitable instruction, or its precision is `f32`.
    """
    if workload.dtype == "int8" and not computes_int8(spec):
        raise WorkloadError(
            f"{spec.name} cannot compute int8: {spec.model or 'this processor'} is neither "
            "an x86 processor nor an AArch64 one with dot products (asimddp); write "
            "dtype=float32, or choose another target"
        )
    if workload.dequantises and spec.precision == "f32":
        raise WorkloadError(
            f"{spec.name} computes quantised layers in float32; write precision=int8, or "
            "leave out the precision"
        )


def vector_of(numbers: int) -> int:
    """Return the lanes of the narrowest vector that holds a number of values.

    Args:
        numbers: number of values.
    """
    return next(width for width in WIDTHS if width >= numbers)


def _fours(
    name: str, before: Expression, spread: Expression, weights: Expression, lanes: int
) -> Expression:
    """Return sums to which an instruction (`vpdpbusd` or `sdot`) has added four products per lane.

    Args:
        name: LLVM's name of the instruction.
        before: the sums, a vector of int32.
        spread: a step of the data, four bytes per lane.
        weights: the weights, four bytes per lane.
        lanes: number of sums.
    """

    def as_bytes(
        value: Expression,
    ) -> Expression:  # older versions of LLVM took int32, as TVM's own intrinsics do
        return tirx.reinterpret(f"int8x{4 * lanes}", value)

    return tirx.call_llvm_pure_intrin(
        f"int32x{lanes}", name, before, as_bytes(spread), as_bytes(weights)
    )


def _twos(before: Expression, one: Expression, other: Expression, lanes: int) -> Expression:
    """Return sums to which two products of 16-bit numbers per lane have been added.

    LLVM combines both additions into one instruction if there is one (`vpdpwssd`). The fence in the
    code generates no instruction. Without it, LLVM would first add the products of several steps to
    each other, for which there are not enough registers.

    Args:
        before: the sums, a vector of int32.
        one: two 16-bit numbers per lane.
        other: two 16-bit numbers per lane, which are multiplied by those of `one`.
        lanes: number of sums.
    """

    def as_words(value: Expression) -> Expression:
        return tirx.reinterpret(f"int16x{2 * lanes}", value)

    products = tirx.call_llvm_pure_intrin(
        f"int32x{lanes}", f"llvm.x86.{_PAIRS[lanes]}", as_words(one), as_words(other)
    )
    new_sums = tirx.reinterpret(f"float32x{lanes}", wrapping_sum(before, products, lanes))
    fenced = tirx.call_llvm_pure_intrin(f"float32x{lanes}", "llvm.arithmetic.fence", new_sums)
    return tirx.reinterpret(f"int32x{lanes}", fenced)


def wrapping_sum(one: Expression, other: Expression, lanes: int = 1) -> Expression:
    """Add two int32 expressions modulo 2^32.

    TVM tells LLVM that sums of signed numbers do not wrap, and assumes that numbers that are cast
    from unsigned ones are positive. Neither holds here, so that the sum is computed in unsigned
    numbers and reinterpreted.

    Args:
        one: an int32, or a vector.
        other: an int32, or a vector.
        lanes: lanes of the vectors.
    """
    kind = "int32" if lanes == 1 else f"int32x{lanes}"
    unsigned = tirx.reinterpret(f"u{kind}", one) + tirx.reinterpret(f"u{kind}", other)
    return tirx.reinterpret(kind, unsigned)


def _spread(number: Expression, lanes: int) -> Expression:
    return number if lanes == 1 else tirx.Broadcast(number, lanes)


def vector(buffer: TirBuffer, place: list[Expression], lanes: int) -> Expression:
    """Load a vector of int32 from a buffer.

    Args:
        buffer: the buffer.
        place: indices of the first element.
        lanes: number of elements.
    """
    return buffer.vload(place, f"int32x{lanes}")


def store(buffer: TirBuffer, value: Expression, place: list[Expression], lanes: int) -> None:
    """Store a vector of int32, or one number, in a buffer.

    Args:
        buffer: the buffer.
        value: the vector or number.
        place: indices of the first element.
        lanes: number of elements.
    """
    T.buffer_store(buffer, value, [*place[:-1], lanes_at(place[-1], lanes)])


def multiplies_pairs(spec: CpuSpec, lanes: int) -> bool:
    """Return whether `add_products` uses `vpmaddwd`.

    Other multiplications of int32 are slow on x86.

    Args:
        spec: the processor.
        lanes: number of sums.
    """
    return spec.architecture == "x86_64" and lanes in WIDTHS


def add_products(
    sums: TirBuffer,
    at: Expression,
    numbers: Expression,
    weights: Expression,
    lanes: int,
    pairs: bool,
) -> None:
    """Add products of int8 numbers, stored as int32, to sums.

    Args:
        sums: buffer of the sums.
        at: place of the first sum.
        numbers: the numbers, a vector of int32 whose values fit 16 bits.
        weights: weights from `pack_words`, a vector of int32.
        lanes: number of sums.
        pairs: use `vpmaddwd`, which adds the products of two pairs of 16-bit numbers. The upper
            half of each weight is then zero.
    """
    old_sums = vector(sums, [at], lanes)
    new_sums = _twos(old_sums, numbers, weights, lanes) if pairs else old_sums + numbers * weights
    store(sums, new_sums, [at], lanes)


def words(numbers: Expression, lanes: int) -> Expression:
    """Convert a vector of int8 to int32.

    Args:
        numbers: the vector.
        lanes: its lanes.
    """
    return tirx.Cast("int32" if lanes == 1 else f"int32x{lanes}", numbers)


def spread(number: Expression, lanes: int) -> Expression:
    """Copy one int8 to all lanes of an int32 vector.

    Args:
        number: the number.
        lanes: lanes of the vector.
    """
    return _spread(tirx.Cast("int32", number), lanes)


def lanes_at(place: Expression, lanes: int) -> Expression:
    """Return the index of a vector in a buffer.

    Args:
        place: index of the first element.
        lanes: number of elements.
    """
    return tirx.Ramp(place, 1, lanes) if lanes > 1 else place


def pack_words(weights: Array, pairs: bool) -> NDArray[np.int32]:
    """Convert weights to int32 for `add_products`.

    Args:
        weights: int8 weights of any shape.
        pairs: whether `add_products` uses pairs. The upper half of each word is then zero.
    """
    return weights.astype(np.int32) & np.int32(0xFFFF if pairs else -1)


def word_at(word: Expression) -> Expression:
    """Return the weight in an int32 of `pack_words`, as an int32.

    Args:
        word: the int32.
    """
    return tirx.Cast("int32", tirx.Cast("int16", word))
