"""Multiplies tiles of bfloat16, by AMX or, for trying the loops around them anywhere, by float32.

A tile has up to 16 rows of 64 bytes. `C += A B` takes A as rows of pairs of numbers, and B as pairs
of rows, a pair beside the other. See Intel's manual of AMX, TDPBF16PS. Sums are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.lazy_module import lazy_module

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

TILE = 16
"""Rows of a tile, and float32 or pairs of bfloat16 in one of its rows."""
PAIR = 2
NUMBERS = TILE * PAIR
"""bfloat16 in a row of a tile."""
TILES = 8
"""Tile registers of a core."""
_ROW_BYTES = 64
_HALF, _NAN = 0x7FFF, 0x7FC0


def rounded(number: Any) -> Any:
    """A float32 expression as the uint16 of the nearest bfloat16, halves to even."""
    bits = tirx.reinterpret("uint32", number)
    odd = tirx.bitwise_and(tirx.shift_right(bits, _bits(16)), _bits(1))
    near = tirx.shift_right(bits + odd + _bits(_HALF), _bits(16))
    nan = tirx.bitwise_and(bits, _bits(0x7FFFFFFF)) > _bits(0x7F800000)
    return tirx.Cast("uint16", tirx.Select(nan, _bits(_NAN), near))


def paired(first: Any, second: Any) -> Any:
    """Two float32 expressions as an int32 of two bfloat16, the first in the lower half."""
    upper = tirx.shift_left(tirx.Cast("uint32", rounded(second)), _bits(16))
    pair = tirx.bitwise_or(tirx.Cast("uint32", rounded(first)), upper)
    return tirx.reinterpret("int32", pair)


def rounded_array(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    """What `rounded` gives, of an array of any shape."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    near = (bits + ((bits >> 16) & 1) + np.uint32(_HALF)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, np.uint32(_NAN), near).astype(np.uint16)


