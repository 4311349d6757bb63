"""Instructions that multiply tiles of bfloat16 or int8 values.

AMX multiplies tiles of both types. On processors without AMX, tiles of bfloat16 are multiplied with
vector dot products (AVX512-BF16). Ordinary arithmetic is available as well, to test the loops
around tiles on any processor.

A tile has up to 16 rows of 64 bytes. A row consists of 32-bit words, each of which holds two
bfloat16 or four int8 values. In `C += A B`, rows of A are taken as they are. A word of B contains
two or four consecutive values of a column. See Intel's manual of AMX: TDPBF16PS, TDPBSSD and
TDPBUSD.

The vector dot product `vdpbf16ps` adds two products of bfloat16 values to each lane of a float32
vector. Its operands have LLVM's type bfloat16, which TVM does not use. We therefore give LLVM a
function in LLVM's own language, which takes vectors of int32 and is inlined into each call. The
instruction treats subnormal operands as zero, and rounds subnormal results to zero. See Intel's
manual: VDPBF16PS.
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
"""Number of rows per tile, and number of 32-bit words per row."""
TILES = 8
"""Number of tile registers per core."""
WORD = 4
"""Size in bytes of a word, the unit of a tile's rows."""
_ROW_BYTES = TILE * WORD
CONVERTED = (8, 16)
"""Vector lengths, in float32 values, that one instruction can round to bfloat16."""


@dataclass(frozen=True)
class TileNumbers:
    """Element type of tiles, bfloat16 or int8, and its properties.

    Attributes:
        each: number of values per 32-bit word: 2 for bfloat16, 4 for int8.
        kind: TensorIR element type in which a value is stored: `uint16`, `int8` or `uint8`.
        sums: element type of the accumulators.
        instruction: LLVM's name of the AMX instruction that multiplies tiles.
    """

    each: int
    kind: str
    sums: str
    instruction: str

    @property
    def in_row(self) -> int:
        """Number of values per row of a tile."""
        return TILE * self.each

    def whole_words(self, count: int) -> int:
        """Round a number of values up to a multiple of the values per 32-bit word.

        Args:
            count: number of values.
        """
        return -(-count // self.each) * self.each

    def to_tile_form(self, number: Expression, lanes: int, spec: CpuSpec) -> Expression:
        """Convert a value of the data to the element type of tiles.

        A float32 is rounded to bfloat16. An int8 stays as it is.

        Args:
            number: the value.
            lanes: number of lanes of the vectorised loop around the conversion.
            spec: the processor.
        """
        return bfloat16_of(number, lanes, spec) if self is BFLOAT16 else number

    def border(self, zero: Expression) -> Expression:
        """Return the value of a pixel in the padding, in the element type of tiles.

        The value is 0 for bfloat16, and the zero point for int8.

        Args:
            zero: zero point of the data, an int32 expression.
        """
        return tirx.const(0, self.kind) if self is BFLOAT16 else tirx.Cast(self.kind, zero)

    def pack_words(self, weights: Array) -> NDArray[np.int32]:
        """Pack weights in 32-bit words, each of which holds consecutive values of a column.

        The first value is in the lowest bits.

        Args:
            weights: shape (..., depth, columns). The depth must be a multiple of `each`, the values
                per word.

        Returns:
            Int32 array of shape (..., depth / each, columns).
        """
        bits = 32 // self.each
        converted = rounded_array(weights) if self is BFLOAT16 else weights.astype(np.int8)
        rows = converted.view(f"u{bits // 8}").astype(np.uint32)
        words = np.zeros_like(rows[..., 0 :: self.each, :])
        for number in range(self.each):
            words |= rows[..., number :: self.each, :] << np.uint32(bits * number)
        return words.view(np.int32)


BFLOAT16 = TileNumbers(2, "uint16", "float32", "tdpbf16ps")
SIGNED = TileNumbers(4, "int8", "int32", "tdpbssd")
UNSIGNED = TileNumbers(4, "uint8", "int32", "tdpbusd")


def numbers_of(w: Workload) -> TileNumbers:
    """Return the element type of tiles for a workload's data.

    Args:
        w: the workload.
    """
    if w.dtype == "bfloat16":
        return BFLOAT16
    return SIGNED if w.data_dtype == "int8" else UNSIGNED


def bfloat16_of(number: Expression, lanes: int, spec: CpuSpec) -> Expression:
    """Round a float32 expression to the nearest bfloat16, with ties to even.

    The instruction VCVTNEPS2BF16, which is used if available, treats subnormal numbers as zero.

    Args:
        number: the expression.
        lanes: number of lanes of the vectorised loop around the conversion.
        spec: the processor.

    Returns:
        The bits of the bfloat16, as uint16.
    """
    if spec.bfloat16 in (AMX, DOTS_BFLOAT16) and lanes in CONVERTED:
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * lanes}"
        # By way of int16, since the instruction's result has LLVM's type bfloat16.
        converted = tirx.call_llvm_pure_intrin("uint16", name, number)
        return tirx.reinterpret("uint16", tirx.reinterpret("int16", converted))
    bits = tirx.reinterpret("uint32", number)
    odd = tirx.bitwise_and(tirx.shift_right(bits, _bits(16)), _bits(1))
    rounded = tirx.shift_right(bits + odd + _bits(BELOW_HALF), _bits(16))
    nan = tirx.bitwise_and(bits, _bits(0x7FFFFFFF)) > _bits(0x7F800000)
    return tirx.Cast("uint16", tirx.Select(nan, _bits(NAN), rounded))


