"""Defines a schedule: the values of a config's knobs."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.targets.gemmini.isa import WEIGHT_STATIONARY

LOOP, SPREAD, FIRST = 0, 1, 2
"""Forms of a program: the accelerator's own loop over a tile; commands for each product, with the
loads of the next tile spread among them, or before them."""
PIXELS_OUTSIDE, CHANNELS_OUTSIDE = 0, 1
WEIGHTS_OF_A_CHANNEL_FIRST, ALL_CHANNELS_FIRST = 0, 1


class TileSchedule(NamedTuple):
    """`tile_h` and `tile_w` are in pixels of the output, `tile_n` and `tile_k` in blocks of output
    and input channels.

    `order` says which loop over tiles is outside. Of programs without the accelerator's loop, there
    are `in_buffers` for operands and `out_buffers` for sums, `store_blocks` are stored by one
    command, and `walk` says whether products with all weights of a block of output channels come
    before those of the next. `dataflow` is what stays in their array, weights or sums. A loop has
    two buffers of each, and weights in the array.
    """

    form: int
    order: int
    tile_h: int
    tile_w: int
    tile_n: int
    tile_k: int
    in_buffers: int
    out_buffers: int
    store_blocks: int
    walk: int
    dataflow: int = WEIGHT_STATIONARY
