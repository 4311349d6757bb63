"""Schedules and their search space: tiles, their order, buffers, and the form of the program."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.targets.base import Knob, Space
from tilewright.targets.gemmini.isa import OUTPUT_STATIONARY, WEIGHT_STATIONARY
from tilewright.targets.gemmini.loop_unrolling import BLOCKS_PER_REQUEST
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks, has_chains
from tilewright.targets.gemmini.spec import DIM

LOOP, SPREAD, FIRST = 0, 1, 2
"""Forms of a program: the accelerator's own loop over a tile; commands for each product, with the
loads of the next tile spread among them, or before them."""
PIXELS_OUTSIDE, CHANNELS_OUTSIDE = 0, 1
WEIGHTS_OF_A_CHANNEL_FIRST, ALL_CHANNELS_FIRST = 0, 1
MOST_VALUES = 8
MOST_TILE_BLOCKS = 64
"""No side of a tile is longer: half an accumulator holds 32 blocks."""


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


def space_of(g: BlockGeometry, rule: TileSchedule) -> Space:
    """Return the search space: all combinations of sensible values, those of the vendor's rule
    among them."""
    values: dict[str, tuple[int, ...]] = {
        "form": (LOOP, SPREAD, FIRST) if g.has_loops else (SPREAD, FIRST),
        "order": (PIXELS_OUTSIDE, CHANNELS_OUTSIDE),
        "tile_h": _thinned({-(-g.out_height // parts) for parts in range(1, g.out_height + 1)}),
        "tile_w": _widths(g),
        "tile_n": _request_steps(blocks(g.out_channels)),
        "tile_k": _request_steps(blocks(g.in_channels)),
        "in_buffers": (1, 2),
        "out_buffers": (1, 2),
        "store_blocks": (1, 4) if g.pool is None else (1,),
        "walk": (WEIGHTS_OF_A_CHANNEL_FIRST, ALL_CHANNELS_FIRST),
        "dataflow": (OUTPUT_STATIONARY, WEIGHT_STATIONARY) if g.flat and has_chains(g) else (),
    }
    chosen = rule._asdict()
    return Space(
        "tiles",
        tuple(
            Knob(name, tuple(sorted({*values[name], chosen[name]})))
            for name in TileSchedule._fields
        ),
    )


def _widths(g: BlockGeometry) -> tuple[int, ...]:
    """Of a tile, in pixels of the output: whole blocks, or, of pooled ones, equal parts."""
    if g.pool is not None:
        return _thinned({-(-g.out_width // parts) for parts in range(1, g.out_width + 1)})
    return tuple(sorted({min(g.out_width, DIM * step) for step in _steps(blocks(g.out_width))}))


def _steps(count: int, most: int = MOST_VALUES) -> tuple[int, ...]:
    """Equal parts of a number of blocks, and powers of two."""
    found = {-(-count // parts) for parts in range(1, count + 1)}
    found |= {1 << k for k in range(count.bit_length())}
    return _thinned({step for step in found if step <= min(count, MOST_TILE_BLOCKS)}, most)


def _request_steps(count: int) -> tuple[int, ...]:
    """Of a number of blocks of channels; of many, those that are read by whole requests."""
    values = _steps(count, most=MOST_TILE_BLOCKS)
    if len(values) <= MOST_VALUES:
        return values
    ends = {values[0], values[-1]}
    return _thinned(
        {
            step
            for step in values
            if step in ends
            or (step < BLOCKS_PER_REQUEST and BLOCKS_PER_REQUEST % step == 0)
            or step % BLOCKS_PER_REQUEST == 0
        }
    )


def _thinned(found: set[int], most: int = MOST_VALUES) -> tuple[int, ...]:
    """At most so many in order, evenly by rank, the ends among them."""
    values, last = sorted(found), len(found) - 1
    if last < most:
        return tuple(values)
    return tuple(values[round(k * last / (most - 1))] for k in range(most))
