"""Multiplies tiles of bfloat16 or int8 by AMX, those of bfloat16 also by dot products of vectors.

To try the loops around them anywhere, plain arithmetic does, too.

A tile has up to 16 rows of 64 bytes, in words of two bfloat16 or four bytes. `C += A B` takes rows
of A as they are. A word of B holds the next two or four numbers of a column. See Intel's manual of
AMX: TDPBF16PS, TDPBSSD and TDPBUSD.

Dot products of vectors, `vdpbf16ps`, add products of two pairs of bfloat16 to each lane of a vector
of float32. TVM writes code for LLVM without LLVM's type of bfloat16, which the instruction's
operands have. So one function is given to LLVM in its own language. It takes vectors of int32, and
LLVM puts its body in place of each call. The instruction takes numbers below the smallest normal
one for zero, and rounds results of that size to it. See Intel's manual: VDPBF16PS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.core.bfloat16 import BELOW_HALF, NAN, rounded_array
from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, TirBuffer
from tilewright.targets.cpu.kernels.int8_dot_product import lanes_at
from tilewright.targets.cpu.kernels.tile_arithmetic import even_parts
from tilewright.targets.cpu.spec import AMX, AMX_INT8, DOTS_BFLOAT16, CpuSpec
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

TILE = 16
"""Rows of a tile, and words in one of its rows."""
TILES = 8
"""Tile registers of a core."""
WORD = 4
"""Bytes of a word."""
_ROW_BYTES = TILE * WORD
CONVERTED = (8, 16)
"""Lanes of the vectors of float32 that an instruction rounds to bfloat16."""


@dataclass(frozen=True)
class TileNumbers:
    """What tiles multiply: `each` numbers in a word, stored as `kind`; their `sums`; and how LLVM
    calls the instruction."""

    each: int
    kind: str
    sums: str
    instruction: str

    @property
    def in_row(self) -> int:
        """Numbers in a row of a tile."""
        return TILE * self.each

    def whole_words(self, count: int) -> int:
        """So many numbers and what fills their last word."""
        return -(-count // self.each) * self.each

    def stored(self, number: Expression, lanes: int, spec: CpuSpec) -> Expression:
        """A number of the data as tiles hold it, in a loop that is vectorised to `lanes`."""
        return bfloat16_of(number, lanes, spec) if self is BFLOAT16 else number

    def border(self, zero: Expression) -> Expression:
        """What stands in the padding; `zero` is the zero point of the data, an int32."""
        return tirx.const(0, self.kind) if self is BFLOAT16 else tirx.Cast(self.kind, zero)

    def packed(self, weights: Array) -> NDArray[np.int32]:
        """(..., each × words, columns) → (..., words, columns): rows in the bytes of a word."""
        bits = 32 // self.each
        held = rounded_array(weights) if self is BFLOAT16 else weights.astype(np.int8)
        rows = held.view(f"u{bits // 8}").astype(np.uint32)
        words = np.zeros_like(rows[..., 0 :: self.each, :])
        for number in range(self.each):
            words |= rows[..., number :: self.each, :] << np.uint32(bits * number)
        return words.view(np.int32)


BFLOAT16 = TileNumbers(2, "uint16", "float32", "tdpbf16ps")
SIGNED = TileNumbers(4, "int8", "int32", "tdpbssd")
UNSIGNED = TileNumbers(4, "uint8", "int32", "tdpbusd")


def numbers_of(w: Workload) -> TileNumbers:
    """What tiles hold of a workload's data."""
    if w.dtype == "bfloat16":
        return BFLOAT16
    return SIGNED if w.data_dtype == "int8" else UNSIGNED


