"""Programs in the loop form: a matrix product as a sequence of LOOP_WS commands, one per tile."""

from __future__ import annotations

import math
from itertools import product

from tilewright.targets.gemmini.isa import (
    LOOP_ADDRESSES_AB,
    LOOP_ADDRESSES_DC,
    LOOP_BOUNDS,
    LOOP_STRIDES_AB,
    LOOP_STRIDES_DC,
    LOOP_WS,
)
from tilewright.targets.gemmini.loop_unrolling import LOOPS
from tilewright.targets.gemmini.lowering.command_encoding import (
    Command,
    CommandTable,
    commands,
    encode_array_config,
    encode_load_config,
    encode_store_config,
)
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.lowering.schedule_space import PIXELS_OUTSIDE, TileSchedule
from tilewright.targets.gemmini.lowering.tile_fit import LoweringFailure, check_rows
from tilewright.targets.gemmini.spec import DIM, GemminiMachine

# Longer programs are rejected, which bounds the time for simulating one.
MOST_LOOPS = 1 << 14


def loop_program(g: BlockGeometry, m: GemminiMachine, s: TileSchedule) -> CommandTable:
    """Compile a schedule of a matrix product to a sequence of LOOP_WS commands, one per tile.

    LOOP_WS is the hardware's loop over a matrix product. Two loops alternate, each with half of
    both local memories. As in the vendor's library, an operand with at most two tiles is loaded
    only once, and each of its tiles stays in one half.

    Args:
        g: geometry of the workload, which must be a matrix product without a residual.
        m: the machine.
        s: the schedule.

    Returns:
        Commands, uint64 array of shape (n, 3).

    Raises:
        LoweringFailure: the tile does not fit, or there are too many tiles.
    """
    check_loops(g, m, s)
    counts = _counts(g, s)
    command_list = [
        encode_array_config(),
        encode_store_config(g.output_stride, g.epilogue),
        encode_load_config(0, g.data_stride, DIM),
        encode_load_config(1, g.weight_stride, DIM),
        encode_load_config(2, 0, DIM),
    ]
    for group in range(g.groups):
        for i, j, k in _tiles(counts, s.order):
            command_list += _loop(g, s, group, (i, j, k), counts)
    return commands(command_list)


def check_loops(g: BlockGeometry, m: GemminiMachine, s: TileSchedule) -> None:
    """Check that a schedule compiles to LOOP_WS commands, the hardware's loop over a product.

    Args:
        g: geometry of the workload.
        m: the machine.
        s: the schedule.

    Raises:
        LoweringFailure: the operands of a loop exceed half of a local memory, or there are too many
            loops.
    """
    tile_i = blocks(s.tile_w)
    operands, sums = (tile_i + s.tile_n) * s.tile_k * DIM, tile_i * s.tile_n * DIM
    check_rows(
        "scratchpad", "a loop's part of the scratchpad", operands, m.scratchpad_rows // LOOPS
    )
    check_rows("accumulator", "a loop's part of the accumulator", sums, m.accumulator_rows // LOOPS)
    total = g.groups * math.prod(_counts(g, s))
    if total > MOST_LOOPS:
        raise LoweringFailure(
            "program", f"it has {total} loops, but at most {MOST_LOOPS} are supported"
        )


def _counts(g: BlockGeometry, s: TileSchedule) -> tuple[int, int, int]:
    """Return the number of tiles along rows, output channels and input channels.

    Args:
        g: geometry of the workload.
        s: the schedule, which defines the size of a tile.
    """
    return (
        -(-blocks(g.out_width) // blocks(s.tile_w)), -(-blocks(g.out_channels) // s.tile_n),
        -(-blocks(g.in_channels) // s.tile_k),
    )  # fmt: skip


def _tiles(counts: tuple[int, int, int], order: int) -> list[tuple[int, int, int]]:
    i, j, k = map(range, counts)
    if order == PIXELS_OUTSIDE:
        return list(product(i, j, k))
    return [(a, b, c) for b, a, c in product(j, i, k)]


def _loop(
    g: BlockGeometry,
    s: TileSchedule,
    group: int,
    tile: tuple[int, int, int],
    counts: tuple[int, int, int],
) -> list[Command]:
    """Return the commands for one tile: a LOOP_WS command after its configuration commands.

    Args:
        g: geometry of the workload.
        s: the schedule.
        group: index of the channel group.
        tile: index of the tile along rows, output channels and input channels.
        counts: number of tiles along the same dimensions.
    """
    (i, j, k), at = tile, g.addresses
    (first_i, size_i), (first_j, size_j), (first_k, size_k) = (
        (step * place, min(step, size - step * place))
        for step, place, size in (
            (blocks(s.tile_w) * DIM, i, g.out_width),
            (s.tile_n * DIM, j, g.out_channels_of(group)),
            (s.tile_k * DIM, k, g.in_channels_of(group)),
        )
    )
    keeps_a, keeps_b = (counts[n] * counts[2] <= LOOPS and g.groups == 1 for n in (0, 1))
    a = at["data"] + first_i * g.data_stride + group * g.in_channels + first_k
    b = at["weight"] + group * g.tap_bytes + first_k * g.weight_stride + first_j
    d = at["bias"] + 4 * (group * g.weight_stride + first_j) if g.epilogue.loads_sums else 0
    c = at["output"] + first_i * g.output_stride + group * g.out_channels + first_j
    adds = k > 0 or d != 0
    sizes = size_i, size_j, size_k
    bounds = sum(blocks(size) << 16 * n for n, size in enumerate(sizes))
    pads = sum((-size % DIM) << 16 * n for n, size in enumerate(sizes))
    a_half = 1 + (i + k > 0) if keeps_a else 0
    b_half = 1 + (j + k > 0) if keeps_b else 0
    return [
        (LOOP_BOUNDS, pads, bounds),
        (
            LOOP_ADDRESSES_AB,
            0 if keeps_a and j > 0 else a,
            0 if keeps_b and i > 0 else b,
        ),
        (LOOP_ADDRESSES_DC, 0 if k else d, c if k == counts[2] - 1 else 0),
        (LOOP_STRIDES_AB, g.data_stride, g.weight_stride),
        (LOOP_STRIDES_DC, 0, g.output_stride),
        (LOOP_WS, int(adds) | int(g.epilogue.relu) << 8 | b_half << 16 | a_half << 18, 0),
    ]
