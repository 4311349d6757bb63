"""Tiles of a workload's output, and the stages in which each tile is computed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.lowering.epilogue import sums_under
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.lowering.schedule_space import PIXELS_OUTSIDE, TileSchedule
from tilewright.targets.gemmini.spec import DIM


class Tile(NamedTuple):
    """A part of the output of a workload, and the convolution results that it depends on.

    The two differ only if a max-pool is fused with the convolution.

    Attributes:
        group: index of the channel group.
        image: index of the image.
        y: first row of the convolution results.
        x: first column of the convolution results.
        height: number of rows of the convolution results.
        width: number of columns of the convolution results.
        n: index of the first block of output channels in the group.
        n_blocks: number of blocks of output channels.
        out_y: first row of the output. Without a pool, `out_y`, `out_x`, `out_height` and
            `out_width` equal `y`, `x`, `height` and `width`.
        out_x: first column of the output.
        out_height: number of rows of the output.
        out_width: number of columns of the output.
    """

    group: int
    image: int
    y: int
    x: int
    height: int
    width: int
    n: int
    n_blocks: int
    out_y: int
    out_x: int
    out_height: int
    out_width: int


class TileStage(NamedTuple):
    """A part of a tile's multiplications: some of the input channels, or the residual.

    Attributes:
        tile: the tile.
        k: index of the first block of input channels.
        k_blocks: number of blocks of input channels.
        is_first: whether this is the first stage of the tile.
        is_last: whether this is the last stage of the tile.
        is_residual: whether the stage multiplies the residual by identity matrices.
    """

    tile: Tile
    k: int
    k_blocks: int
    is_first: bool
    is_last: bool
    is_residual: bool = False


def tiles(g: BlockGeometry, s: TileSchedule) -> Iterator[Tile]:
    """Yield the tiles of a workload in the order of the schedule.

    Args:
        g: geometry of the workload.
        s: the schedule.
    """
    n_blocks = blocks(g.out_channels)
    pixels = list(
        product(range(g.images), range(0, g.out_height, s.tile_h), range(0, g.out_width, s.tile_w))
    )
    channels = range(0, n_blocks, s.tile_n)
    for group in range(g.groups):
        if s.order == PIXELS_OUTSIDE:
            places = [(place, n) for place in pixels for n in channels]
        else:
            places = [(place, n) for n in channels for place in pixels]
        out_blocks = blocks(g.out_channels_of(group))
        for (image, y, x), n in places:
            if n < out_blocks:
                height, width = min(s.tile_h, g.out_height - y), min(s.tile_w, g.out_width - x)
                rows, columns = _sums(g, y, height, x, width)
                yield Tile(
                    group, image, rows.start, columns.start, len(rows), len(columns), n,
                    min(s.tile_n, out_blocks - n), y, x, height, width,
                )  # fmt: skip


def _sums(g: BlockGeometry, y: int, height: int, x: int, width: int) -> tuple[range, range]:
    """Return the rows and columns of convolution results that an area of the output needs.

    With a pool, more rows and columns are needed than the area has.

    Args:
        g: geometry of the workload.
        y: first output row of the area.
        height: number of output rows.
        x: first output column of the area.
        width: number of output columns.
    """
    p = g.pool
    if p is None:
        return range(y, y + height), range(x, x + width)
    return (
        sums_under(y, height, p.stride_h, p.kernel_h, p.pad_top, g.sums_height),
        sums_under(x, width, p.stride_w, p.kernel_w, p.pad_left, g.sums_width),
    )


def stages(g: BlockGeometry, s: TileSchedule) -> list[TileStage]:
    """Return the stages of all tiles in execution order.

    A stage is the part of a tile's multiplications for a range of input channels. If the workload
    has a residual, the last stage of each tile adds it.

    Args:
        g: geometry of the workload.
        s: the schedule.
    """
    stage_list = []
    for tile in tiles(g, s):
        k_blocks = blocks(g.in_channels_of(tile.group))
        firsts = range(0, k_blocks, s.tile_k)
        residual = bool(g.epilogue.residual)
        for k in firsts:
            last = k == firsts[-1] and not residual
            stage_list.append(TileStage(tile, k, min(s.tile_k, k_blocks - k), k == 0, last))
        if residual:
            stage_list.append(TileStage(tile, 0, tile.n_blocks, False, True, True))
    return stage_list


def pixel_groups(tile: Tile) -> list[tuple[int, int, int]]:
    """Divide the pixels of a tile into groups of up to 16 pixels in one row.

    The array processes one group per multiplication.

    Args:
        tile: the tile.

    Returns:
        Row, first column and number of pixels of each group.
    """
    return [(y, x, count) for y in range(tile.height) for x, count in _runs(tile.width)]


def sum_rows(g: BlockGeometry, tile: Tile) -> NDArray[np.int64]:
    """Return the accumulator rows that hold the convolution results of a tile.

    Each group of up to 16 pixels occupies 16 rows per block of channels. Results that a max-pool
    reads are stored without gaps instead.

    Args:
        g: geometry of the workload.
        tile: the tile.

    Returns:
        First row of each group, relative to the tile's first row, int64 array of shape (groups,
        channel blocks).
    """
    groups, n = np.array(pixel_groups(tile), np.int64), np.arange(tile.n_blocks)
    if g.pool is None:
        return (np.arange(len(groups))[:, None] * tile.n_blocks + n) * DIM
    return (groups[:, 0] * tile.width + groups[:, 1])[:, None] + n * tile.height * tile.width


def _runs(width: int) -> list[tuple[int, int]]:
    """Split a row of pixels into as few groups of at most 16 pixels as possible.

    The last group is a whole block if possible, because the step that also loads the next weights
    takes 16 cycles regardless of its number of rows.

    Args:
        width: number of pixels of the row.

    Returns:
        First column and number of pixels of each group.
    """
    runs = -(-width // DIM)
    if runs == 1:
        return [(0, width)]
    ends = [(width - DIM) * run // (runs - 1) for run in range(runs)] + [width]
    return [(begin, end - begin) for begin, end in pairwise(ends)]


def channels_in(total: int, first_block: int, count: int = 1) -> int:
    """Return the number of channels of a range of channel blocks; the last block may be incomplete.

    Args:
        total: number of channels of all blocks.
        first_block: index of the first block of the range.
        count: number of blocks of the range.
    """
    return min(count * DIM, total - first_block * DIM)
