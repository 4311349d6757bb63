"""Convolution as matrix products with tile instructions, in bfloat16 or int8.

Rows of the matrix product are pixels. Its depth consists of input channels and kernel positions.
The data are copied with padding, and rounded if they are bfloat16, so that a tile of data can be
loaded for any kernel position. The copy has one of two layouts:

    in blocks    (blocks of channels that fill a row of a tile, phases of the stride, rows, columns,
                 channels of a block). Tiles continue from the end of an image row to the next row.
                 They also compute pixels in the padding, which are discarded.
    folded       (rows, columns, channels). For few channels: the channels of all kernel columns
                 together form the depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Array, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels import amx_product
from tilewright.targets.cpu.kernels.amx_product import (
    TileBlocks,
    blocks_of,
    correct_zero_point,
    pack_columns,
    product_function,
    weight_words,
)
from tilewright.targets.cpu.kernels.amx_tiles import TILE, WORD, TileNumbers, numbers_of
from tilewright.targets.cpu.kernels.conv2d_shapes import packed_shape, pixels
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import Arguments, split_index, tiles
from tilewright.targets.cpu.layouts import channel_block
from tilewright.targets.cpu.spec import CpuSpec
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
T = lazy_module("tvm.script.ir_builder.tirx")

MOST_GROUPS = 8
"""Maximum number of groups of a bfloat16 convolution that tile instructions compute. It is computed
as a convolution without groups, in which the weights between different groups are zero.

