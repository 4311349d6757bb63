"""Tiling rules of the vendor's library (gemmini.h of May 2023), reimplemented.

`tiled_matmul_auto`: two tiles share each local memory, because the library's loops alternate
between halves. The initial tile has equal numbers of row and column blocks, as many as half the
accumulator holds, and is as deep as half the scratchpad allows. Then columns, rows and depth grow
in turn by one block each, until the halves are full or the matrix is covered.

`tiled_conv_auto`: the initial tile is the whole layer. Its longest side shrinks until both halves
hold the tile; columns of up to 16 pixels shrink last. Then the columns grow as far as possible, and
after them all sides in turn.

The vendor's library runs tiles of convolutions on a state machine that is not simulated here. We
use our nest form instead, which rounds columns of sums up to blocks and gives data and weights one
half of the scratchpad each. A tile that does not fit this layout shrinks again by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.lowering.schedule_space import (
    LOOP,
    PIXELS_OUTSIDE,
    SPREAD,
    TileSchedule,
)
from tilewright.targets.gemmini.lowering.tile_fit import LoweringFailure, check_tiles
from tilewright.targets.gemmini.spec import DIM, GemminiMachine

MATMUL_RULE, CONVOLUTION_RULE = "tiled_matmul_auto", "tiled_conv_auto"
Sizes = tuple[int, ...]
SIDES = 7
ROWS, COLUMNS, OUT_CHANNELS, IN_CHANNELS = 1, 2, 3, 6
"""Indices of four of the seven sizes of a convolution's tile. The sizes are ordered as images,
rows, columns, output channels, kernel rows, kernel columns, input channels."""


def vendor_schedule(g: BlockGeometry, m: GemminiMachine) -> tuple[str, TileSchedule]:
    """Return the schedule that the rule of the vendor's library chooses for a workload.

    If no tile of the rule fits, the smallest tile with single buffers is returned. If that tile
    does not fit either, no schedule of the workload compiles.

    Args:
        g: geometry of the workload.
        m: the machine.

    Returns:
        Name of the rule, and the schedule.
    """
    if not g.flat:
        return CONVOLUTION_RULE, _in_nest(vendor_convolution_tile(g, m), g, m)
    i, j, k = vendor_tile(blocks(g.out_width), blocks(g.out_channels), blocks(g.in_channels), m)
    width = min(i * DIM, g.out_width)
    if g.has_loops:
        return MATMUL_RULE, TileSchedule(LOOP, PIXELS_OUTSIDE, 1, width, j, k, 2, 2, 1, 0)
    return MATMUL_RULE, _in_nest((1, 1, width, j * DIM, 1, 1, k * DIM), g, m)


def vendor_tile(i: int, j: int, k: int, m: GemminiMachine) -> Sizes:
    """Return the tile that the vendor's library chooses for a matrix product.

    The matrices have i × k and k × j blocks.

    Args:
        i: number of blocks of rows.
        j: number of blocks of columns.
        k: number of blocks along the reduction.
        m: the machine.

    Returns:
        Size of the tile in blocks: (rows, columns, depth).
    """
    half_scratchpad, half_accumulator = (
        rows // 2 // DIM for rows in (m.scratchpad_rows, m.accumulator_rows)
    )
    side = math.isqrt(half_accumulator)
    first = (min(i, side), min(j, side), min(k, half_scratchpad // 2 // side))

    def fits(tile: Sizes) -> bool:
        rows, columns, depth = tile
        return (rows + columns) * depth <= half_scratchpad and rows * columns <= half_accumulator

    return _grow_tile(first, (i, j, k), (1, 0, 2), fits)


def vendor_convolution_tile(g: BlockGeometry, m: GemminiMachine) -> Sizes:
    """Return the tile that the vendor's library chooses for a convolution.

    The library only supports ungrouped and depthwise convolutions, and computes depthwise
    convolutions one channel at a time. For other convolutions, the tile is computed as if each of
    the `g.groups` groups were an ungrouped convolution.

    Args:
        g: geometry of the workload.
        m: the machine.

    Returns:
        The sides of the tile: images, rows, columns, output channels, kernel rows, kernel columns
        and input channels.
    """
    is_depthwise = g.in_channels == g.out_channels == g.merged
    channels = (1, 1) if is_depthwise else (g.out_channels, g.in_channels)
    out, inputs = (
        min(size, total)
        for size, total in zip(channels, (g.all_out_channels, g.all_in_channels), strict=True)
    )
    most = g.images, g.out_height, g.out_width, out, g.kernel_h, g.kernel_w, inputs
    halves = (g.stride_h, g.stride_w, g.kernel_h, g.kernel_w) == (2, 2, 1, 1) and not (
        g.pad_top or g.pad_left or g.height % 2 or g.width % 2
    )

    def fits(tile: Sizes) -> bool:
        images, rows, columns, out, kernel_h, kernel_w, inputs = tile
        if g.pool is not None:  # the library leaves out the incomplete part at the border
            rows = rows * g.pool.stride_h + g.pool.kernel_h - 1
            columns = columns * g.pool.stride_w + g.pool.kernel_w - 1
        height = rows * g.stride_h + (kernel_h - 1) * g.dilation_h
        width = columns * g.stride_w + (kernel_w - 1) * g.dilation_w
        data = blocks(inputs) * images * (height >> halves) * (width >> halves)
        weights = blocks(out) * kernel_h * kernel_w * inputs
        sums = blocks(out) * images * rows * columns
        return data + weights <= m.scratchpad_rows // 2 and sums <= m.accumulator_rows // 2

    return _largest(most, most, fits)


def _in_nest(tile: Sizes, g: BlockGeometry, m: GemminiMachine) -> TileSchedule:
    """Convert the tile of a convolution to a schedule in the nest form.

    The nest form computes one image at a time and does not tile the kernel. All buffers are double.
    If the tile does not fit, it shrinks, and then its sides grow again as far as possible. If not
    even the smallest tile fits, a small tile with single buffers is returned without checking that
    it fits. Workloads that differ only in the factor of a residual get the same schedule.

    Args:
        tile: the sides of the tile, from `vendor_convolution_tile`.
        g: geometry of the workload.
        m: the machine.
    """
    g = replace(g, epilogue=replace(g.epilogue, residual=min(1, g.epilogue.residual)))

    def schedule(sizes: Sizes, buffers: int = 2) -> TileSchedule:
        out, inputs = blocks(sizes[OUT_CHANNELS]), blocks(sizes[IN_CHANNELS])
        rows, columns = sizes[ROWS], sizes[COLUMNS]
        return TileSchedule(
            SPREAD, PIXELS_OUTSIDE, rows, columns, out, inputs, buffers, buffers, 1, 0
        )

    def fits(sizes: Sizes) -> bool:
        return _has_room(g, m, schedule(sizes))

    chosen = schedule(_largest(tile, tile, fits))
    if _has_room(g, m, chosen):
        return chosen
    return schedule((1, 1, min(DIM, g.out_width), 1, 1, 1, 1), buffers=1)


def _has_room(g: BlockGeometry, m: GemminiMachine, schedule: TileSchedule) -> bool:
    try:
        check_tiles(g, m, schedule)
    except LoweringFailure:
        return False
    return True


def _largest(tile: Sizes, most: Sizes, fits: Callable[[Sizes], bool]) -> Sizes:
    """Shrink a tile until it fits, then grow its sides again as far as possible.

    The longest side is shortened until the tile fits. Then the columns grow as far as possible, and
    after that all sides in turn.

    Args:
        tile: the sides of the initial tile.
        most: maximum of each side.
        fits: function that returns whether a tile fits.
    """
    sides = list(tile)
    while not fits(tuple(sides)) and max(sides) > 1:
        keeps_columns = sides[COLUMNS] <= DIM and sides[ROWS] > 1
        free = [side for side in range(SIDES) if not (side == COLUMNS and keeps_columns)]
        longest = max(free, key=lambda side: (sides[side], -side))
        if longest in (OUT_CHANNELS, IN_CHANNELS):
            sides[longest] = max(1, (blocks(sides[longest]) - 1) * DIM)
        else:
            sides[longest] -= 1
    return _grow_tile(_grow_tile(tuple(sides), most, (COLUMNS,), fits), most, range(SIDES), fits)


def _grow_tile(
    tile: Sizes, most: Sizes, order: Sequence[int], fits: Callable[[Sizes], bool]
) -> Sizes:
    """Lengthen the sides of a tile in turn for as long as the tile fits.

    Args:
        tile: the sides of the initial tile.
        most: maximum of each side.
        order: indices of the sides to lengthen, in the order of the turns.
        fits: function that returns whether a tile fits.
    """
    grown = True
    while grown:
        grown = False
        for side in order:
            larger = tuple(size + (place == side) for place, size in enumerate(tile))
            if larger[side] <= most[side] and fits(larger):
                tile, grown = larger, True
    return tile
