"""Dot products of int8 values with the processor's instructions.

There are three types of instructions:

- `FOURS`: `vpdpbusd` of x86 (AVX512-VNNI, AVX-VNNI) adds the products of four data bytes and four
  weights to each int32 lane. It takes unsigned data and signed weights. Signed data are therefore
  increased by 128, by flipping the highest bit of each byte when it is copied or read. To
  compensate, each sum starts at -128 times the sum of its weights. These initial values are stored
  in front of the packed weights.
- `SIGNED_FOURS`: `sdot` of AArch64 does the same with signed data. Unsigned data are converted to
  signed data by flipping the highest bit. Sums of signed data start at 0.
- `TWOS`: `vpmaddwd`, which all x86 processors have, adds two products of 16-bit numbers per lane.
  Data and weights are widened to 16 bits, and the zero point of the data is subtracted when they
  are copied.

A step is the part of a dot product that one instruction computes: two or four products per lane. In
memory, a step of the data is one 32-bit word. No sum saturates; sums wrap modulo 2^32.
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
"""Numbers of 32-bit lanes of vectors with 128, 256 and 512 bits."""
SIGN = 128
"""Difference between an int8 value and the uint8 value that results from flipping its highest
bit."""
_VPDPBUSD, _SDOT = "llvm.x86.avx512.vpdpbusd", "llvm.aarch64.neon.sdot.v4i32.v16i8"
_PAIRS = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class DotProduct:
    """Instruction that adds dot products to the lanes of an int32 vector.

    Attributes:
        numbers: number of products per lane.
        takes: element type of the data that the instruction takes.
    """

    numbers: int
    takes: str

    def steps(self, numbers: int) -> int:
        """Return the number of instructions for a number of products per lane, rounded up.

        Args:
            numbers: number of products per lane.
        """
        return -(-numbers // self.numbers)

    def flip(self, data_type: str) -> int:
        """Return what flipping the highest bit of a data value adds to the value.

        Args:
            data_type: element type of the data.

        Returns:
            128 or -128, or 0 if the instruction takes the data without flipping bits.
        """
        if self is TWOS or data_type == self.takes:
            return 0
        return SIGN if self.takes == "uint8" else -SIGN

    @property
    def products(self) -> int:
        """Number of registers that hold products before they are added to sums.

        `vpmaddwd` only multiplies and needs one register for its result. The other instructions
        also add.
        """
        return 1 if self is TWOS else 0

    def offset(self, w: Workload, zero: Expression) -> Expression:
        """Return the amount by which each multiplied integer exceeds the data minus the zero point.

        The instruction multiplies data from which the zero point was not subtracted, and whose
        highest bit may be flipped. The amount is the sum of the two effects.

        Args:
            w: the workload.
            zero: zero point of the data, an int32 expression.

        Returns:
            An int32 expression.
        """
        if self is TWOS:
            return tirx.const(0, "int32")
        return zero + tirx.const(self.flip(w.data_dtype), "int32")

    def begin(self, w: Workload, packed: Expression, zero: Expression, lanes: int) -> Expression:
        """Return the initial values of sums.

        They cancel what the offset of the data (see `offset`) adds to the sums.

        Args:
            w: the workload.
            packed: initial values from the packed weights, an int32 vector.
            zero: zero point of the data, an int32 expression.
            lanes: number of sums.

        Returns:
            An int32 vector.
        """
        if self is TWOS:
            return _spread(tirx.const(0, "int32"), lanes)
        return packed * _spread(self.offset(w, zero), lanes) if w.dequantises else packed

    def border(self, w: Workload, zero: Expression) -> Expression:
        """Return a step of data that lies in the padding, where each value is the zero point.

        Args:
            w: the workload.
            zero: zero point of the data, an int32 expression.

        Returns:
            An int32, in the form that the instruction takes.
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
            place: indices of the first value.
            zero: zero point of the data, an int32 expression.
            lanes: number of steps.

        Returns:
            One int32 per step, in the form that the instruction takes.
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
        """Read the values of a step one by one instead of with one load.

        Args:
            w: the workload.
            data: buffer of the data.
            place: indices of the value from which `first` and `end` are counted.
            zero: zero point of the data, an int32 expression.
            first: position of the first value to read.
            end: position after the last value that exists. Values beyond it are not read and
                replaced by zeros; they do not matter, because their weights are zero.

        Returns:
            An int32, in the form that the instruction takes.
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
        """Return a step that contains one value, with zeros in the other positions.

        Args:
            number: the value.
            place: position of the value in the step.

        Returns:
            An int32 expression.
        """
        bits = 32 // self.numbers
        wide = tirx.bitwise_and(tirx.Cast("int32", number), tirx.const((1 << bits) - 1, "int32"))
        return tirx.shift_left(wide, tirx.const(bits * place, "int32"))

    @property
    def unit_step(self) -> int:
        """Step of data, as an int32, in which each value is one."""
        return 0x00010001 if self is TWOS else 0x01010101

    def add(
        self, sums: TirBuffer, at: int, step: Expression, weights: Expression, lanes: int
    ) -> None:
        """Multiply a step of data by weights and add the products to sums.

        Args:
            sums: buffer of the sums.
            at: index of the first sum in the buffer.
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
        """Pack weights for dot products, with the initial values of the sums in front of them.

        An initial value is minus the sum of the weights times `flip("int8")`, the offset of flipped
        int8 data. With `per_offset` it is minus the sum of the weights, and the kernel multiplies
        it by the offset. For `TWOS` it is 0.

        Args:
            weights: shape (tiles, depth, width). The depth must be a multiple of the products per
                step.
            per_offset: whether the kernel multiplies the initial values by the offset.

        Returns:
            Int32 array of shape (tiles, 1 + steps, width): the initial values, then the weights of
            each step.
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
        """Return one weight, as an int32, from the array that `pack` returned.

        Args:
            weights: the packed weights.
            tile: number of the tile.
            number: index of the weight along the depth.
            lane: lane within the tile.
        """
        bits = 32 // self.numbers
        word = weights[tile, 1 + tirx.indexdiv(number, self.numbers), lane]
        shift = tirx.Cast("int32", tirx.indexmod(number, self.numbers)) * bits
        return tirx.Cast("int32", tirx.Cast(f"int{bits}", tirx.shift_right(word, shift)))

    def _flip_signs(self, w: Workload, step: Expression, lanes: int = 1) -> Expression:
        """Flip the highest bit of each value in `lanes` int32 words if the instruction needs it."""
        if not self.flip(w.data_dtype):
            return step
        # 0x80808080 as a signed number: the highest bit of each byte.
        return tirx.bitwise_xor(step, _spread(tirx.const(-0x7F7F7F80, "int32"), lanes))


TWOS = DotProduct(2, "int16")
FOURS, SIGNED_FOURS = DotProduct(4, "uint8"), DotProduct(4, "int8")


def dot_product(spec: CpuSpec) -> DotProduct:
    """Return the dot-product instruction with the most products per lane that a processor has.

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
    """Check that a processor can compute a workload; workloads that are not int8 always pass.

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
    """Return the number of int32 lanes (4, 8 or 16) of the narrowest vector that holds some values.

    Args:
        numbers: number of values, at most 16.
    """
    return next(width for width in WIDTHS if width >= numbers)


def _fours(
    name: str, before: Expression, spread: Expression, weights: Expression, lanes: int
) -> Expression:
    """Add four products per lane to sums, with the instruction `vpdpbusd` or `sdot`.

    Args:
        name: LLVM's name of the instruction.
        before: the sums, a vector of int32.
        spread: a step of the data, four bytes per lane.
        weights: the weights, four bytes per lane.
        lanes: number of sums.

    Returns:
        The new sums.
    """

    def as_bytes(
        value: Expression,
    ) -> Expression:  # older versions of LLVM took int32, as TVM's own intrinsics do
        return tirx.reinterpret(f"int8x{4 * lanes}", value)

    return tirx.call_llvm_pure_intrin(
        f"int32x{lanes}", name, before, as_bytes(spread), as_bytes(weights)
    )


def _twos(before: Expression, one: Expression, other: Expression, lanes: int) -> Expression:
    """Add two products of 16-bit numbers per lane to sums.

    LLVM fuses the multiplication and the addition into one instruction if the processor has it
    (`vpdpwssd`). The fence in the code generates no instruction. Without it, LLVM would first add
    the products of several steps to each other, for which there are not enough registers.

    Args:
        before: the sums, a vector of int32.
        one: two 16-bit numbers per lane.
        other: two 16-bit numbers per lane, which are multiplied by those of `one`.
        lanes: number of sums.

    Returns:
        The new sums.
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
    from unsigned types are positive. Both assumptions are wrong here. The sum is therefore computed
    in unsigned integers and reinterpreted as signed.

    Args:
        one: an int32, or a vector of int32.
        other: an int32, or a vector of int32.
        lanes: number of lanes of the vectors.
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
    """Return whether `add_products` uses `vpmaddwd`, because other int32 products are slow on x86.

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
    """Multiply int8 values, which are stored as int32, by weights and add the products to sums.

    Args:
        sums: buffer of the sums.
        at: index of the first sum in the buffer.
        numbers: the values, a vector of int32 whose values fit 16 bits.
        weights: weights from `pack_words`, a vector of int32.
        lanes: number of sums.
        pairs: use `vpmaddwd`, which adds two products of 16-bit numbers per lane. The upper half of
            each weight is zero, so that the second product is zero.
    """
    old_sums = vector(sums, [at], lanes)
    new_sums = _twos(old_sums, numbers, weights, lanes) if pairs else old_sums + numbers * weights
    store(sums, new_sums, [at], lanes)


def words(numbers: Expression, lanes: int) -> Expression:
    """Convert a vector of int8 to int32.

    Args:
        numbers: the vector.
        lanes: number of lanes.
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
    """Return the index with which a vector is stored in a buffer.

    Args:
        place: index of the first element.
        lanes: number of elements.
    """
    return tirx.Ramp(place, 1, lanes) if lanes > 1 else place


def pack_words(weights: Array, pairs: bool) -> NDArray[np.int32]:
    """Convert int8 weights to int32 for `add_products`.

    Args:
        weights: int8 weights of any shape.
        pairs: whether `add_products` multiplies pairs. The upper half of each int32 is then set to
            zero.

    Returns:
        Int32 array of the same shape.
    """
    return weights.astype(np.int32) & np.int32(0xFFFF if pairs else -1)


def word_at(word: Expression) -> Expression:
    """Return the weight that an int32 of `pack_words` contains, as a sign-extended int32.

    Args:
        word: the int32.
    """
    return tirx.Cast("int32", tirx.Cast("int16", word))
