"""Packs and unpacks values between memory, where they are narrow, and scratchpads, where they are
wide.

Memory is little-endian; values narrower than a byte fill it from the low end. The common widths
have a loop of their own that vectorises.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.vector import LANES, TILE, weight_tile
from tilewright.targets.vta.njit_args import helper


@helper
def unpack_rows(
    dram: NDArray[np.uint8], at: int, bits: int,
    target: NDArray[np.int32], first: int, pitch: int, width: int, rows: int,
) -> None:  # fmt: skip
    """Signed values from byte `at` of `dram` (n,): `rows` rows of `width`, placed from item `first`
    of `target` on, `pitch` items apart."""
    if bits == 8:
        source = dram[at : at + rows * width].view(np.int8)
        if width == pitch:
            wide = target[first : first + rows * width]
            for k in range(rows * width):
                wide[k] = source[k]
            return
        for row in range(rows):
            for k in range(width):
                target[first + row * pitch + k] = source[row * width + k]
    elif bits == 32 and width == pitch:
        words = dram[at : at + 4 * rows * width].view(np.int32)
        wide = target[first : first + rows * width]
        for k in range(rows * width):
            wide[k] = words[k]
    else:
        for row in range(rows):
            for k in range(width):
                target[first + row * pitch + k] = value_at(dram, at, row * width + k, bits)


@helper
def unpack_weights(
    dram: NDArray[np.uint8], at: int, bits: int,
    wgt: NDArray[np.int16], first: int, block_out: int, block_in: int, elements: int,
) -> None:  # fmt: skip
    """Weight elements of shape (block_out, block_in) in memory → tiles of [input pair][output][2]
    from item `first` of `wgt` on."""
    in_tiles, out_tiles = -(-block_in // LANES), -(-block_out // LANES)
    for n in range(elements):
        element = first + n * in_tiles * out_tiles * TILE
        if bits == 8 and block_in % LANES == 0 and block_out % LANES == 0:
            block = at + n * block_out * block_in
            for tile in range(in_tiles * out_tiles):
                corner = tile // in_tiles * LANES * block_in + tile % in_tiles * LANES
                weight_tile(dram, block + corner, block_in, wgt, element + tile * TILE)
            continue
        for co in range(block_out):
            for ci in range(block_in):
                tile = co // LANES * in_tiles + ci // LANES
                pair, lane = ci % LANES >> 1, co % LANES
                number = (n * block_out + co) * block_in + ci
                place = element + tile * TILE + (pair * LANES + lane) * 2 + (ci & 1)
                wgt[place] = value_at(dram, at, number, bits)


@helper
def unpack_uops(
    dram: NDArray[np.uint8], at: int, size: int, uop: NDArray[np.uint64], first: int, count: int
) -> None:
    """`count` micro-ops of `size` bytes from byte `at` → `uop` (depth,) from `first` on."""
    for n in range(count):
        word = np.uint64(0)
        for k in range(size):
            word |= np.uint64(dram[at + n * size + k]) << np.uint64(8 * k)
        uop[first + n] = word


@helper
def pack_rows(
    values: NDArray[np.int32], first: int, pitch: int, width: int, rows: int, bits: int,
    dram: NDArray[np.uint8], at: int,
) -> None:  # fmt: skip
    """The low `bits` bits of `rows` rows of `width` values, densely from byte `at` of `dram` (n,);
    rows begin at item `first`, `pitch` items apart."""
    if bits == 8 and width == pitch:
        narrow, source = dram[at : at + rows * width], values[first : first + rows * width]
        for k in range(rows * width):
            narrow[k] = np.uint8(source[k])
        return
    for row in range(rows):
        for k in range(width):
            value = nb.int64(values[first + row * pitch + k]) & ((1 << bits) - 1)
            position = (row * width + k) * bits
            if bits >= 8:
                for byte in range(bits >> 3):
                    dram[at + (position >> 3) + byte] = np.uint8(value >> (8 * byte))
            else:
                place, shift = at + (position >> 3), position & 7
                kept = nb.int64(dram[place]) & ~(((1 << bits) - 1) << shift)
                dram[place] = np.uint8(kept | value << shift)


@helper
def clear_items(target: NDArray[np.int32], first: int, count: int) -> None:
    """Clear `count` items of a flat array (n,), from `first` on."""
    cleared = target[first : first + count]
    for k in range(count):
        cleared[k] = 0


@helper
def value_at(dram: NDArray[np.uint8], at: int, number: int, bits: int) -> int:
    """The signed value of `bits` bits (a power of two), number `number` after byte `at` of (n,)."""
    position = number * bits
    place = at + (position >> 3)
    raw = nb.int64(dram[place]) >> (position & 7)
    for byte in range(1, bits >> 3):
        raw |= nb.int64(dram[place + byte]) << (8 * byte)
    raw &= (1 << bits) - 1
    return int(raw - ((raw >> (bits - 1)) << bits))
