"""Loads of a stage's operands: the pixels under a tile, weights, a residual, identities.

The array shall read consecutive rows, whatever the stride. So pixels lie by their remainder modulo
the stride, their phase: those that a tap reads follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.gemmini.isa import MVIN, MVIN2
from tilewright.targets.gemmini.loop_unrolling import BLOCKS_PER_REQUEST
from tilewright.targets.gemmini.lowering.command_encoding import Command, operand
from tilewright.targets.gemmini.lowering.geometry import BlockGeometry
from tilewright.targets.gemmini.lowering.schedule_space import TileSchedule
from tilewright.targets.gemmini.lowering.tiles import Tile, TileStage, channels_in
from tilewright.targets.gemmini.spec import DIM

ZEROS = 0
"""The memory address whose MVIN writes zeros."""


@dataclass(frozen=True)
class Axis:
    """One direction of a patch: by phase the first and the number of positions that are read."""

    stride: int
    dilation: int
    phases: tuple[int, ...]
    length: int  # positions of a phase, of a whole tile

    @classmethod
    def of(cls, kernel: int, stride: int, dilation: int, tile: int) -> Axis:
        """For so many outputs a tile."""
        phases = sorted({tap * dilation % stride for tap in range(kernel)})
        return cls(stride, dilation, tuple(phases), tile + (kernel - 1) * dilation // stride)

    def place(self, tap: int) -> tuple[int, int]:
        """Return which phase a tap reads, and its position there for the tile's first output."""
        position, phase = divmod(tap * self.dilation, self.stride)
        return self.phases.index(phase), position

    def read(self, kernel: int, phase: int, outputs: int) -> tuple[int, int]:
        """Return first and end position of a phase that `outputs` outputs read."""
        own = [
            tap * self.dilation // self.stride
            for tap in range(kernel)
            if tap * self.dilation % self.stride == phase
        ]
        return own[0], own[-1] + outputs


@dataclass(frozen=True)
class Patch:
    """How the pixels under a tile lie in the scratchpad: a plane of `plane_rows` rows for each
    block of channels, in it (row phase, row, column phase, column)."""

    rows: Axis
    columns: Axis

    @classmethod
    def of(cls, g: BlockGeometry, s: TileSchedule) -> Patch:
        """Return the patch of a whole tile."""
        height, width = g.sums_of(s.tile_h, s.tile_w)
        return cls(
            Axis.of(g.kernel_h, g.stride_h, g.dilation_h, height),
            Axis.of(g.kernel_w, g.stride_w, g.dilation_w, width),
        )

    @property
    def line_rows(self) -> int:
        """Rows of a line of pixels."""
        return len(self.columns.phases) * self.columns.length

    @property
    def plane_rows(self) -> int:
        """Rows of a block of channels."""
        return len(self.rows.phases) * self.rows.length * self.line_rows

    def at(self, row_phase: int, row: int, column_phase: int, column: int) -> int:
        """Return the row of a pixel in a plane; phases are given by their index."""
        line = row_phase * self.rows.length + row
        return line * self.line_rows + column_phase * self.columns.length + column


def load_patch(g: BlockGeometry, patch: Patch, stage: TileStage, base: int) -> list[Command]:
    """Return MVINs of the pixels under a tile, from scratchpad row `base` on; zeros around the
    image."""
    tile, found = stage.tile, list[Command]()
    total = g.in_channels_of(tile.group)
    image = g.addresses["data"] + tile.image * g.height * g.width * g.data_stride
    top = tile.y * g.stride_h - g.pad_top
    left = tile.x * g.stride_w - g.pad_left
    for p, row_phase in enumerate(patch.rows.phases):
        begin, end = patch.rows.read(g.kernel_h, row_phase, tile.height)
        for row in range(begin, end):
            y = top + row_phase + row * g.stride_h
            for q, phase in enumerate(patch.columns.phases):
                first, last = patch.columns.read(g.kernel_w, phase, tile.width)
                x = left + phase
                inside = _inside(x, g.stride_w, g.width, first, last) if 0 <= y < g.height else None
                for block in range(0, stage.k_blocks, BLOCKS_PER_REQUEST):
                    count = min(BLOCKS_PER_REQUEST, stage.k_blocks - block)
                    columns = channels_in(total, stage.k + block, count)
                    at = base + block * patch.plane_rows + patch.at(p, row, q, 0)
                    channel = tile.group * g.in_channels + (stage.k + block) * DIM
                    found += _line(
                        at, columns, (first, last), inside,
                        image + (y * g.width + x) * g.data_stride + channel,
                        g.stride_w * g.data_stride,
                    )  # fmt: skip
    return found