def bfloat16_of(number: Expression, lanes: int, spec: CpuSpec) -> Expression:
    """A float32 expression as the uint16 of the nearest bfloat16, halves to even, in a loop that is
    vectorised to `lanes`. An instruction, VCVTNEPS2BF16, takes numbers below the smallest normal
    one for zero."""
    if spec.bfloat16 in (AMX, DOTS_BFLOAT16) and lanes in CONVERTED:
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
        # By way of int16: LLVM has a type of its own for what the instruction gives.
        found = tirx.call_llvm_pure_intrin("uint16", name, number)
        return tirx.reinterpret("uint16", tirx.reinterpret("int16", found))
    bits = tirx.reinterpret("uint32", number)
    odd = tirx.bitwise_and(tirx.shift_right(bits, _bits(16)), _bits(1))
    near = tirx.shift_right(bits + odd + _bits(BELOW_HALF), _bits(16))
    nan = tirx.bitwise_and(bits, _bits(0x7FFFFFFF)) > _bits(0x7F800000)
    return tirx.Cast("uint16", tirx.Select(nan, _bits(NAN), near))


def paired(first: Expression, second: Expression, lanes: int, spec: CpuSpec) -> Expression:
    """Two float32 expressions as an int32 of two bfloat16, the first in the lower half."""
    lower, upper = (tirx.Cast("uint32", bfloat16_of(each, lanes, spec)) for each in (first, second))
    return tirx.reinterpret("int32", tirx.bitwise_or(lower, tirx.shift_left(upper, _bits(16))))


