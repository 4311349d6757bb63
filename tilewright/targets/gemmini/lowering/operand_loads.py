"""Commands that load the operands of a stage: input pixels, weights, residuals, identity matrices.

A stage is a part of a tile's multiplications. The array reads consecutive rows, even if the
convolution has a stride. Pixels are therefore sorted by their position modulo the stride, their
phase, so that the pixels which one kernel position reads are consecutive.
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
"""Main-memory address at which an MVIN writes zeros to its destination instead of reading
memory."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a tile's input pixels, sorted so that the array reads consecutive rows.

    Pixels are divided into phases: the phase of a pixel is its position modulo the stride. One
    kernel position reads consecutive pixels of one phase.

    Attributes:
        stride: stride of the convolution.
        dilation: dilation of the convolution.
        phases: the phases that kernel positions read.
        length: number of pixels per phase for a whole tile.
    """

    stride: int
    dilation: int
    phases: tuple[int, ...]
    length: int

    @classmethod
    def for_tile(cls, kernel: int, stride: int, dilation: int, tile: int) -> Axis:
        """Determine which pixels a tile reads along one dimension.

        Args:
            kernel: kernel size along this dimension.
            stride: stride of the convolution.
            dilation: dilation of the convolution.
            tile: number of outputs per tile.
        """
        phases = sorted({tap * dilation % stride for tap in range(kernel)})
        return cls(stride, dilation, tuple(phases), tile + (kernel - 1) * dilation // stride)

    def place(self, tap: int) -> tuple[int, int]:
        """Locate the pixel that a kernel position reads for the tile's first output.

        Args:
            tap: index of the kernel position along this dimension.

        Returns:
            Index in `phases` of the pixel's phase, and index of the pixel within this phase.
        """
        position, phase = divmod(tap * self.dilation, self.stride)
        return self.phases.index(phase), position

    def read_positions(self, kernel: int, phase: int, outputs: int) -> tuple[int, int]:
        """Return the range of pixels of one phase that adjacent outputs read.

        Args:
            kernel: kernel size along this dimension.
            phase: the phase itself (position of a pixel modulo the stride), not its index in
                `phases`.
            outputs: number of outputs.

        Returns:
            First index within the phase, and the index after the last one.
        """
        positions = [
            tap * self.dilation // self.stride
            for tap in range(kernel)
            if tap * self.dilation % self.stride == phase
        ]
        return positions[0], positions[-1] + outputs


@dataclass(frozen=True)
class Patch:
    """Layout of a tile's input pixels in the scratchpad.

    Each block of 16 channels is stored as a plane of `plane_rows` rows, with one pixel per row.
    Within a plane, pixels are ordered by row phase, row, column phase and column. A phase is a
    position modulo the stride.

    Attributes:
        rows: the vertical dimension.
        columns: the horizontal dimension.
    """

    rows: Axis
    columns: Axis

    @classmethod
    def for_schedule(cls, g: BlockGeometry, s: TileSchedule) -> Patch:
        """Return the layout of the input pixels that a tile of full size reads.

        Args:
            g: geometry of the workload.
            s: the schedule, which defines the size of a tile.
        """
        height, width = g.sums_of(s.tile_h, s.tile_w)
        return cls(
            Axis.for_tile(g.kernel_h, g.stride_h, g.dilation_h, height),
            Axis.for_tile(g.kernel_w, g.stride_w, g.dilation_w, width),
        )

    @property
    def line_rows(self) -> int:
        """Number of scratchpad rows per line of pixels."""
        return len(self.columns.phases) * self.columns.length

    @property
    def plane_rows(self) -> int:
        """Number of scratchpad rows per block of channels."""
        return len(self.rows.phases) * self.rows.length * self.line_rows

    def pixel_row(self, row_phase: int, row: int, column_phase: int, column: int) -> int:
        """Return the scratchpad row of a pixel, relative to the first row of its block of channels.

        Args:
            row_phase: index of the pixel's vertical phase in `rows.phases`.
            row: index within the vertical phase.
            column_phase: index of the pixel's horizontal phase in `columns.phases`.
            column: index within the horizontal phase.
        """
        line = row_phase * self.rows.length + row
        return line * self.line_rows + column_phase * self.columns.length + column


def load_patch(g: BlockGeometry, patch: Patch, stage: TileStage, base: int) -> list[Command]:
    """Return the MVIN commands that load a tile's input pixels, with zeros around the image.

    Args:
        g: geometry of the workload.
        patch: layout of the pixels in the scratchpad.
        stage: the part of a tile's multiplications that reads the pixels. It defines the range of
            input channels.
        base: first row in the scratchpad.
    """
    tile, loads = stage.tile, list[Command]()
    total = g.in_channels_of(tile.group)
    image = g.addresses["data"] + tile.image * g.height * g.width * g.data_stride
    top = tile.y * g.stride_h - g.pad_top
    left = tile.x * g.stride_w - g.pad_left
    for p, row_phase in enumerate(patch.rows.phases):
        begin, end = patch.rows.read_positions(g.kernel_h, row_phase, tile.height)
        for row in range(begin, end):
            y = top + row_phase + row * g.stride_h
            for q, phase in enumerate(patch.columns.phases):
                first, last = patch.columns.read_positions(g.kernel_w, phase, tile.width)
                x = left + phase
                inside = (
                    _positions_inside(x, g.stride_w, g.width, first, last)
                    if 0 <= y < g.height
                    else None
                )
                for block in range(0, stage.k_blocks, BLOCKS_PER_REQUEST):
                    count = min(BLOCKS_PER_REQUEST, stage.k_blocks - block)
                    columns = channels_in(total, stage.k + block, count)
                    at = base + block * patch.plane_rows + patch.pixel_row(p, row, q, 0)
                    channel = tile.group * g.in_channels + (stage.k + block) * DIM
                    loads += _line(
                        at, columns, (first, last), inside,
                        image + (y * g.width + x) * g.data_stride + channel,
                        g.stride_w * g.data_stride,
                    )  # fmt: skip
    return loads


def _positions_inside(
    x: int, stride: int, width: int, first: int, last: int
) -> tuple[int, int] | None:
    """Return the range of positions whose pixels lie inside the image, in one row of pixels.

    The pixel of position p is in column x + p · stride.

    Args:
        x: column of position 0; negative if it is in the padding.
        stride: horizontal stride in pixels.
        width: width of the image in pixels.
        first: first position to consider.
        last: position after the last one to consider.

    Returns:
        First position, and the position after the last one; None if no pixel is inside.
    """
    begin = max(first, -(x // stride))
    end = min(last, -(-(width - x) // stride))
    return (begin, end) if begin < end else None


def _line(
    at: int, columns: int, positions: tuple[int, int], inside: tuple[int, int] | None, memory: int,
    stride: int,
) -> list[Command]:  # fmt: skip
    """Return the MVIN commands that load one row of pixels, up to 16 pixels per command.

    Args:
        at: scratchpad row of position 0.
        columns: number of channels per pixel.
        positions: first position to load, and the position after the last one.
        inside: first position that is in memory, and the position after the last one; None if no
            position is in memory. Zeros are written for all other positions.
        memory: address of position 0 in main memory.
        stride: distance between two positions in main memory, in bytes.
    """
    first, last = positions
    begin, end = (last, last) if inside is None else inside
    loads = []
    for start, stop, is_data in ((first, begin, False), (begin, end, True), (end, last, False)):
        for position in range(start, stop, DIM):
            rows = min(DIM, stop - position)
            address = memory + position * stride if is_data else ZEROS
            loads.append((MVIN, address, operand(at + position, columns, rows)))
    return loads


def load_residual(g: BlockGeometry, s: TileSchedule, tile: Tile, base: int) -> list[Command]:
    """Return the MVIN commands that load a tile's residual, the tensor to be added to the output.

    Each block of channels is stored separately, with one row per pixel of the tile.

    Args:
        g: geometry of the workload.
        s: the schedule.
        tile: the tile.
        base: first row in the scratchpad.
    """
    loads = []
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
                loads.append((MVIN, address, operand(place, columns, rows)))
    return loads


def load_weights(g: BlockGeometry, stage: TileStage, base: int) -> list[Command]:
    """Return the MVIN2 commands that load the weights of a stage, 16 rows per block.

    The blocks are ordered by kernel position, input block and output block.

    Args:
        g: geometry of the workload.
        stage: the part of a tile's multiplications that uses the weights.
        base: first row in the scratchpad.
    """
    tile, loads, at = stage.tile, list[Command](), base
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
                loads.append((MVIN2, address, operand(at + block * DIM, columns, rows)))
            at += tile.n_blocks * DIM
    return loads


def load_identities(g: BlockGeometry, base: int) -> list[Command]:
    """Return the commands that load the identity matrices with which a residual is multiplied.

    Args:
        g: geometry of the workload.
        base: first scratchpad row of the matrices.
    """
    return [
        (MVIN2, g.addresses["identity"] + row * g.weight_stride, operand(base + row, DIM, DIM))
        for row in range(0, len(g.identities) * DIM, DIM)
    ]


def output_pixel(g: BlockGeometry, tile: Tile, y: int, x: int) -> int:
    """Return the index of a tile's output pixel among the pixels of all images.

    Args:
        g: geometry of the workload.
        tile: the tile.
        y: row within the tile.
        x: column within the tile.
    """
    return (tile.image * g.out_height + tile.y + y) * g.out_width + tile.x + x