def pair_bfloat16(first: Expression, second: Expression, lanes: int, spec: CpuSpec) -> Expression:
    """Round two float32 expressions to bfloat16 and combine them in an int32.

    Args:
        first: the expression for the lower half.
        second: the expression for the upper half.
        lanes: number of lanes of the vectorised loop around the conversion.
        spec: the processor.
    """
    lower, upper = (
        tirx.Cast("uint32", bfloat16_of(number, lanes, spec)) for number in (first, second)
    )
    return tirx.reinterpret("int32", tirx.bitwise_or(lower, tirx.shift_left(upper, _bits(16))))


class AmxTiles:
    """Builder of the AMX instructions that compute one block of a matrix product.

    The block's accumulators are held in `down` × `across` tile registers. The methods add
    statements to the TensorIR function that is being built. Call `begin` once and `clear` per
    block, then `step` once per step of the depth, then `sums` or `keep`, and `end` after the last
    block. A step is the part of the depth, the dimension over which products are summed, that one
    tile holds.

    Args:
        numbers: element type of the tiles.
        down: number of accumulator tiles from top to bottom of a block.
        across: number of accumulator tiles from left to right of a block.
        rows: rows per accumulator tile.
        words: 32-bit words along the depth per step.
    """

    def __init__(self, numbers: TileNumbers, down: int, across: int, rows: int, words: int) -> None:
        self.numbers = numbers
        self.down, self.across, self.rows, self.words = down, across, rows, words

    def begin(self) -> None:
        """Add statements that configure the tile registers and allocate memory for the results.

        The operating system must have permitted AMX before the code runs.
        """
        sums = self.down * self.across
        rows = [self.rows] * (sums + self.down) + [self.words] * (TILES - sums - self.down)
        row_bytes = [_ROW_BYTES] * sums + [self.words * WORD] * self.down
        row_bytes += [_ROW_BYTES] * (TILES - len(row_bytes))
        # The 64 bytes that LDTILECFG reads: palette, start row, 14 reserved bytes, then the bytes
        # per row (16 bits) and the rows (8 bits) of 16 tiles, of which palette 1 has the first
        # eight.
        layout = bytes([1, 0, *[0] * 14])
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
        """Add an instruction that releases the tile registers."""
        _call("tilerelease")

    def clear(self) -> None:
        """Add instructions that set all accumulators to 0."""
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
        """Add instructions that accumulate the products of one step of the depth.

        Args:
            data: buffer of the data.
            places: for each tile from top to bottom, the index in `data` of its first row.
            row: distance in `data` from one row of a tile to the next, in values.
            weights: buffer of packed weights, int32.
            at: index in `weights` of the first tile; the other tiles follow it.
        """
        first = self.down * self.across
        second = first + self.down
        weight_registers, stride = TILES - second, _stride(WORD // self.numbers.each * row)
        for i, place in enumerate(places):
            pointer = data.access_ptr("r", offset=place)
            _call("tileloadd64", _tile(first + i), pointer, stride)
        for begin in range(
            0, self.across, weight_registers
        ):  # loading before multiplying is a fifth faster than alternating
            loaded = range(begin, min(begin + weight_registers, self.across))
            for j in loaded:
                pointer = weights.access_ptr("r", offset=at + j * self.words * TILE)
                _call("tileloadd64", _tile(second + j - begin), pointer, _stride(_ROW_BYTES))
            for i in range(self.down):
                for j in loaded:
                    _call(
                        self.numbers.instruction, _tile(i * self.across + j), _tile(first + i),
                        _tile(second + j - begin),
                    )  # fmt: skip

    def sums(self) -> TirBuffer:
        """Store all accumulators in a buffer of shape (rows, columns), and return the buffer."""
        self.keep(self._scratch, 0)
        return self._scratch

    def keep(self, buffer: TirBuffer, at: Expression) -> None:
        """Store all accumulators in a buffer, row by row, so that `resume` can load them later.

        Args:
            buffer: the buffer to write.
            at: index in the buffer at which the first accumulator is stored.
        """
        self._move("tilestored64", buffer, "w", at)

    def resume(self, buffer: TirBuffer, at: Expression) -> None:
        """Load all accumulators that `keep` stored.

        Args:
            buffer: the buffer to read.
            at: index in the buffer of the first accumulator.
        """
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
    """Base class of the classes that replace `AmxTiles` on processors without AMX.

    Accumulators are kept in memory instead of tile registers. The methods have the arguments of
    `AmxTiles`.
    """

    def __init__(self, numbers: TileNumbers, down: int, across: int, rows: int, words: int) -> None:
        self.numbers = numbers
        self.down, self.across, self.rows, self.words = down, across, rows, words

    def begin(self) -> None:
        """Allocate the accumulators."""
        shape = self.down * self.rows, self.across * TILE
        self._sums = T.alloc_buffer(shape, self.numbers.sums, scope="local")

    def end(self) -> None:
        """Do nothing, since no registers are reserved."""

    def clear(self) -> None:
        """Set all accumulators to 0."""
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, self.across * TILE) as c:
            T.buffer_store(self._sums, tirx.const(0, self.numbers.sums), [r, c])

    def keep(self, buffer: TirBuffer, at: Expression) -> None:
        """Copy all accumulators to a buffer: see `AmxTiles.keep`."""
        width = self.across * TILE
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, width) as c:
            T.buffer_store(buffer, self._sums[r, c], [at + r * width + c])

    def resume(self, buffer: TirBuffer, at: Expression) -> None:
        """Copy all accumulators from a buffer: see `AmxTiles.resume`."""
        width = self.across * TILE
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, width) as c:
            T.buffer_store(self._sums, buffer[at + r * width + c], [r, c])

    def sums(self) -> TirBuffer:
        """Return all accumulators as a buffer of shape (rows, columns)."""
        return self._sums