def _inside(x: int, stride: int, width: int, first: int, last: int) -> tuple[int, int] | None:
    """The positions of first … last − 1 whose pixels x + position · stride are in the image."""
    begin = max(first, -(x // stride))
    end = min(last, -(-(width - x) // stride))
    return (begin, end) if begin < end else None


def _line(
    at: int, columns: int, positions: tuple[int, int], inside: tuple[int, int] | None, memory: int,
    stride: int,
) -> list[Command]:  # fmt: skip
    """MVINs of positions of a row of pixels, of which those `inside` are in memory."""
    first, last = positions
    begin, end = (last, last) if inside is None else inside
    found = []
    for start, stop, is_data in ((first, begin, False), (begin, end, True), (end, last, False)):
        for position in range(start, stop, DIM):
            rows = min(DIM, stop - position)
            address = memory + position * stride if is_data else ZEROS
            found.append((MVIN, address, operand(at + position, columns, rows)))
    return found


def load_residual(g: BlockGeometry, s: TileSchedule, tile: Tile, base: int) -> list[Command]:
    """Return MVINs of the residual of a tile: a plane of the tile's pixels for each block."""
    found = []
    total, plane = g.out_channels_of(tile.group), s.tile_h * s.tile_w
    for block in range(0, tile.n_blocks, BLOCKS_PER_REQUEST):
        count = min(BLOCKS_PER_REQUEST, tile.n_blocks - block)
        columns = channels_in(total, tile.n + block, count)
        channel = tile.group * g.out_channels + (tile.n + block) * DIM
        for y in range(tile.height):
            for x in range(0, tile.width, DIM):
                rows = min(DIM, tile.width - x)
                address = g.addresses["residual"] + channel
                address += output_pixel(g, tile, y, x) * g.residual_stride
                place = base + block * plane + y * s.tile_w + x
                found.append((MVIN, address, operand(place, columns, rows)))
    return found


def load_weights(g: BlockGeometry, stage: TileStage, base: int) -> list[Command]:
    """Return MVIN2s of a stage's weights, 16 rows per block: (tap, input block, output block)."""
    tile, found, at = stage.tile, list[Command](), base
    n_total, k_total = g.out_channels_of(tile.group), g.in_channels_of(tile.group)
    group = g.addresses["weight"] + tile.group * g.kernel_h * g.kernel_w * g.tap_bytes
    for tap in range(g.kernel_h * g.kernel_w):
        for k in range(stage.k, stage.k + stage.k_blocks):
            line = group + tap * g.tap_bytes + k * DIM * g.weight_stride
            for block in range(0, tile.n_blocks, BLOCKS_PER_REQUEST):
                count = min(BLOCKS_PER_REQUEST, tile.n_blocks - block)
                columns = channels_in(n_total, tile.n + block, count)
                rows = channels_in(k_total, k)
                address = line + (tile.n + block) * DIM
                found.append((MVIN2, address, operand(at + block * DIM, columns, rows)))
            at += tile.n_blocks * DIM
    return found


def load_identities(g: BlockGeometry, base: int) -> list[Command]:
    """Return MVIN2s of the identities, whose rows are as far apart as those of weights."""
    return [
        (MVIN2, g.addresses["identity"] + row * g.weight_stride, operand(base + row, DIM, DIM))
        for row in range(0, len(g.identities) * DIM, DIM)
    ]


def output_pixel(g: BlockGeometry, tile: Tile, y: int, x: int) -> int:
    """Return which pixel of the output a tile's (y, x) is."""
    return (tile.image * g.out_height + tile.y + y) * g.out_width + tile.x + x
