"""Loops that depthwise and grouped convolutions share: tasks, register tiles and padding.

A tap is one position of the kernel. A task computes some output channels for a share of an image's
rows. The loops are:

    parallel (images, output channels, shares of the rows)
      rows of tiles, columns of tiles     or in the opposite order
        kernel rows, kernel columns       unrolled or not
          add one tap to the tile         implemented by the kernel: `Taps`
        epilogue

The knob `padding` selects how padding is treated:

- 0: all data are copied to a padded tensor first.
- 1: each task copies the rows that it reads, with padding.
- 2: nothing is copied. Tiles at the left and right border have their own code, which leaves out
  taps in the padding. Tiles at the upper and lower border test each kernel row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import gcd
from typing import Protocol

from tilewright.core.lazy_module import lazy_module
from tilewright.core.tvm_types import Condition, Expression, PrimFunc, TirBuffer
from tilewright.targets.base import Knob
from tilewright.targets.cpu.kernels.epilogue import real, sums_type
from tilewright.targets.cpu.kernels.kernel import KnobValues
from tilewright.targets.cpu.kernels.loops import (
    STACK_BYTES,
    Arguments,
    Nest,
    check_tile,
    share,
    split_index,
    tile_start,
    tiles,
)
from tilewright.targets.cpu.kernels.padding import Copies, PaddedSource, is_padded
from tilewright.targets.cpu.kernels.tile_arithmetic import SHARES
from tilewright.targets.workload import Workload

tirx = lazy_module("tvm.tirx")
ir_builder = lazy_module("tvm.script.ir_builder")
T = lazy_module("tvm.script.ir_builder.tirx")

COPY_ALL, COPY_SHARE, COPY_NOTHING = range(3)
"""Values of the knob `padding`: copy all data to a padded buffer before the convolution, let each
parallel task copy the data of its share, or copy nothing."""
TILE_COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Numbers of columns that a register tile may have."""


def window_knobs(w: Workload, block: int, rows: int, taps: int) -> tuple[Knob, ...]:
    """Return the knobs that depthwise and grouped convolutions share.

    Args:
        w: the workload.
        block: output channels per block.
        rows: largest number of rows of a register tile.
        taps: largest number of kernel positions whose code is unrolled.
    """
    fits = STACK_BYTES // (4 * block)
    return (
        Knob("tile_columns", tuple(t for t in TILE_COLUMNS if t <= min(w.out_width, fits))),
        Knob("tile_rows", tuple(range(1, min(rows, w.out_height) + 1))),
        Knob("row_shares", tuple(s for s in SHARES if s <= tiles(w.out_height, 2))),
        Knob("channels_first", (0, 1)),
        Knob("rows_inside", (0, 1)),
        Knob("unroll_kernel", (0, 1, 2) if 1 < w.kernel_h <= taps / w.kernel_w else (0, 1)),
        Knob("padding", (0, 1, 2) if is_padded(w) else (COPY_NOTHING,)),
    )


def even_shares(w: Workload, tasks: int, threads: int, offered: tuple[int, ...]) -> int:
    """Choose the number of parts into which image rows are divided, so that all threads are busy.

    Args:
        w: the workload.
        tasks: number of groups of output channels, each of which is a separate task.
        threads: number of threads.
        offered: possible numbers of parts.

    Returns:
        The smallest number that divides the work evenly between the threads, or the next smaller
        number of `offered`.
    """
    wanted = threads // gcd(w.batch * tasks, threads)
    return max(s for s in offered if s <= wanted)


TilePixels = tuple[Expression, Callable[[Expression], Expression], tuple[int, int]]
"""Pixels that one row of a register tile covers: the image row; a function that maps the index of a
pixel in the tile to its image column; and the index of the first pixel to compute with the index
after the last one."""


