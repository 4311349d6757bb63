"""Chooses tiles by the rules of the vendor's library (gemmini.h of mid 2023), reimplemented.

`tiled_matmul_auto`: two tiles share each memory, as its loops alternate between halves. Tiles of
equal numbers of rows and columns come first: as many blocks as half the accumulator holds, as deep
as half the scratchpad allows. Then columns, rows and depth grow by turns, a block at a time. They
end where the halves hold no more or the matrix has no more blocks.

`tiled_conv_auto`: the whole layer is the first tile. Its longest side shrinks until both halves
hold the tile, columns of up to 16 pixels last; then whatever still can, grows. The library runs
such tiles on a state machine that is not simulated here. In its place stands our nest, with the
rooms that this has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.targets.gemmini.lowering.failures import LoweringFailure
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks, whole
from tilewright.targets.gemmini.lowering.rooms import check_rooms
from tilewright.targets.gemmini.lowering.schedule import LOOP, PIXELS_OUTSIDE, SPREAD, TileSchedule
from tilewright.targets.gemmini.spec import DIM, GemminiMachine

MATMUL_RULE, CONVOLUTION_RULE = "tiled_matmul_auto", "tiled_conv_auto"
Sizes = tuple[int, ...]


def vendor_schedule(g: BlockGeometry, m: GemminiMachine) -> tuple[str, TileSchedule]:
    """The rule's name, and what it chooses; the smallest tile where none fits."""
    if not g.has_loops:
        return CONVOLUTION_RULE, _convolution(g, m)
    i, j, k = vendor_tile(blocks(g.out_width), blocks(g.out_channels), blocks(g.in_channels), m)
    width = min(i * DIM, g.out_width)
    return MATMUL_RULE, TileSchedule(LOOP, PIXELS_OUTSIDE, 1, width, j, k, 2, 2, 1, 0)


def vendor_tile(i: int, j: int, k: int, m: GemminiMachine) -> Sizes:
    """Blocks of rows, columns and depth a tile, of a product of i × k by k × j blocks."""
    half_scratchpad, half_accumulator = (
        rows // 2 // DIM for rows in (m.scratchpad_rows, m.accumulator_rows)
    )
    side = math.isqrt(half_accumulator)
    first = (min(i, side), min(j, side), min(k, half_scratchpad // 2 // side))

    def fits(tile: Sizes) -> bool:
        rows, columns, depth = tile
        return (rows + columns) * depth <= half_scratchpad and rows * columns <= half_accumulator

    return _grown(first, (i, j, k), (1, 0, 2), fits)


def _convolution(g: BlockGeometry, m: GemminiMachine) -> TileSchedule:
    """Of layers that differ in padding of channels and in a residual's factor, the same."""
    g = replace(g, epilogue=replace(g.epilogue, residual=min(1, g.epilogue.residual)))
    most = g.out_height, g.out_width, whole(g.out_channels), whole(g.in_channels)
    tile = list(most)

    def schedule(sizes: Sequence[int]) -> TileSchedule:
        rows, columns, out, inputs = sizes
        return TileSchedule(
            SPREAD, PIXELS_OUTSIDE, rows, columns, blocks(out), blocks(inputs), 2, 2, 1, 0
        )

    def fits(sizes: Sequence[int]) -> bool:
        try:
            check_rooms(g, m, schedule(sizes))
        except LoweringFailure:
            return False
        return True

    while not fits(tile) and max(tile) > 1:
        keeps_columns = tile[1] <= DIM and tile[0] > 1
        sides = [side for side in range(4) if not (side == 1 and keeps_columns)]
        longest = max(sides, key=lambda side: (tile[side], -side))
        if longest < 2:
            tile[longest] -= 1
        else:
            tile[longest] = max(1, (blocks(tile[longest]) - 1) * DIM)
    return schedule(_grown(_grown(tuple(tile), most, (1,), fits), most, (0, 1, 2, 3), fits))


def _grown(tile: Sizes, most: Sizes, order: Sequence[int], fits: Callable[[Sizes], bool]) -> Sizes:
    """A tile whose sides grow by turns, in this order, as long as it fits."""
    grown = True
    while grown:
        grown = False
        for side in order:
            larger = tuple(size + (place == side) for place, size in enumerate(tile))
            if larger[side] <= most[side] and fits(larger):
                tile, grown = larger, True
    return tile
