"""Computes the shapes of a convolution that follow from a config: register tiles, chunks, and those
of packed tensors. `conv2d_tile_sizes` chooses the config."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.kernels.kernel import DoesNotApply, KnobValues
from tilewright.targets.cpu.kernels.padding import is_padded
from tilewright.targets.cpu.kernels.tile_arithmetic import even_parts, nearest_divisor
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

MAX_UNROLLED = 1200
"""Multiply-adds of a loop's body, unrolled: our choice, a second or two of LLVM's time
(docs/decisions/measuring-on-a-cpu.md)."""


def is_pointwise(workload: Workload) -> bool:
    """Whether its pixels are independent of each other: rows and columns are one axis."""
    sizes = (workload.kernel_h, workload.kernel_w, workload.stride_h, workload.stride_w)
    return set(sizes) == {1} and not is_padded(workload)


def pixels(workload: Workload) -> tuple[int, int]:
    """Rows and columns of the output as the kernel sees it."""
    if is_pointwise(workload):
        return 1, workload.out_height * workload.out_width
    return workload.out_height, workload.out_width


def packed_shape(workload: Workload, spec: CpuSpec, out: bool = False) -> tuple[int, ...]:
    """Of the data, or the output, in blocks of channels."""
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
    """Sizes that follow from a config. `ib` and `ob` are the blocks of channels, `tile` is (channel
    blocks, rows, columns) of a register tile and `accumulators` its vectors, `tiles` how many cover
    the output, `chunk` how many of them a parallel chunk has (it divides `tiles`); `channels`
    counts blocks of input channels between partial sums."""

    ib: int
    ob: int
    tile: tuple[int, int, int]
    accumulators: int
    tiles: tuple[int, int, int]
    chunk: tuple[int, int, int]
    channels: int

    @classmethod
    def of(cls, w: Workload, spec: CpuSpec, values: KnobValues, size: tuple[int, int]) -> CpuTiling:
        """For an output of `size` (rows, columns)."""
        ib, ob = (channel_block(c, spec.lanes) for c in (w.in_channels, w.out_channels))
        room = (spec.registers - 2) // values["tile_oc"]
        columns = even_parts(size[1], max(1, min(values["tile_ow"], room)))
        rows = even_parts(size[0], max(1, min(values["tile_oh"], room // columns)))
        tile = (values["tile_oc"], rows, columns)
        sizes = (w.out_channels // ob, *size)
        tiles = tuple(-(-length // each) for length, each in zip(sizes, tile, strict=True))
        parts = (values["parts_oc"], values["parts_oh"], values["parts_ow"])
        chunk = tuple(
            nearest_divisor(count, max(1, -(-length // (cut * each))))
            for count, length, cut, each in zip(tiles, sizes, parts, tile, strict=True)
        )
        blocks = w.in_channels // ib
        channels = nearest_divisor(blocks, max(1, blocks // values["parts_ic"]))
        return cls(ib, ob, tile, values["tile_oc"] * rows * columns, tiles, chunk, channels)  # type: ignore[arg-type]

    @property
    def covered(self) -> tuple[int, int]:
        """Rows and columns that all tiles have together."""
        return self.tiles[1] * self.tile[1], self.tiles[2] * self.tile[2]


def check_unrolled(tiling: CpuTiling, values: KnobValues, kernel: tuple[int, int]) -> None:
    """Raises `DoesNotApply` for a loop's body that LLVM would take too long over."""
    body = tiling.accumulators * values["unroll_channels"]
    body *= kernel[1] if values["unroll_kernel"] > 0 else 1
    body *= kernel[0] if values["unroll_kernel"] > 1 else 1
    if body > MAX_UNROLLED:
        raise DoesNotApply(
            f"unroll_channels and unroll_kernel make {body} multiply-adds of a loop's body, "
            f"at most {MAX_UNROLLED} are tried",
            "code_too_large",
        )