class Taps(Protocol):
    """Code that multiplies the data by the weights of one kernel position, called a tap.

    Depthwise and grouped convolutions only differ in this code. A task computes some output
    channels of an image.
    """

    @property
    def tasks(self) -> int:
        """Number of groups of output channels, each of which a separate task computes."""

    @property
    def blocks(self) -> int:
        """Number of blocks of input channels that a task reads."""

    @property
    def sums(self) -> int:
        """Number of blocks of output channels per register tile.

        Each block has one vector of accumulators per pixel.
        """

    @property
    def unrolled(self) -> int:
        """Number of unrolled multiply-adds per kernel position, pixel and accumulator vector."""

    def first_block(self, task: Expression) -> Expression:
        """Return the index of the first block of input channels that a task reads.

        Args:
            task: index of the task.
        """

    def add(
        self, arguments: Arguments, task: Expression, source: PaddedSource, sums: list[TirBuffer],
        tap: tuple[Expression, Expression], pixels: TilePixels,
    ) -> None:  # fmt: skip
        """Add code that accumulates products of one kernel position for a row of a register tile.

        Args:
            arguments: parameters of the function.
            task: index of the task.
            source: source of the data.
            sums: one buffer of accumulators per block of output channels.
            tap: kernel row and kernel column.
            pixels: pixels of the row to which products are added.
        """