class AmxTiles:
    """Writes instructions of AMX: `down` × `across` tiles of sums, of `rows` rows; `words` of a
    step. What it needs of a task is set up by `begin` and given back by `end`."""

    def __init__(self, numbers: TileNumbers, down: int, across: int, rows: int, words: int) -> None:
        self.numbers = numbers
        self.down, self.across, self.rows, self.words = down, across, rows, words

    def begin(self) -> None:
        """Says which sizes the tiles have. The operating system must have allowed AMX before."""
        sums = self.down * self.across
        rows = [self.rows] * (sums + self.down) + [self.words] * (TILES - sums - self.down)
        row_bytes = [_ROW_BYTES] * sums + [self.words * WORD] * self.down
        row_bytes += [_ROW_BYTES] * (TILES - len(row_bytes))
        layout = bytes([1, 0, *[0] * 14])  # palette 1
        layout += b"".join(size.to_bytes(2, "little") for size in [*row_bytes, *[0] * 8])
        layout += bytes([*rows, *[0] * 8])
        sizes = T.alloc_buffer((len(layout) // 8,), "uint64", scope="local")
        for at in range(0, len(layout), 8):
            word = int.from_bytes(layout[at : at + 8], "little")
            T.buffer_store(sizes, tirx.const(word, "uint64"), [at // 8])
        _call("ldtilecfg", sizes.access_ptr("r"))
        self._scratch = T.alloc_buffer(
            (self.down * self.rows, self.across * TILE), self.numbers.sums, scope="local"
        )

    def end(self) -> None:
        """Gives the tiles back."""
        _call("tilerelease")

    def clear(self) -> None:
        """All sums are 0."""
        for tile in range(self.down * self.across):
            _call("tilezero", _tile(tile))

    def step(
        self,
        data: TirBuffer,
        places: list[Expression],
        row: int,
        weights: TirBuffer,
        at: Expression,
    ) -> None:
        """Adds products: of a tile of `data` from each of `places` on, rows `row` numbers
        apart, by tiles of `weights` (int32) behind one another from `at` on."""
        first = self.down * self.across
        second = first + self.down
        held, stride = TILES - second, _stride(WORD // self.numbers.each * row)
        for i, place in enumerate(places):
            pointer = data.access_ptr("r", offset=place)
            _call("tileloadd64", _tile(first + i), pointer, stride)
        for begin in range(0, self.across, held):  # all loads first: a fifth faster than in between
            some = range(begin, min(begin + held, self.across))
            for j in some:
                pointer = weights.access_ptr("r", offset=at + j * self.words * TILE)
                _call("tileloadd64", _tile(second + j - begin), pointer, _stride(_ROW_BYTES))
            for i in range(self.down):
                for j in some:
                    _call(
                        self.numbers.instruction, _tile(i * self.across + j), _tile(first + i),
                        _tile(second + j - begin),
                    )  # fmt: skip

    def sums(self) -> TirBuffer:
        """A buffer (rows, columns) of all sums."""
        self.keep(self._scratch, 0)
        return self._scratch

    def keep(self, buffer: TirBuffer, at: Expression) -> None:
        """Writes all sums, rows of all columns, to a buffer from place `at` on."""
        self._move("tilestored64", buffer, "w", at)

    def resume(self, buffer: TirBuffer, at: Expression) -> None:
        """Reads all sums from where they were kept."""
        self._move("tileloadd64", buffer, "r", at)

    def _move(self, instruction: str, buffer: TirBuffer, access: str, at: Expression) -> None:
        width = self.across * TILE
        for i in range(self.down):
            for j in range(self.across):
                place = at + i * self.rows * width + j * TILE
                pointer = buffer.access_ptr(access, offset=place)
                tile = _tile(i * self.across + j)
                _call(instruction, tile, pointer, _stride(WORD * width))


class _StoredSums:
    """Has what units share whose sums lie in memory."""

    def __init__(self, numbers: TileNumbers, down: int, across: int, rows: int, words: int) -> None:
        self.numbers = numbers
        self.down, self.across, self.rows, self.words = down, across, rows, words

    def begin(self) -> None:
        """Makes room for the sums."""
        shape = self.down * self.rows, self.across * TILE
        self._sums = T.alloc_buffer(shape, self.numbers.sums, scope="local")

    def end(self) -> None:
        """Nothing is held."""

    def clear(self) -> None:
        """All sums are 0."""
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, self.across * TILE) as c:
            T.buffer_store(self._sums, tirx.const(0, self.numbers.sums), [r, c])

    def keep(self, buffer: TirBuffer, at: Expression) -> None:
        """See `AmxTiles.keep`."""
        width = self.across * TILE
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, width) as c:
            T.buffer_store(buffer, self._sums[r, c], [at + r * width + c])

    def resume(self, buffer: TirBuffer, at: Expression) -> None:
        """See `AmxTiles.resume`."""
        width = self.across * TILE
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, width) as c:
            T.buffer_store(self._sums, buffer[at + r * width + c], [r, c])

    def sums(self) -> TirBuffer:
        """A buffer (rows, columns) of all sums."""
        return self._sums


class DotTiles(_StoredSums):
    """Does what `AmxTiles` does for bfloat16, by dot products of vectors: `vdpbf16ps`. As many rows
    at once as have their sums in registers."""

    def begin(self) -> None:
        """Makes room for the sums."""
        super().begin()
        self._held = sum_registers()

    def step(
        self,
        data: TirBuffer,
        places: list[Expression],
        row: int,
        weights: TirBuffer,
        at: Expression,
    ) -> None:
        """See `AmxTiles.step`."""
        starts = [place + r * row for place in places for r in range(self.rows)]
        tiles = [at + j * self.words * TILE for j in range(self.across)]
        each = even_parts(len(starts), SUM_REGISTERS // self.across)
        for first in range(0, len(starts), each):
            some = data, starts[first : first + each]
            add_words(self._held, self._sums, first, some, (weights, tiles), self.words)


class PlainTiles(_StoredSums):
    """Does what `AmxTiles` does, in plain loops: slow, for any processor."""

    def step(
        self,
        data: TirBuffer,
        places: list[Expression],
        row: int,
        weights: TirBuffer,
        at: Expression,
    ) -> None:
        """See `AmxTiles.step`."""
        for i, place in enumerate(places):
            for j in range(self.across):
                with T.serial(0, self.rows) as r, T.serial(0, self.words) as k:
                    start = place + r * row + k * self.numbers.each
                    with T.vectorized(0, TILE) as c:
                        word = weights[at + (j * self.words + k) * TILE + c]
                        at_sum = [i * self.rows + r, j * TILE + c]
                        found = self._sums[tuple(at_sum)]
                        for each in range(self.numbers.each):
                            found += self._data(data[start + each]) * self._weight(word, each)
                        T.buffer_store(self._sums, found, at_sum)

    def _data(self, number: Expression) -> Expression:
        if self.numbers is BFLOAT16:
            return _float(tirx.shift_left(tirx.Cast("uint32", number), _bits(16)))
        return tirx.Cast("int32", number)

    def _weight(self, word: Expression, place: int) -> Expression:
        """Number `place` of a word."""
        if self.numbers is BFLOAT16:
            bits = tirx.reinterpret("uint32", word)
            high = tirx.bitwise_and(bits, _bits(0xFFFF0000))
            return _float(high if place else tirx.shift_left(bits, _bits(16)))
        first = tirx.shift_left(word, tirx.const(24 - 8 * place, "int32"))
        return tirx.shift_right(first, tirx.const(24, "int32"))


TileUnit = AmxTiles | DotTiles | PlainTiles


def tile_unit(
    numbers: TileNumbers, spec: CpuSpec
) -> type[AmxTiles] | type[DotTiles] | type[PlainTiles]:
    """By the instructions of the processor."""
    name = spec.bfloat16 if numbers is BFLOAT16 else spec.int8_tiles
    if name == DOTS_BFLOAT16:
        return DotTiles
    return AmxTiles if name in (AMX, AMX_INT8) else PlainTiles


def _call(name: str, *arguments: Expression) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _tile(number: int) -> Expression:
    return tirx.const(number, "int8")


def _stride(size: int) -> Expression:
    return tirx.const(size, "int64")


def _bits(value: int) -> Expression:
    return tirx.const(value, "uint32")


def _float(bits: Expression) -> Expression:
    return tirx.reinterpret("float32", bits)


# -- dot products of vectors of bfloat16 -------------------------------------------------------


LANES = 16
SUM_REGISTERS = 24
"""Vector registers for sums, of 32: the others hold a word of each column, and one of the data."""
_ADD_PRODUCTS = "tilewright_add_bfloat16_products"
_ADD_PRODUCTS_IN_LLVM = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define <16 x float> @{_ADD_PRODUCTS}(<16 x float> %sums, <16 x i32> %data, <16 x i32> %weights) {{
  %some = bitcast <16 x i32> %data to <32 x bfloat>
  %others = bitcast <16 x i32> %weights to <32 x bfloat>
  %found = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
      <16 x float> %sums, <32 x bfloat> %some, <32 x bfloat> %others)
  ret <16 x float> %found
}}
"""


def sum_registers() -> TirBuffer:
    """A buffer of `SUM_REGISTERS` vectors, which `add_words` keeps in sum_registers."""
    return T.alloc_buffer((SUM_REGISTERS * LANES,), "float32", scope="local")


def add_words(
    held: TirBuffer, sums: TirBuffer, first: int, data: tuple[TirBuffer, list[Expression]],
    weights: tuple[TirBuffer, list[Expression]],
    words: int,
) -> None:  # fmt: skip
    """Adds the products of so many words to rows of `sums`, a buffer (rows, 16 × tiles), from row
    `first` on. `data` is a buffer of uint16 and where each row begins, `weights` one of int32 and
    where each tile of 16 columns does, its words behind one another. `held` is of `sum_registers`:
    rows × tiles ≤ `SUM_REGISTERS`."""
    (values, starts), (packed, tiles) = data, weights
    vectors = [(r, j) for r in range(len(starts)) for j in range(len(tiles))]
    at = {each: LANES * number for number, each in enumerate(vectors)}
    for r, j in vectors:
        value = sums.vload([first + r, LANES * j], f"float32x{LANES}")
        T.buffer_store(held, value, [lanes_at(at[r, j], LANES)])
    with (
        T.attr(tirx.const(0, "int32"), "pragma_import_llvm", _ADD_PRODUCTS_IN_LLVM),
        T.serial(0, words) as k,
    ):
        columns = [packed.vload([tile + k * LANES], f"int32x{LANES}") for tile in tiles]
        for r, start in enumerate(starts):
            word = tirx.reinterpret("int32", values.vload([start + 2 * k], "uint16x2"))
            for j, column in enumerate(columns):
                before = held.vload([at[r, j]], f"float32x{LANES}")
                spread = tirx.Broadcast(word, LANES)
                found = tirx.call_extern(f"float32x{LANES}", _ADD_PRODUCTS, before, spread, column)
                T.buffer_store(held, found, [lanes_at(at[r, j], LANES)])
    for r, j in vectors:
        value = held.vload([at[r, j]], f"float32x{LANES}")
        T.buffer_store(sums, value, [first + r, lanes_at(LANES * j, LANES)])