With g groups, this takes g times as many multiplications as necessary. Tile instructions are still
faster than vector instructions that compute only the groups (`python -m benchmarks.cpu.networks
--networks shufflenet --precision bf16`, on a Xeon with AMX)."""
LANES = 16
"""Number of float32 values per vector. It is the same for all processors with tile instructions."""


class ConvolutionTiles:
    """`Kernel` for convolutions with tile instructions, in bfloat16 or int8.

    A bfloat16 convolution may have up to `MOST_GROUPS` groups. The size of a channel block must
    divide the number of values in a row of a tile.
    """

    def serves(self, workload: Workload) -> bool:
        """Return whether tile instructions can compute this conv2d in bfloat16 or int8."""
        w = workload
        if w.operator != "conv2d" or w.dtype not in ("bfloat16", "int8"):
            return False
        if w.groups > (MOST_GROUPS if w.dtype == "bfloat16" else 1):
            return False
        if 1 < w.groups == w.in_channels:
            return False
        into, out = (channel_block(c, LANES) for c in (w.in_channels, w.out_channels))
        row = numbers_of(w).in_row
        return TILE % out == 0 and (row % into == 0 or w.in_channels <= row)

    def knobs(self, workload: Workload, spec: CpuSpec) -> tuple[Knob, ...]:
        """Return the knobs of a product with tile instructions: see `amx_product.knobs`.

        Args:
            workload: the workload.
            spec: the processor.
        """
        layout = CopyLayout.for_workload(workload)
        blocks = layout.lines * tiles(layout.rows, TILE)
        return amx_product.knobs(blocks, workload.out_channels)

    def baseline_values(self, workload: Workload, spec: CpuSpec) -> dict[str, int]:
        """Return the rule schedule, a config chosen without measuring, as values by knob name."""
        space = self.knobs(workload, spec)
        b, _ = product_of(workload)
        layout = CopyLayout.for_workload(workload)
        data = layout.count // workload.batch * WORD // layout.numbers.each
        weights = layout.steps * layout.words * WORD * b.columns
        return amx_product.baseline_values(space, b, spec, (data, weights))

    def data_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the data, (n, channel blocks, rows, columns, channels)."""
        return packed_shape(workload, spec)

    def out_shape(self, workload: Workload, spec: CpuSpec) -> tuple[int, ...]:
        """Return the shape of the output, (n, channel blocks, rows, columns, channels)."""
        return packed_shape(workload, spec, out=True)

    def define(self, workload: Workload, spec: CpuSpec, values: KnobValues) -> PrimFunc:
        """Build the kernel's TensorIR function with the loops that the config `values` selects.

        The loops are written explicitly, so that `schedule` has nothing to do.
        """
        b = _blocks(workload, values)
        return product_function(b, values, spec, _Image(workload, spec, b))

    def of_stored(
        self, workload: Workload, spec: CpuSpec, values: KnobValues, data_block: int
    ) -> PrimFunc:
        """Build the kernel for data that are already stored in bfloat16.

        If the channel blocks fill a row of a tile, and there is neither padding nor a stride, tiles
        are loaded from the data without a copy.

        Args:
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.
            data_block: channels per block of the data, which are passed as uint16.

        Returns:
            The TensorIR function, which needs no further schedule.
        """
        b = _blocks(workload, values)
        return product_function(b, values, spec, _Image(workload, spec, b, data_block))

    def schedule(
        self, function: PrimFunc, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> PrimFunc:
        """Return `function` unchanged, because `define` has already written its loops."""
        return function

    def pack_weights(
        self, weights: Array, workload: Workload, spec: CpuSpec, values: KnobValues
    ) -> Array:
        """Pack weights for tiles: see `pack_columns`.

        Args:
            weights: shape (o, c / groups, kh, kw).
            workload: the workload.
            spec: the processor.
            values: the config, as knob values by knob name.

        Returns:
            Int32 array of shape (words,).
        """
        layout = CopyLayout.for_workload(workload)
        if workload.groups > 1:
            weights = _without_groups(weights, workload.groups)
        return pack_columns(layout.depth_of(weights), _blocks(workload, values), layout.numbers)


def product_of(workload: Workload) -> tuple[TileBlocks, int]:
    """Return the matrix product that computes a convolution with tile instructions.

    Args:
        workload: the convolution.

    Returns:
        The sizes of the product, cut into blocks of 2 × 2 tiles, and the number of data values that
        the kernel copies first.
    """
    b = _blocks(workload, {"tiles_down": 2, "tiles_across": 2})
    return b, CopyLayout.for_workload(workload).count


@dataclass(frozen=True)
class CopyLayout:
    """Layout of a convolution's copied data, and the matrix product that follows from the layout.

    The kernel copies the data with padding, so that tiles can be loaded from the copy.

    Attributes:
        w: the workload.
        folded: whether the channels of all kernel columns together form the depth, the dimension
            over which products are summed. Otherwise the copy is divided into blocks of channels.
        channels: channels per block.
        blocks: number of blocks of channels.
        size: size of the copy: phases of rows, phases of columns, rows and columns. A phase
            contains the pixels whose coordinate leaves the same remainder when divided by the
            stride.
        lines: number of groups of a matrix's rows: see `TileBlocks.lines`.
        rows: rows of the matrix product per line.
        steps: number of steps of the depth, each of which fits one tile.
        words: number of 32-bit words along the depth per step.
    """

    w: Workload
    folded: bool
    channels: int
    blocks: int
    size: tuple[int, int, int, int]
    lines: int
    rows: int
    steps: int
    words: int

    @staticmethod
    @cache
    def for_workload(w: Workload) -> CopyLayout:
        """Choose the layout whose matrix product has fewer steps of the depth.

        Args:
            w: the workload.
        """
        numbers = numbers_of(w)
        whole_channels = numbers.whole_words(w.in_channels)
        row_words = w.kernel_w * whole_channels // numbers.each
        cuts = next(n for n in range(tiles(row_words, TILE), row_words + 1) if row_words % n == 0)
        block_channels = min(numbers.in_row, whole_channels)
        blocks = tiles(w.in_channels, block_channels)
        taps = w.kernel_h * w.kernel_w
        height, width = pixels(w)
        reach = (
            (height - 1) * w.stride_h + w.dilation_h * (w.kernel_h - 1) + 1,
            (width - 1) * w.stride_w + w.kernel_w,
        )
        if w.dilation_w == 1 and w.kernel_h * cuts < blocks * taps:
            return CopyLayout(
                w,
                True,
                whole_channels,
                1,
                (1, 1, *reach),
                height,
                width,
                w.kernel_h * cuts,
                row_words // cuts,
            )
        (py, qy), (px, qx) = (
            _phases(kernel, stride, dilation)
            for kernel, stride, dilation in (
                (w.kernel_h, w.stride_h, w.dilation_h), (w.kernel_w, w.stride_w, w.dilation_w),
            )
        )  # fmt: skip
        size = py, px, height + qy, width + qx
        rows = (height - 1) * size[3] + width
        return CopyLayout(
            w,
            False,
            block_channels,
            blocks,
            size,
            1,
            rows,
            blocks * taps,
            block_channels // numbers.each,
        )

    @property
    def numbers(self) -> TileNumbers:
        """Element type of the copy."""
        return numbers_of(self.w)

    @property
    def count(self) -> int:
        """Number of values in the copies of all images of the batch."""
        return self.w.batch * self.blocks * int(np.prod(self.size)) * self.channels

    def is_of(self, data: tuple[int, ...]) -> bool:
        """Return whether the data already have the layout of the copy, so that no copy is needed.

        Args:
            data: shape of the data, (n, c / block, h, w, block).
        """
        copied = self.w.batch, self.blocks, *self.size[2:], self.channels
        fills_rows = (
            self.channels == self.numbers.in_row and not self.w.pad_top and not self.w.pad_left
        )
        return not self.folded and self.size[:2] == (1, 1) and fills_rows and copied == data

    def depth_of(self, weights: Array) -> Array:
        """Arrange weights as a matrix whose rows have the order of the copied data.

        Args:
            weights: shape (o, c, kh, kw).

        Returns:
            Shape (depth, o). The depth is ordered by blocks of channels, kernel rows, kernel
            columns and channels of a block. Channels that fill up the last block have zero weights.
        """
        w, missing = self.w, self.blocks * self.channels - self.w.in_channels
        padded = np.pad(weights, ((0, 0), (0, missing), (0, 0), (0, 0)))
        blocked = padded.reshape(w.out_channels, self.blocks, self.channels, *weights.shape[2:])
        return blocked.transpose(1, 3, 4, 2, 0).reshape(-1, w.out_channels)


def _without_groups(weights: Array, groups: int) -> Array:
    """Expand the weights of a grouped convolution, with zeros between different groups.

    The shape changes from (o, c / groups, kh, kw) to (o, c, kh, kw).
    """
    o, c, *taps = weights.shape
    by_groups = np.zeros((groups, o // groups, groups, c, *taps), weights.dtype)
    group = np.arange(groups)
    by_groups[group, :, group] = weights.reshape(groups, o // groups, c, *taps)
    return by_groups.reshape(o, groups * c, *taps)


def _phases(kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the number of phases and of strides that the kernel covers along one axis.

    Pixels whose coordinates leave the same remainder when divided by the stride form one phase.

    Args:
        kernel: length of the kernel along the axis.
        stride: stride along the axis.
        dilation: dilation along the axis.

    Returns:
        The number of phases that kernel positions use, and the distance from the first to the last
        kernel position, in whole strides.
    """
    places = [k * dilation for k in range(kernel)]
    return max(p % stride for p in places) + 1, max(p // stride for p in places)


def _blocks(w: Workload, v: KnobValues) -> TileBlocks:
    layout = CopyLayout.for_workload(w)
    depth = layout.steps, layout.words
    return blocks_of(w.batch, layout.lines, layout.rows, w.out_channels, depth, v)


class _Image:
    """Operands of a convolution with tile instructions: data, packed weights and output.

    The class implements `TileOperands`, which says where tiles are loaded from and how results are
    stored.
    """

    own_weights = False

    def __init__(self, w: Workload, spec: CpuSpec, b: TileBlocks, stored_block: int = 0) -> None:
        self.w, self.b, self.spec, self.numbers = w, b, spec, numbers_of(w)
        self.layout = CopyLayout.for_workload(w)
        data, out = packed_shape(w, spec), packed_shape(w, spec, out=True)
        self.stored = bool(stored_block)
        if stored_block:
            data = data[0], w.in_channels // stored_block, *data[2:4], stored_block
        self.shapes = data, out
        self.row = self.layout.channels * (w.stride_w if self.layout.folded else 1)

    def take(self) -> None:
        """Declare the data, weights, epilogue operands and output as parameters of the function."""
        data, out = self.shapes
        weights = (weight_words(self.b, self.numbers),)
        kind = self.numbers.kind if self.stored else ""
        self.a = Arguments(self.w, data, weights, (out[1], out[4]), out, "int32", kind)
        self.weights = self.a.weights

    # -- the copy ------------------------------------------------------------------------------

    def pack(self) -> None:
        """Copy the data with padding, unless they already have the layout of the copy."""
        w, layout = self.w, self.layout
        if self.stored and layout.is_of(self.shapes[0]):
            self.data = T.decl_buffer(
                (layout.count,), self.numbers.kind, data=self.a.data.data, scope="global"
            )
            return
        self.data = T.alloc_buffer((layout.count,), self.numbers.kind)
        phases_y, phases_x, height, width = layout.size
        with T.parallel(0, w.batch * layout.blocks * height) as index:
            n, c, y = split_index(index, w.batch, layout.blocks, height)
            for py in range(phases_y):
                row = y * (1 if layout.folded else w.stride_h) + py - w.pad_top
                for px in range(phases_x):
                    place = (n * layout.blocks + c) * phases_y + py
                    start = ((place * phases_x + px) * height + y) * width * layout.channels
                    self._copy_row(start, (n, c, row), px)

    def _copy_row(
        self, start: Expression, source: tuple[Expression, Expression, Expression], phase: int
    ) -> None:
        """Add loops that copy one row of an image, for one phase of the column stride.

        Args:
            start: index in the copy at which the row begins.
            source: image, block of channels, and row of the data.
            phase: number of the phase. It contains the pixels whose column leaves this remainder
                when divided by the stride.
        """
        w, width, stride = self.w, self.layout.size[3], self.w.stride_w
        data_height, data_width = self.shapes[0][2:4]
        if self.layout.folded:
            stride = 1
        # Columns before `begin` and from `end` on lie in the padding.
        begin = min(max(0, tiles(w.pad_left - phase, stride)), width)
        end = max(min(width, tiles(data_width + w.pad_left - phase, stride)), begin)
        channels, border = self.layout.channels, self.numbers.border(self.a.zero)

        def clear(first: int, until: int) -> None:
            if first < until:
                with T.serial(first, until) as x, T.vectorized(0, channels) as i:
                    T.buffer_store(self.data, border, [start + x * channels + i])

        n, c, row = source
        with T.If(tirx.all(row >= 0, row < data_height)):
            with T.Then():
                clear(0, begin)
                if begin < end:
                    with T.serial(begin, end) as x:
                        column = x * stride + phase - w.pad_left
                        self._copy_pixel(start + x * channels, n, c, (row, column))
                clear(end, width)
            with T.Else():
                clear(0, width)

    def _copy_pixel(
        self, start: Expression, n: Expression, c: Expression, place: tuple[Expression, Expression]
    ) -> None:
        """Add statements that copy the channels of one block at one pixel.

        Channels that are missing in the last block are set to zero.

        Args:
            start: index in the copy at which the first channel is stored.
            n: index of the image.
            c: index of the block of channels.
            place: row and column of the pixel in the data.
        """
        _, blocks, _, _, data_block = self.shapes[0]
        channels, copied_channels = self.layout.channels, self.layout.blocks * self.layout.channels
        count = tiles(channels, data_block)

        def zeros(first: Expression, lanes: int) -> None:
            with T.vectorized(0, lanes) as i:
                T.buffer_store(self.data, tirx.const(0, self.numbers.kind), [start + first + i])

        def move(block: int) -> None:
            with T.vectorized(0, data_block) as i:
                value = self.a.data[(n, c * count + block, *place, i)]
                if not self.stored:
                    value = self.numbers.to_tile_form(value, data_block, self.spec)
                T.buffer_store(self.data, value, [start + block * data_block + i])

        for block in range(count):
            if self.layout.blocks == 1 or copied_channels == blocks * data_block:
                if block < blocks:
                    move(block)
            else:
                with T.If(c * count + block < blocks):
                    with T.Then():
                        move(block)
                    with T.Else():
                        zeros(block * data_block, data_block)
        held = min(count, blocks) * data_block
        if self.layout.blocks == 1 and held < channels:
            zeros(held, channels - held)

    # -- the product ---------------------------------------------------------------------------

    def step(
        self, matrix: Expression, place: tuple[Expression, Expression], at: Expression
    ) -> Expression:
        """Return the index in the copied data at which a block of the product begins.

        Args:
            matrix: index of the image.
            place: line (group of matrix rows) and first row of the block within the line.
            at: index of the step along the depth.
        """
        w, layout, (line, first) = self.w, self.layout, place
        phases_y, phases_x, height, width = layout.size
        if layout.folded:
            cuts = layout.steps // w.kernel_h
            kh, part = split_index(at, w.kernel_h, cuts)
            row = matrix * height + line * w.stride_h + kh * w.dilation_h
            columns = (row * width + first * w.stride_w) * layout.channels
            return columns + part * layout.words * self.numbers.each
        block, kh, kw = split_index(at, layout.blocks, w.kernel_h, w.kernel_w)
        dy, dx = kh * w.dilation_h, kw * w.dilation_w
        image = (matrix * layout.blocks + block) * phases_y + tirx.indexmod(dy, w.stride_h)
        image = image * phases_x + tirx.indexmod(dx, w.stride_w)
        row = image * height + tirx.indexdiv(dy, w.stride_h)
        column = tirx.indexdiv(dx, w.stride_w) + first
        return (row * width + column) * layout.channels

    def finish(
        self,
        sums: TirBuffer,
        matrix: Expression,
        place: tuple[Expression, Expression],
        across: Expression,
    ) -> None:
        """Add loops that apply the epilogue to accumulators: see `TileOperands.finish`."""
        height, width = pixels(self.w)
        line, first = place
        with T.serial(0, self.b.block_rows) as r:
            if self.layout.folded:
                self._finish_pixel(sums, r, (matrix, line, first + r), across)
            elif height == 1:
                self._finish_pixel(sums, r, (matrix, 0, first + r), across)
            else:
                y, x = split_index(first + r, height, self.layout.size[3])
                with T.If(x < width), T.Then():
                    self._finish_pixel(sums, r, (matrix, y, x), across)

    def _finish_pixel(
        self,
        sums: TirBuffer,
        r: Expression,
        place: tuple[Expression, Expression, Expression],
        across: Expression,
    ) -> None:
        out_block, column = self.shapes[1][4], self.b.first_column(across)
        n, y, x = place
        for at in range(0, min(self.b.block_columns, self.b.columns), out_block):
            block = tirx.indexdiv(column, out_block) + at // out_block
            with T.vectorized(0, out_block) as i:
                value = sums[r, at + i]
                if self.w.dequantises:
                    value = correct_zero_point(self.b, self, value, self.a.zero, across, at + i)
                self.a.finish(value, (n, block, y, x, i), (block, i))