class WindowLoops:
    """Builder of the loops of one depthwise or grouped convolution.

    Args:
        w: the workload.
        values: the config, as knob values by knob name.
        taps: builder of the multiply-adds of one kernel position, called a tap.
        in_block: input channels per block.
        out_block: output channels per block.
    """

    def __init__(
        self, w: Workload, values: KnobValues, taps: Taps, in_block: int, out_block: int
    ) -> None:
        self.w, self.v, self.taps = w, values, taps
        self.in_block, self.out_block = in_block, out_block
        self.height, self.width = values["tile_rows"], values["tile_columns"]
        self.row_tiles = tiles(w.out_height, self.height)
        self.copies = values["padding"] != COPY_NOTHING
        self.reach_h = w.dilation_h * (w.kernel_h - 1) + 1
        self.reach_w = w.dilation_w * (w.kernel_w - 1) + 1
        self.pieces = self._pieces()
        self._check()

    def _check(self) -> None:
        """Raise `DoesNotApply` if a register tile or the unrolled code is too large."""
        v, w = self.v, self.w
        tile = self.height * self.width * self.taps.sums
        kernel = (1, w.kernel_w, w.kernel_h * w.kernel_w)[v["unroll_kernel"]]
        border = sum(end < 0 for _, end in self.pieces)
        written = kernel * (len(self.pieces) - border) + border * max(kernel, w.kernel_w)
        if self._tests_rows():
            written += (w.kernel_w if v["unroll_kernel"] else 1) * len(self.pieces)
        check_tile(tile, tile * self.taps.unrolled * written)

    def _tests_rows(self) -> bool:
        """Return whether register tiles test at run time if kernel rows lie in the padding."""
        return not self.copies and bool(
            self.w.pad_top or self._ends_outside(self.w.out_height - 1, True)
        )

    def _ends_outside(self, at: int, vertical: bool) -> bool:
        """Return whether the input window of an output row or column ends outside the image.

        Args:
            at: the output row or column.
            vertical: whether `at` is a row.
        """
        w = self.w
        if vertical:
            return at * w.stride_h - w.pad_top + self.reach_h > w.height
        return at * w.stride_w - w.pad_left + self.reach_w > w.width

    def _pieces(self) -> list[tuple[int, int]]:
        """Divide the columns of register tiles into one common loop and tiles with own code.

        A tile has its own code if it touches the padding, or if it begins earlier than its index
        says because it would otherwise reach beyond the last column.

        Returns:
            Pairs of integers. The first pair, which is absent if there is no loop, is (first tile,
            tile after the last) of the loop. Each other pair is (first output column, -1) of a tile
            with its own code.
        """
        w, count = self.w, tiles(self.w.out_width, self.width)
        inner = []
        for tile in range(count):
            is_whole = (tile + 1) * self.width <= w.out_width
            touches = tile * self.width * w.stride_w < w.pad_left or self._ends_outside(
                min((tile + 1) * self.width, w.out_width) - 1, False
            )
            if is_whole and (self.copies or not touches):
                inner.append(tile)
        pieces = [] if not inner else [(inner[0], inner[-1] + 1)]
        for tile in range(count):
            if tile not in inner:
                pieces.append((min(tile * self.width, w.out_width - self.width), -1))
        return pieces

    def write(self, arguments: Arguments) -> None:
        """Add the whole kernel to the function that is being built.

        Args:
            arguments: parameters of the function.
        """
        w, v = self.w, self.v
        self.a = arguments
        kind = "float32" if w.dequantises else w.dtype

        def converted(number: Expression) -> Expression:
            return real(number, arguments.zero) if w.dequantises else number

        copies = Copies(w, arguments.data, self.in_block, kind, converted)
        full_copy = copies.of_everything() if v["padding"] == COPY_ALL else None
        with T.parallel(0, w.batch * self.taps.tasks * v["row_shares"]) as chunk:
            if v["channels_first"]:
                n, task, part = split_index(chunk, w.batch, self.taps.tasks, v["row_shares"])
            else:
                n, part, task = split_index(chunk, w.batch, v["row_shares"], self.taps.tasks)
            rows = share(part, v["row_shares"], self.row_tiles)
            first = self.taps.first_block(task)

            def read_data(c: Expression, y: Expression, x: Expression, i: Expression) -> Expression:
                return converted(arguments.data[n, first + c, y, x, i])

            def read_copy(c: Expression, y: Expression, x: Expression, i: Expression) -> Expression:
                assert full_copy is not None
                return full_copy[n, first + c, y + w.pad_top, x + w.pad_left, i]

            source = PaddedSource(read_data if full_copy is None else read_copy)
            if v["padding"] == COPY_SHARE:
                source = self._share_copy(copies, n, first, rows)
            self._task(n, task, rows, source)

    def _task(
        self,
        n: Expression,
        task: Expression,
        rows: tuple[Expression, Expression],
        source: PaddedSource,
    ) -> None:
        def tile(row: Expression, x: Expression, piece: tuple[int, int], tests: bool) -> None:
            y = tile_start(row, self.w.out_height, self.height)
            self._tile(n, task, source, (y, x), piece[1] < 0, tests)

        def columns(piece: tuple[int, int]) -> AbstractContextManager[Expression | None]:
            return nullcontext(None) if piece[1] < 0 else T.serial(*piece)

        def row_of(row: Expression, body: Callable[[bool], None]) -> None:
            if not self._tests_rows():
                body(False)
                return
            with T.If(self._inner(row)):
                with T.Then():
                    body(False)
                with T.Else():
                    body(True)

        def place(piece: tuple[int, int], index: Expression | None) -> Expression:
            return piece[0] if index is None else index * self.width

        if self.v["rows_inside"]:
            for piece in self.pieces:
                with columns(piece) as index, T.serial(*rows) as row:
                    row_of(row, partial(tile, row, place(piece, index), piece))
            return
        with T.serial(*rows) as row:

            def all_columns(tests: bool) -> None:
                for piece in self.pieces:
                    with columns(piece) as index:
                        tile(row, place(piece, index), piece, tests)

            row_of(row, all_columns)

    def _inner(self, row: Expression) -> Condition:
        """Return a condition that is true for rows of tiles that read no upper or lower padding.

        Args:
            row: index of the row of tiles.
        """
        w = self.w
        top = tile_start(row, w.out_height, self.height) * w.stride_h - w.pad_top
        bottom = top + (self.height - 1) * w.stride_h + self.reach_h
        return tirx.all(top >= 0, bottom <= w.height)

    def _tile(
        self, n: Expression, task: Expression, source: PaddedSource,
        at: tuple[Expression, Expression], border: bool, tests: bool,
    ) -> None:  # fmt: skip
        """Add the code of one register tile to the function.

        Args:
            n: number of the image.
            task: number of the task.
            source: source of the data.
            at: first output row and column of the tile.
            border: whether the tile has its own code. Its column is then a constant, and pixels
                that read padding are left out.
            tests: whether the code tests for each kernel row if it lies in the padding.
        """
        size, kind = self.width * self.out_block, sums_type(self.w)
        sums = [
            [T.alloc_buffer((size,), kind) for _ in range(self.taps.sums)]
            for _ in range(self.height)
        ]
        for buffers in sums:
            for buffer in buffers:
                with Nest.tile(self.width, self.out_block) as (x, i):
                    zero = tirx.const(0, kind)
                    T.buffer_store(buffer, zero, [x * self.out_block + i])
        self._kernel_rows(task, source, sums, at, border, tests)
        for r, buffers in enumerate(sums):
            for v, buffer in enumerate(buffers):
                with Nest.tile(self.width, self.out_block) as (x, i):
                    block = task * self.taps.sums + v
                    place = n, block, at[0] + r, at[1] + x, i
                    self.a.finish(buffer[x * self.out_block + i], place, (block, i))

    def _kernel_rows(
        self, task: Expression, source: PaddedSource, sums: list[list[TirBuffer]],
        at: tuple[Expression, Expression], border: bool, tests: bool,
    ) -> None:  # fmt: skip
        """Add the loops over the kernel's rows and columns of one register tile.

        Args:
            task: number of the task.
            source: source of the data.
            sums: buffers of sums, by row of the tile and block of output channels.
            at: first output row and column of the tile.
            border: whether the tile has its own code, which leaves out pixels that read padding.
            tests: whether the code tests for each kernel row if it lies in the padding.
        """
        w, unroll = self.w, self.v["unroll_kernel"]

        def column(kh: Expression, kw: Expression) -> None:
            pixels = 0, self.width
            if border and not self.copies:
                assert isinstance(at[1], int), "a tile at the border has a place of its own"
                assert isinstance(kw, int), "its taps are written out"
                pixels = self._pixels(at[1], kw)
            if pixels[0] >= pixels[1]:
                return

            def x(pixel: Expression) -> Expression:
                return (at[1] + pixel) * w.stride_w + kw * w.dilation_w - w.pad_left

            for r, buffers in enumerate(sums):
                y = (at[0] + r) * w.stride_h + kh * w.dilation_h - w.pad_top
                if tests:
                    with T.If(tirx.all(y >= 0, y < w.height)), T.Then():
                        self.taps.add(self.a, task, source, buffers, (kh, kw), (y, x, pixels))
                else:
                    self.taps.add(self.a, task, source, buffers, (kh, kw), (y, x, pixels))

        def row(kh: Expression) -> None:
            if unroll > 0 or border:
                for kw in range(w.kernel_w):
                    column(kh, kw)
            else:
                with T.serial(0, w.kernel_w) as kw:
                    column(kh, kw)

        if unroll > 1 and not tests:
            for kh in range(w.kernel_h):
                row(kh)
        else:
            with T.serial(0, w.kernel_h) as kh:
                row(kh)

    def _pixels(self, x: int, kw: int) -> tuple[int, int]:
        """Return the range of a tile's pixels that read data inside the image.

        Args:
            x: first output column of the tile.
            kw: number of the kernel column that the pixels are multiplied by.

        Returns:
            The first of these pixels, and the pixel after the last; (0, 0) if there are none.
        """
        w = self.w
        inside = [
            pixel
            for pixel in range(self.width)
            if 0 <= (x + pixel) * w.stride_w + kw * w.dilation_w - w.pad_left < w.width
        ]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _share_copy(
        self, copies: Copies, n: Expression, first: Expression, rows: tuple[Expression, Expression]
    ) -> PaddedSource:
        """Add loops that copy the data that a task reads, with padding.

        Args:
            copies: builder of the copy.
            n: number of the image.
            first: first block of input channels that the task reads.
            rows: the task's share of the rows of tiles: first, and after the last.

        Returns:
            The copy, as a source of data.
        """
        most = tiles(self.row_tiles, self.v["row_shares"]) * self.height
        top = tile_start(rows[0], self.w.out_height, self.height)
        return copies.of_rows((n, first), self.taps.blocks, top, min(most, self.w.out_height))


def build_function(
    windows: WindowLoops, data: tuple[int, ...], weights: tuple[int, ...], out: tuple[int, ...]
) -> PrimFunc:
    """Build the TensorIR function of a kernel.

    Args:
        windows: the loops.
        data: shape of the data.
        weights: shape of the packed weights.
        out: shape of the output.
    """
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        bias = (out[1], out[-1])
        windows.write(Arguments(windows.w, data, weights, bias, out))
    return builder.get()
