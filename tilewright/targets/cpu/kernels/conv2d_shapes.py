"""Shapes of a convolution that follow from a config: register tiles, chunks, packed tensors.

`conv2d_tile_sizes` chooses the config of the rule schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.kernels.kernel import DoesNotApply, KnobValues
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.kernels.tile_arithmetic import even_parts, nearest_divisor
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

MAX_UNROLLED = 1200
"""Maximum number of unrolled multiply-adds in the body of a loop. We chose the value: LLVM takes
one or two seconds to compile such a body (docs/decisions/measuring-on-a-cpu.md)."""


def is_pointwise(workload: Workload) -> bool:
    """Return whether each output pixel depends on one input pixel. Image rows can then be merged.

    Args:
        workload: the workload.
    """
    sizes = (workload.kernel_h, workload.kernel_w, workload.stride_h, workload.stride_w)
    return set(sizes) == {1} and not is_padded(workload)


def pixels(workload: Workload) -> tuple[int, int]:
    """Return the rows and columns of a convolution's output as the kernel sees them.

    For a pointwise convolution, the kernel merges all rows of the image into one row.

    Args:
        workload: the workload.
    """
    if is_pointwise(workload):
        return 1, workload.out_height * workload.out_width
    return workload.out_height, workload.out_width


def packed_shape(workload: Workload, spec: CpuSpec, out: bool = False) -> tuple[int, ...]:
    """Return the shape of the data or of the output, with channels in blocks.

    Args:
        workload: the workload.
        spec: the processor.
        out: return the shape of the output instead of the data.

    Returns:
        (batch, channel blocks, rows, columns, channels per block).
    """
    w = workload
    channels, height, width = w.in_channels, w.height, w.width
    if out:
        channels, height, width = w.out_channels, w.out_height, w.out_width
    if is_pointwise(w):
        height, width = 1, height * width
    block = channel_block(channels, spec.lanes)
    return w.batch, channels // block, height, width, block


@dataclass(frozen=True)
class CpuTiling:
    """Tile sizes of a convolution that follow from a config.

    A register tile is a block of the output whose accumulators are held in vector registers. A
    chunk is a rectangle of register tiles that one parallel task computes.

    Attributes:
        ib: input channels per block.
        ob: output channels per block.
        tile: channel blocks, rows and columns of a register tile.
        accumulators: number of accumulator vectors of a register tile.
        tiles: number of register tiles that cover the output, along the axes of `tile`.
        chunk: number of register tiles per parallel chunk, along the same axes. It divides `tiles`.
        channels: number of blocks of input channels that are added before partial sums are stored.
    """

    ib: int
    ob: int
    tile: tuple[int, int, int]
    accumulators: int
    tiles: tuple[int, int, int]
    chunk: tuple[int, int, int]
    channels: int

    @classmethod
    def for_config(
        cls, w: Workload, spec: CpuSpec, values: KnobValues, size: tuple[int, int]
    ) -> CpuTiling:
        """Derive the tile sizes from a config.

        Args:
            w: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.
            size: rows and columns of the output as the kernel sees them; for Winograd's algorithm,
                of the grid of its tiles.
        """
        ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
        # Two registers remain for the operands of a multiply-add.
        room = (spec.registers - 2) // values["tile_oc"]
        columns = even_parts(size[1], max(1, min(values["tile_ow"], room)))
        rows = even_parts(size[0], max(1, min(values["tile_oh"], room // columns)))
        tile = (values["tile_oc"], rows, columns)
        sizes = (w.out_channels // ob, *size)
        tiles = tuple(-(-length // extent) for length, extent in zip(sizes, tile, strict=True))
        parts = (values["parts_oc"], values["parts_oh"], values["parts_ow"])
        chunk = tuple(
            nearest_divisor(count, max(1, -(-length // (part_count * extent))))
            for count, length, part_count, extent in zip(tiles, sizes, parts, tile, strict=True)
        )
        blocks = w.in_channels // ib
        channels = nearest_divisor(blocks, max(1, blocks // values["parts_ic"]))
        return cls(ib, ob, tile, values["tile_oc"] * rows * columns, tiles, chunk, channels)  # type: ignore[arg-type]

    @property
    def covered_size(self) -> tuple[int, int]:
        """Rows and columns that all register tiles cover together."""
        return self.tiles[1] * self.tile[1], self.tiles[2] * self.tile[2]


def check_unrolled(tiling: CpuTiling, values: KnobValues, kernel: tuple[int, int]) -> None:
    """Check that the unrolled body of a loop is small enough for LLVM to compile it quickly.

    Args:
        tiling: the tile sizes.
        values: the config, as knob values by knob name.
        kernel: rows and columns of the kernel.

    Raises:
        DoesNotApply: the body has more than `MAX_UNROLLED` multiply-adds.
    """
    body = tiling.accumulators * values["unroll_channels"]
    body *= kernel[1] if values["unroll_kernel"] > 0 else 1
    body *= kernel[0] if values["unroll_kernel"] > 1 else 1
    if body > MAX_UNROLLED:
        raise DoesNotApply(
            f"unroll_channels and unroll_kernel make {body} multiply-adds of a loop's body, "
            f"at most {MAX_UNROLLED} are tried",
            "code_too_large",
        )