class DotTiles(_StoredSums):
    """Replacement for `AmxTiles` that multiplies bfloat16 with vector dot products, `vdpbf16ps`.

    Rows are processed in groups. The accumulators of a group fit the vector registers.
    """

    def begin(self) -> None:
        """Allocate accumulators in memory, and vector registers that hold a group of them."""
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
        """Add the products of one step of the depth to the accumulators: see `AmxTiles.step`."""
        starts = [place + r * row for place in places for r in range(self.rows)]
        tiles = [at + j * self.words * TILE for j in range(self.across)]
        rows_each = even_parts(len(starts), SUM_REGISTERS // self.across)
        for first in range(0, len(starts), rows_each):
            chosen_rows = data, starts[first : first + rows_each]
            add_words(self._held, self._sums, first, chosen_rows, (weights, tiles), self.words)


class PlainTiles(_StoredSums):
    """Replacement for `AmxTiles` in ordinary arithmetic. It is slow, but runs on any processor."""

    def step(
        self,
        data: TirBuffer,
        places: list[Expression],
        row: int,
        weights: TirBuffer,
        at: Expression,
    ) -> None:
        """Add the products of one step of the depth to the accumulators: see `AmxTiles.step`."""
        for i, place in enumerate(places):
            for j in range(self.across):
                with T.serial(0, self.rows) as r, T.serial(0, self.words) as k:
                    start = place + r * row + k * self.numbers.each
                    with T.vectorized(0, TILE) as c:
                        word = weights[at + (j * self.words + k) * TILE + c]
                        at_sum = [i * self.rows + r, j * TILE + c]
                        total = self._sums[tuple(at_sum)]
                        for number in range(self.numbers.each):
                            total += self._data_value(data[start + number]) * self._weight_value(
                                word, number
                            )
                        T.buffer_store(self._sums, total, at_sum)

    def _data_value(self, number: Expression) -> Expression:
        if self.numbers is BFLOAT16:
            return _float(tirx.shift_left(tirx.Cast("uint32", number), _bits(16)))
        return tirx.Cast("int32", number)

    def _weight_value(self, word: Expression, place: int) -> Expression:
        """Extract one weight from a packed 32-bit word.

        Args:
            word: the word, which holds two bfloat16 or four int8 weights.
            place: index of the weight in the word, counted from the lowest bits.

        Returns:
            The weight as float32 or int32.
        """
        if self.numbers is BFLOAT16:
            bits = tirx.reinterpret("uint32", word)
            high = tirx.bitwise_and(bits, _bits(0xFFFF0000))
            return _float(high if place else tirx.shift_left(bits, _bits(16)))
        first = tirx.shift_left(word, tirx.const(24 - 8 * place, "int32"))
        return tirx.shift_right(first, tirx.const(24, "int32"))


TileUnit = AmxTiles | DotTiles | PlainTiles
"""Builder of the instructions that multiply tiles: AMX instructions, bfloat16 dot products, or
ordinary arithmetic."""


def tile_unit(
    numbers: TileNumbers, spec: CpuSpec
) -> type[AmxTiles] | type[DotTiles] | type[PlainTiles]:
    """Return the class that builds the instructions to multiply tiles on a processor.

    Args:
        numbers: element type of the tiles.
        spec: the processor.

    Returns:
        `AmxTiles` if the processor uses AMX for this type, `DotTiles` if it uses vector dot
        products, and otherwise `PlainTiles`.
    """
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
"""Number of float32 values per vector."""
SUM_REGISTERS = 24
"""Number of vector registers that hold accumulators, out of 32. The other registers hold one word
of each column of weights and one word of the data."""
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
"""LLVM IR of a function with three vectors: 16 float32 accumulators, 16 words of data and 16 words
of weights. A word contains two bfloat16 values. The function adds the products of the values to the
accumulators."""


def sum_registers() -> TirBuffer:
    """Allocate `SUM_REGISTERS` vectors of accumulators, which LLVM keeps in registers."""
    return T.alloc_buffer((SUM_REGISTERS * LANES,), "float32", scope="local")


def add_words(
    held: TirBuffer, sums: TirBuffer, first: int, data: tuple[TirBuffer, list[Expression]],
    weights: tuple[TirBuffer, list[Expression]],
    words: int,
) -> None:  # fmt: skip
    """Multiply a few rows of the data by tiles of weights, and accumulate the products.

    The generated code loads accumulators from `sums` to registers, adds the products, and stores
    the accumulators again.

    Args:
        held: registers from `sum_registers`, which are overwritten. The number of rows times the
            number of tiles must not exceed `SUM_REGISTERS`.
        sums: accumulators, a float32 buffer of shape (rows, 16 × tiles), which is updated.
        first: first row of `sums` to update.
        data: buffer of bfloat16 values as uint16, and the index in it at which each row begins.
        weights: buffer of int32 words, and the index in it at which each tile of 16 columns begins.
        words: number of words (pairs of bfloat16 values) along the depth, over which products are
            summed.
    """
    (values, starts), (packed, tiles) = data, weights
    vectors = [(r, j) for r in range(len(starts)) for j in range(len(tiles))]
    at = {vector: LANES * number for number, vector in enumerate(vectors)}
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
                updated = tirx.call_extern(
                    f"float32x{LANES}", _ADD_PRODUCTS, before, spread, column
                )
                T.buffer_store(held, updated, [lanes_at(at[r, j], LANES)])
    for r, j in vectors:
        value = held.vload([at[r, j]], f"float32x{LANES}")
        T.buffer_store(sums, value, [first + r, lanes_at(LANES * j, LANES)])
