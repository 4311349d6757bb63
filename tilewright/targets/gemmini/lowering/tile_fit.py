"""Checks that the tiles of a program in the nest form fit into the local memories."""

from __future__ import annotations

from tilewright.targets.gemmini.lowering.epilogue import MOST_PIXELS
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry, blocks
from tilewright.targets.gemmini.lowering.operand_loads import Patch
from tilewright.targets.gemmini.lowering.schedule_space import TileSchedule
from tilewright.targets.gemmini.spec import DIM, GemminiMachine

# Longer programs are rejected, which bounds the time and memory for lowering and simulating one.
MOST_PRODUCTS = 1 << 19
MOST_BLOCK_STRIDE = (1 << 14) - 1
"""Maximum distance between two channel blocks in the scratchpad, in rows. The instruction field has
14 bits."""


class LoweringFailure(Exception):
    """Raised if a schedule does not compile.

    Args:
        name: class of the failure.
        reason: explanation of the failure.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name, self.reason = name, f"lower: {reason}"


def check_rows(name: str, what: str, rows: int, room: int) -> None:
    """Check that a local memory has enough rows.

    Args:
        name: class of the failure.
        what: description of the data that need the rows.
        rows: required number of rows.
        room: available number of rows.

    Raises:
        LoweringFailure: `rows` exceeds `room`.
    """
    if rows > room:
        raise LoweringFailure(name, f"{what} takes {rows} rows, but only {room} are available")


def buffer_rows(g: BlockGeometry, m: GemminiMachine, s: TileSchedule) -> int:
    """Return the number of accumulator rows that a buffer for one tile takes.

    Accumulators that a max-pool reads must lie in one bank, because the hardware makes a pooled
    store wait for all accumulators up to the end of the bank in which it begins.

    Args:
        g: geometry of the workload.
        m: the machine.
        s: the schedule.
    """
    rows = m.accumulator_rows // s.out_buffers
    return rows if g.pool is None else min(rows, m.accumulator_bank_rows)


def check_tiles(g: BlockGeometry, m: GemminiMachine, s: TileSchedule) -> None:
    """Check that the tiles of a program without hardware loops fit the local memories.

    Args:
        g: geometry of the workload.
        m: the machine.
        s: the schedule.

    Raises:
        LoweringFailure: a tile does not fit, or the program would be too long.
    """
    patch, taps, half = Patch.for_schedule(g, s), g.kernel_h * g.kernel_w, m.scratchpad_rows // 2
    if g.pool is None:
        sums = s.tile_h * blocks(s.tile_w) * s.tile_n * DIM
    else:
        height, width = g.sums_of(s.tile_h, s.tile_w)
        sums = height * width * s.tile_n
        if max(height, width, s.tile_h) > MOST_PIXELS:
            raise LoweringFailure(
                "pool",
                f"a tile has {height} × {width} sums, but at most {MOST_PIXELS} per side are "
                "possible",
            )
    check_rows("accumulator", "a tile's sums", sums, buffer_rows(g, m, s))
    data = s.tile_k * patch.plane_rows
    if g.epilogue.residual:
        data = max(data, s.tile_n * s.tile_h * s.tile_w)
    check_rows("scratchpad", "a stage's data", data, half // s.in_buffers)
    weights = max(taps * s.tile_k * s.tile_n, len(g.identities)) * DIM
    check_rows("scratchpad", "a stage's weights", weights, half // s.in_buffers)
    check_rows("scratchpad", "a plane of pixels", patch.plane_rows, MOST_BLOCK_STRIDE)
    strips = g.images * g.out_height * -(-g.out_width // min(DIM, s.tile_w))
    if g.pool is not None:
        height, width = g.sums_of(s.tile_h, s.tile_w)
        tiles = -(-g.out_height // s.tile_h) * -(-g.out_width // s.tile_w)
        strips = g.images * tiles * height * blocks(width)
    count = g.groups * strips * blocks(g.out_channels)
    count *= taps * blocks(g.in_channels) + len(g.identities)
    if count > MOST_PRODUCTS:
        raise LoweringFailure(
            "program", f"it has {count} products, but at most {MOST_PRODUCTS} are supported"
        )
