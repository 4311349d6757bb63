"""Tiles of a workload's output, and the stages in which each tile is summed."""

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
    """Part of the output: `height` × `width` sums of an image from (`y`, `x`) on, and `n_blocks`
    blocks of a group's channels from block `n` on. They make `out_height` × `out_width` pixels of
    the output from (`out_y`, `out_x`) on: the same ones, where nothing is pooled."""

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
    """The products of a tile with some input channels: `k_blocks` blocks from block `k` on; or,
    where `is_residual`, of the residual with identities."""

    tile: Tile
    k: int
    k_blocks: int
    is_first: bool
    is_last: bool
    is_residual: bool = False


def tiles(g: BlockGeometry, s: TileSchedule) -> Iterator[Tile]:
    """Yield the tiles in the schedule's order."""
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
        own = blocks(g.out_channels_of(group))
        for (image, y, x), n in places:
            if n < own:
                height, width = min(s.tile_h, g.out_height - y), min(s.tile_w, g.out_width - x)
                rows, columns = _sums(g, y, height, x, width)
                yield Tile(
                    group, image, rows.start, columns.start, len(rows), len(columns), n,
                    min(s.tile_n, own - n), y, x, height, width,
                )  # fmt: skip


def _sums(g: BlockGeometry, y: int, height: int, x: int, width: int) -> tuple[range, range]:
    """The sums under pixels of the output."""
    p = g.pool
    if p is None:
        return range(y, y + height), range(x, x + width)
    return (
        sums_under(y, height, p.stride_h, p.kernel_h, p.pad_top, g.sums_height),
        sums_under(x, width, p.stride_w, p.kernel_w, p.pad_left, g.sums_width),
    )


def stages(g: BlockGeometry, s: TileSchedule) -> list[TileStage]:
    """Return the stages of all tiles, in order."""
    found = []
    for tile in tiles(g, s):
        k_blocks = blocks(g.in_channels_of(tile.group))
        firsts = range(0, k_blocks, s.tile_k)
        residual = bool(g.epilogue.residual)
        for k in firsts:
            last = k == firsts[-1] and not residual
            found.append(TileStage(tile, k, min(s.tile_k, k_blocks - k), k == 0, last))
        if residual:
            found.append(TileStage(tile, 0, tile.n_blocks, False, True, True))
    return found


def pixel_groups(tile: Tile) -> list[tuple[int, int, int]]:
    """Return the pixels of each product: (row, first column, pixels), up to 16 of a row."""
    return [(y, x, count) for y in range(tile.height) for x, count in _runs(tile.width)]


def sum_rows(g: BlockGeometry, tile: Tile) -> NDArray[np.int64]:
    """Return where a group's sums of a block of channels begin, as rows behind the tile's first,
    shape (groups, blocks). Each has a block of 16 rows; pooled sums lie side by side."""
    groups, n = np.array(pixel_groups(tile), np.int64), np.arange(tile.n_blocks)
    if g.pool is None:
        return (np.arange(len(groups))[:, None] * tile.n_blocks + n) * DIM
    return (groups[:, 0] * tile.width + groups[:, 1])[:, None] + n * tile.height * tile.width


def _runs(width: int) -> list[tuple[int, int]]:
    """A row in as few runs as there can be, by first column and pixels. The last is a whole block:
    the step that also loads the next weights takes 16 cycles, however few rows it has."""
    runs = -(-width // DIM)
    if runs == 1:
        return [(0, width)]
    ends = [(width - DIM) * run // (runs - 1) for run in range(runs)] + [width]
    return [(begin, end - begin) for begin, end in pairwise(ends)]


def channels_in(total: int, first_block: int, count: int = 1) -> int:
    """Return how many of `total` channels `count` blocks have."""
    return min(count * DIM, total - first_block * DIM)
