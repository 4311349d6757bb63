"""Multiplies the operands of a stage: PRELOAD and COMPUTE pairs, in either data flow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    GARBAGE,
    OUTPUT_STATIONARY,
    PRELOAD,
)
from tilewright.targets.gemmini.lowering.chains import chain_ends, summed_inputs
from tilewright.targets.gemmini.lowering.epilogue import MOST_CHAINED
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry
from tilewright.targets.gemmini.lowering.patch import Patch
from tilewright.targets.gemmini.lowering.schedule import ALL_CHANNELS_FIRST, TileSchedule
from tilewright.targets.gemmini.lowering.tile import TileStage, pixel_groups, sum_rows
from tilewright.targets.gemmini.lowering.words import ACCUMULATES, ACCUMULATOR, operand
from tilewright.targets.gemmini.spec import DIM

Pairs = NDArray[np.uint64]
"""(products, 2, 3): a PRELOAD and its COMPUTE."""


class Places(NamedTuple):
    """First rows of a stage's operands in the scratchpad and of its sums in the accumulator."""

    data: int
    weights: int
    sums: int


class _Blocks(NamedTuple):
    """Blocks of weights (blocks,), in order: the output block of each, the first row of its data
    (for the tile's first pixel) and of its own, channels, and 1 where sums begin with it."""

    n: NDArray[np.int64]
    data: NDArray[np.int64]
    weights: NDArray[np.int64]
    k_columns: NDArray[np.int64]
    n_columns: NDArray[np.int64]
    begins: NDArray[np.int64]

    def by_output(self) -> _Blocks:
        """All of an output block before those of the next."""
        order = np.argsort(self.n, kind="stable")
        return _Blocks(*(column[order] for column in self))


def products(
    g: BlockGeometry, s: TileSchedule, patch: Patch, stage: TileStage, places: Places
) -> Pairs:
    """The products of a stage (products, 2, 3)."""
    groups = np.array(pixel_groups(stage.tile), np.int64)  # (groups, 3)
    sums = places.sums + sum_rows(g, stage.tile).T  # (output blocks, groups)
    if stage.is_residual:
        blocks = _residual_blocks(g, s, stage, places)
        pixels = groups[:, 0] * s.tile_w + groups[:, 1]
    else:
        blocks = _weight_blocks(g, patch, stage, places)
        pixels = groups[:, 0] * patch.line_rows + groups[:, 1]
    if s.dataflow == OUTPUT_STATIONARY:
        most = g.most_chained if stage.is_first and stage.is_last else MOST_CHAINED
        made = _chains(g, s, stage, sums, blocks.by_output(), pixels, groups[:, 2], most)
    else:
        if not stage.is_residual and s.walk != ALL_CHANNELS_FIRST:
            blocks = blocks.by_output()
        made = _by_weights(sums, blocks, pixels, groups[:, 2])
    return made.reshape(-1, 2, 3).astype(np.uint64)


def _by_weights(
    places: NDArray[np.int64], blocks: _Blocks, pixels: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Each block of weights is loaded once, and meets all groups of pixels:
    (blocks, groups, 2, 3)."""
    number = np.arange(len(pixels))[None, :]
    _, data, weights, k_columns, n_columns, begins = (column[:, None] for column in blocks)
    sums = places[blocks.n] | ACCUMULATOR | np.where(begins == 1, 0, ACCUMULATES)
    fresh = number == 0
    made = np.empty((len(blocks.n), len(pixels), 2, 3), np.int64)
    made[..., 0, 0] = PRELOAD
    made[..., 0, 1] = operand(np.where(fresh, weights, GARBAGE), n_columns, k_columns)
    made[..., 0, 2] = operand(sums, n_columns, rows)
    made[..., 1, 0] = np.where(fresh, COMPUTE_PRELOADED, COMPUTE_ACCUMULATED)
    made[..., 1, 1] = operand(data + pixels, k_columns, rows)
    made[..., 1, 2] = operand(GARBAGE, DIM, DIM)
    return made


def _chains(
    g: BlockGeometry, s: TileSchedule, stage: TileStage, places: NDArray[np.int64], blocks: _Blocks,
    pixels: NDArray[np.int64], rows: NDArray[np.int64], most: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Sums stay in the array for a chain of blocks, which are by output block: (output blocks,
    groups, blocks of one, 2, 3), or groups first."""
    n_blocks = stage.tile.n_blocks
    parts = _Blocks(*(column.reshape(n_blocks, 1, -1) for column in blocks))
    inputs = [DIM if stage.is_residual else summed_inputs(g, c) for c in parts.k_columns[0, 0]]
    ends = np.array(chain_ends(inputs, most))
    starts = np.roll(ends, 1)
    # The first chain of a stage writes where its first block does.
    adds = (np.cumsum(starts) > 1) | (parts.begins[..., :1] == 0)
    sums = places[:, :, None] | ACCUMULATOR | np.where(adds, ACCUMULATES, 0)
    made = np.empty((n_blocks, len(pixels), len(ends), 2, 3), np.int64)
    made[..., 0, 0] = PRELOAD
    made[..., 0, 1] = operand(GARBAGE, DIM, DIM)
    made[..., 0, 2] = operand(np.where(ends, sums, GARBAGE), parts.n_columns, rows[:, None])
    made[..., 1, 0] = np.where(starts, COMPUTE_PRELOADED, COMPUTE_ACCUMULATED)
    made[..., 1, 1] = operand(parts.data + pixels[:, None], parts.k_columns, rows[:, None])
    made[..., 1, 2] = operand(parts.weights, parts.n_columns, parts.k_columns)
    return np.moveaxis(made, 0, 1) if s.walk == ALL_CHANNELS_FIRST else made


def _weight_blocks(g: BlockGeometry, patch: Patch, stage: TileStage, places: Places) -> _Blocks:
    tile, taps = stage.tile, g.kernel_h * g.kernel_w
    n_total, k_total = g.out_channels_of(tile.group), g.in_channels_of(tile.group)
    tap, k, n = (axis.ravel() for axis in np.indices((taps, stage.k_blocks, tile.n_blocks)))
    tap_rows = np.array([_tap_row(g, patch, number) for number in range(taps)])
    return _Blocks(
        n,
        places.data + k * patch.plane_rows + tap_rows[tap],
        places.weights + np.arange(len(tap)) * DIM,
        _columns(k_total, stage.k + k),
        _columns(n_total, tile.n + n),
        ((tap == 0) & (k == 0) & (stage.is_first and not g.epilogue.loads_sums)).astype(np.int64),
    )


def _residual_blocks(
    g: BlockGeometry, s: TileSchedule, stage: TileStage, places: Places
) -> _Blocks:
    """Each block of the residual with all identities."""
    tile, count = stage.tile, len(g.identities)
    n, which = (axis.ravel() for axis in np.indices((tile.n_blocks, count)))
    columns = _columns(g.out_channels_of(tile.group), tile.n + n)
    data, weights = places.data + n * s.tile_h * s.tile_w, places.weights + which * DIM
    return _Blocks(n, data, weights, columns, columns, np.zeros_like(n))


def _columns(total: int, block: NDArray[np.int64]) -> NDArray[np.int64]:
    """Channels that blocks have, of `total`."""
    return np.minimum(DIM, total - block * DIM)


def _tap_row(g: BlockGeometry, patch: Patch, tap: int) -> int:
    """The row of a plane that a tap reads for the tile's first output."""
    row_phase, row = patch.rows.place(tap // g.kernel_w)
    column_phase, column = patch.columns.place(tap % g.kernel_w)
    return patch.at(row_phase, row, column_phase, column)
