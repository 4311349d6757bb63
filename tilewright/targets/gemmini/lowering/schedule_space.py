"""Schedules and their search space: tile sizes, loop order, buffers and the form of the program."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.targets.base import Knob, Space
from tilewright.targets.gemmini.isa import OUTPUT_STATIONARY, WEIGHT_STATIONARY
from tilewright.targets.gemmini.loop_unrolling import BLOCKS_PER_REQUEST
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks, has_chains
from tilewright.targets.gemmini.spec import DIM

LOOP, SPREAD, FIRST = 0, 1, 2
"""Forms of a program. `LOOP` runs the hardware's own loop for each tile. `SPREAD` and `FIRST` issue
separate commands for each product. With `SPREAD`, the loads of the next tile are interleaved with
the products; with `FIRST`, they precede the products."""
PIXELS_OUTSIDE, CHANNELS_OUTSIDE = 0, 1
WEIGHTS_OF_A_CHANNEL_FIRST, ALL_CHANNELS_FIRST = 0, 1
# Maximum number of values of a knob.
MOST_VALUES = 8
MOST_TILE_BLOCKS = 64
"""Maximum side length of a tile in blocks. For comparison, half of the default machine's
accumulator holds 32 blocks."""


class TileSchedule(NamedTuple):
    """Knob values of a schedule.

    A stage is the part of a tile's multiplications for a range of input channels.

    Attributes:
        form: form of the program. `LOOP` uses the hardware loop LOOP_WS. The other two forms use
            single commands: `SPREAD` distributes the loads and stores of a stage between its
            multiplications, `FIRST` issues them before the multiplications.
        order: the outer loop over tiles: `PIXELS_OUTSIDE` or `CHANNELS_OUTSIDE`.
        tile_h: tile height in output pixels.
        tile_w: tile width in output pixels.
        tile_n: tile size in blocks of output channels.
        tile_k: tile size in blocks of input channels.
        in_buffers: number of buffers per operand, 1 or 2. The form `LOOP` always has two.
        out_buffers: number of buffers for accumulators, 1 or 2. The form `LOOP` always has two.
        store_blocks: number of channel blocks that one store command writes.
        walk: order of the multiplications of a stage. `WEIGHTS_OF_A_CHANNEL_FIRST` computes one
            block of output channels after the other. `ALL_CHANNELS_FIRST` alternates between them.
        dataflow: `WEIGHT_STATIONARY` if weights stay in the array, `OUTPUT_STATIONARY` if sums of
            products stay there. The form `LOOP` keeps the weights.
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
    """Return the search space: all combinations of useful knob values.

    Args:
        g: geometry of the workload.
        rule: schedule of the vendor's rule, whose knob values are always included.
    """
    values: dict[str, tuple[int, ...]] = {
        "form": (LOOP, SPREAD, FIRST) if g.has_loops else (SPREAD, FIRST),
        "order": (PIXELS_OUTSIDE, CHANNELS_OUTSIDE),
        "tile_h": _thin_out({-(-g.out_height // parts) for parts in range(1, g.out_height + 1)}),
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
    """Return the candidate tile widths in output pixels.

    They are multiples of 16 pixels. With a fused max-pool, they are equal parts of the image's
    width.

    Args:
        g: geometry of the workload.
    """
    if g.pool is not None:
        return _thin_out({-(-g.out_width // parts) for parts in range(1, g.out_width + 1)})
    return tuple(sorted({min(g.out_width, DIM * step) for step in _steps(blocks(g.out_width))}))


def _steps(count: int, most: int = MOST_VALUES) -> tuple[int, ...]:
    """Return candidate tile sizes for a dimension: its equal parts and the powers of two.

    Args:
        count: size of the dimension, in blocks.
        most: maximum number of candidates.
    """
    sizes = {-(-count // parts) for parts in range(1, count + 1)}
    sizes |= {1 << k for k in range(count.bit_length())}
    return _thin_out({step for step in sizes if step <= min(count, MOST_TILE_BLOCKS)}, most)


def _request_steps(count: int) -> tuple[int, ...]:
    """Return candidate tile sizes for a dimension of channels, in blocks of 16 channels.

    If there are more than `MOST_VALUES`, only sizes that whole memory requests can load are kept.

    Args:
        count: size of the dimension, in blocks.
    """
    values = _steps(count, most=MOST_TILE_BLOCKS)
    if len(values) <= MOST_VALUES:
        return values
    ends = {values[0], values[-1]}
    return _thin_out(
        {
            step
            for step in values
            if step in ends
            or (step < BLOCKS_PER_REQUEST and BLOCKS_PER_REQUEST % step == 0)
            or step % BLOCKS_PER_REQUEST == 0
        }
    )


def _thin_out(result: set[int], most: int = MOST_VALUES) -> tuple[int, ...]:
    """Reduce a set of tile sizes to at most `most` sizes, in ascending order.

    The remaining sizes are evenly spaced by rank, and always include the smallest and the largest
    size.

    Args:
        result: the tile sizes.
        most: maximum number of sizes to keep.
    """
    values, last = sorted(result), len(result) - 1
    if last < most:
        return tuple(values)
    return tuple(values[round(k * last / (most - 1))] for k in range(most))
