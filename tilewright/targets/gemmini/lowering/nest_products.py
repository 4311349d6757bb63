"""Multiplies the operands of a stage: PRELOAD and COMPUTE pairs, each weight block loaded once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    GARBAGE,
    PRELOAD,
)
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry
from tilewright.targets.gemmini.lowering.patch import Patch
from tilewright.targets.gemmini.lowering.schedule import ALL_CHANNELS_FIRST, TileSchedule
from tilewright.targets.gemmini.lowering.tile import TileStage, pixel_groups
from tilewright.targets.gemmini.lowering.words import ACCUMULATES, ACCUMULATOR, operand
from tilewright.targets.gemmini.spec import DIM

Pairs = NDArray[np.uint64]
"""(products, 2, 3): a PRELOAD and its COMPUTE."""


class Places(NamedTuple):
    """First rows of a stage's operands in the scratchpad and of its sums in the accumulator."""

    data: int
    weights: int
    sums: int


def products(
    g: BlockGeometry, s: TileSchedule, patch: Patch, stage: TileStage, places: Places
) -> Pairs:
    """The products of a stage (products, 2, 3), by weight block and group of pixels."""
    tile = stage.tile
    groups = np.array(pixel_groups(tile), np.int64)  # (groups, 3)
    n = np.arange(tile.n_blocks)
    n_total, k_total = g.out_channels_of(tile.group), g.in_channels_of(tile.group)
    if stage.is_residual:
        weights = [(block, block, which) for block in n for which in range(len(g.identities))]
        b, k, which = np.array(weights, np.int64).T
        k_columns = n_columns = _columns(n_total, tile.n + b)
        weight_rows = places.weights + which * DIM
        first = places.data + b * s.tile_h * s.tile_w
        in_patch = groups[:, 0] * s.tile_w + groups[:, 1]
        begins = np.zeros(len(b), bool)
    else:
        taps = g.kernel_h * g.kernel_w
        shape = (taps, stage.k_blocks, tile.n_blocks)
        tap, k, b = (axis.ravel() for axis in np.indices(shape))
        weight_rows = places.weights + np.arange(len(tap)) * DIM
        tap_rows = np.array([_tap_row(g, patch, number) for number in range(taps)])
        first = places.data + k * patch.plane_rows + tap_rows[tap]
        in_patch = groups[:, 0] * patch.line_rows + groups[:, 1]
        k_columns, n_columns = _columns(k_total, stage.k + k), _columns(n_total, tile.n + b)
        begins = (tap == 0) & (k == 0) & (stage.is_first and not g.epilogue.loads_sums)
        if s.walk != ALL_CHANNELS_FIRST:
            order = np.argsort(b, kind="stable")
            b, first, weight_rows = b[order], first[order], weight_rows[order]
            k_columns, n_columns, begins = k_columns[order], n_columns[order], begins[order]
    number = np.arange(len(groups))
    sums = places.sums + (number[None, :] * tile.n_blocks + b[:, None]) * DIM
    sums = sums | ACCUMULATOR | np.where(begins, 0, ACCUMULATES)[:, None]
    rows, fresh = groups[:, 2][None, :], number[None, :] == 0
    made = np.empty((len(b), len(groups), 2, 3), np.int64)
    made[..., 0, 0] = PRELOAD
    made[..., 0, 1] = operand(
        np.where(fresh, weight_rows[:, None], GARBAGE), n_columns[:, None], k_columns[:, None]
    )
    made[..., 0, 2] = operand(sums, n_columns[:, None], rows)
    made[..., 1, 0] = np.where(fresh, COMPUTE_PRELOADED, COMPUTE_ACCUMULATED)
    made[..., 1, 1] = operand(first[:, None] + in_patch[None, :], k_columns[:, None], rows)
    made[..., 1, 2] = operand(GARBAGE, DIM, DIM)
    return made.reshape(-1, 2, 3).astype(np.uint64)


def _columns(total: int, block: NDArray[np.int64]) -> NDArray[np.int64]:
    """Channels that blocks have, of `total`."""
    return np.minimum(DIM, total - block * DIM)


def _tap_row(g: BlockGeometry, patch: Patch, tap: int) -> int:
    """The row of a plane that a tap reads for the tile's first output."""
    row_phase, row = patch.rows.place(tap // g.kernel_w)
    column_phase, column = patch.columns.place(tap % g.kernel_w)
    return patch.at(row_phase, row, column_phase, column)