def widened_array(numbers: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 as float32, in the same shape."""
    return (numbers.astype(np.uint32) << 16).view(np.float32)


def paired_array(weights: NDArray[Any]) -> NDArray[np.int32]:
    """(..., 2 × pairs, columns) → (..., pairs, columns): two rows in the bits of a number."""
    halves = rounded_array(weights).astype(np.uint32)
    pairs = np.ascontiguousarray(halves[..., 0::2, :] | halves[..., 1::2, :] << 16)
    return pairs.view(np.int32)


class AmxTiles:
    """Writes instructions of AMX: `down` × `across` tiles of sums, of `rows` rows; `pairs` of a
    step. What it needs of a task is set up by `begin` and given back by `end`."""

    def __init__(self, down: int, across: int, rows: int, pairs: int) -> None:
        self.down, self.across, self.rows, self.pairs = down, across, rows, pairs

    def begin(self) -> None:
        """Says which sizes the tiles have. The operating system must have allowed AMX before."""
        sums = self.down * self.across
        rows = [self.rows] * (sums + self.down) + [self.pairs] * (TILES - sums - self.down)
        row_bytes = [_ROW_BYTES] * sums + [self.pairs * 4] * self.down
        row_bytes += [_ROW_BYTES] * (TILES - len(row_bytes))
        layout = bytes([1, 0, *[0] * 14])  # palette 1
        layout += b"".join(size.to_bytes(2, "little") for size in [*row_bytes, *[0] * 8])
        layout += bytes([*rows, *[0] * 8])
        words = T.alloc_buffer((len(layout) // 8,), "uint64", scope="local")
        for at in range(0, len(layout), 8):
            word = int.from_bytes(layout[at : at + 8], "little")
            T.buffer_store(words, tirx.const(word, "uint64"), [at // 8])
        _call("ldtilecfg", words.access_ptr("r"))
        self._scratch = T.alloc_buffer(
            (self.down * self.rows, self.across * TILE), "float32", scope="local"
        )

    def end(self) -> None:
        """Gives the tiles back."""
        _call("tilerelease")

    def clear(self) -> None:
        """All sums are 0."""
        for tile in range(self.down * self.across):
            _call("tilezero", _tile(tile))

    def step(self, data: Any, places: list[Any], row: int, weights: Any, at: Any) -> None:
        """Adds products: of a tile of `data` (uint16) from each of `places` on, rows `row` numbers
        apart, by tiles of `weights` (int32) behind one another from `at` on."""
        first = self.down * self.across
        second = first + self.down
        held = TILES - second
        for i, place in enumerate(places):
            pointer = data.access_ptr("r", offset=place)
            _call("tileloadd64", _tile(first + i), pointer, _stride(2 * row))
        for begin in range(0, self.across, held):  # all loads first: a fifth faster than in between
            some = range(begin, min(begin + held, self.across))
            for j in some:
                pointer = weights.access_ptr("r", offset=at + j * self.pairs * TILE)
                _call("tileloadd64", _tile(second + j - begin), pointer, _stride(_ROW_BYTES))
            for i in range(self.down):
                for j in some:
                    _call(
                        "tdpbf16ps", _tile(i * self.across + j), _tile(first + i),
                        _tile(second + j - begin),
                    )  # fmt: skip

    def sums(self) -> Any:
        """A buffer (rows, columns) of all sums."""
        width = self.across * TILE
        for i in range(self.down):
            for j in range(self.across):
                place = i * self.rows * width + j * TILE
                pointer = self._scratch.access_ptr("w", offset=place)
                _call("tilestored64", _tile(i * self.across + j), pointer, _stride(4 * width))
        return self._scratch


class PlainTiles:
    """Does what `AmxTiles` does, in loops of float32: slow, for any processor."""

    def __init__(self, down: int, across: int, rows: int, pairs: int) -> None:
        self.down, self.across, self.rows, self.pairs = down, across, rows, pairs

    def begin(self) -> None:
        """Makes room for the sums."""
        shape = self.down * self.rows, self.across * TILE
        self._sums = T.alloc_buffer(shape, "float32", scope="local")

    def end(self) -> None:
        """Nothing is held."""

    def clear(self) -> None:
        """All sums are 0."""
        with T.serial(0, self.down * self.rows) as r, T.vectorized(0, self.across * TILE) as c:
            T.buffer_store(self._sums, tirx.const(0, "float32"), [r, c])

    def step(self, data: Any, places: list[Any], row: int, weights: Any, at: Any) -> None:
        """See `AmxTiles.step`."""
        for i, place in enumerate(places):
            for j in range(self.across):
                with T.serial(0, self.rows) as r, T.serial(0, self.pairs) as k:
                    start = place + r * row + k * PAIR
                    with T.vectorized(0, TILE) as c:
                        pair = weights[at + (j * self.pairs + k) * TILE + c]
                        pair = tirx.reinterpret("uint32", pair)
                        low = _float(tirx.shift_left(pair, _bits(16)))
                        high = _float(tirx.bitwise_and(pair, _bits(0xFFFF0000)))
                        found = self._sums[i * self.rows + r, j * TILE + c]
                        found += _widened(data[start]) * low + _widened(data[start + 1]) * high
                        T.buffer_store(self._sums, found, [i * self.rows + r, j * TILE + c])

    def sums(self) -> Any:
        """A buffer (rows, columns) of all sums."""
        return self._sums


def tile_unit(unit: str) -> type[AmxTiles] | type[PlainTiles]:
    """By the name in `CpuSpec.bfloat16`."""
    return AmxTiles if unit == "amx-bf16" else PlainTiles


def _call(name: str, *arguments: Any) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _tile(number: int) -> Any:
    return tirx.const(number, "int8")


def _stride(size: int) -> Any:
    return tirx.const(size, "int64")


def _bits(value: int) -> Any:
    return tirx.const(value, "uint32")


def _float(bits: Any) -> Any:
    return tirx.reinterpret("float32", bits)


def _widened(number: Any) -> Any:
    return _float(tirx.shift_left(tirx.Cast("uint32", number), _bits(16)))
