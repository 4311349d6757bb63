"""Implements what convolutions with groups have in common: tasks, tiles of rows × columns, and
padding.

    parallel (images, output channels, shares of the rows)
      rows of tiles, columns of tiles     or the other way round
        kernel rows, kernel columns       unrolled or not
          what a tap adds to the tile     by the kernel: `Taps`
        bias, residual, clip

Padding is done in one of three ways (`padding`): all data is copied into a padded tensor first (0).
A task copies the rows it reads (1). Or nothing is copied (2). Then tiles at the left and right
border are written out separately, without the taps that fall outside. Rows of tiles at the upper
and lower border test each kernel row.
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
TILE_COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
"""Columns of a register tile that a config may have."""


def window_knobs(w: Workload, block: int, rows: int, taps: int) -> tuple[Knob, ...]:
    """The decisions that do not depend on what a tap is; tiles of at most `rows` rows, and no more
    than `taps` unrolled."""
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
    """Of the numbers of shares of the rows `offered` the one that gives all threads equally much,
    or nearly; the fewest."""
    wanted = threads // gcd(w.batch * tasks, threads)
    return max(s for s in offered if s <= wanted)


TilePixels = tuple[Expression, Callable[[Expression], Expression], tuple[int, int]]
"""Pixels of a row of a tile: the image row, the image column of a pixel of the tile, and which of
the tile's pixels there are (first, past the last)."""


class Taps(Protocol):
    """What differs between kernels."""

    @property
    def tasks(self) -> int:
        """Of output channels."""

    @property
    def blocks(self) -> int:
        """Of input channels, read by one task."""

    @property
    def sums(self) -> int:
        """Blocks of output channels of a tile, each a vector a pixel."""

    @property
    def unrolled(self) -> int:
        """Multiply-adds of a tap, pixel and vector that are written out."""

    def first_block(self, task: Expression) -> Expression:
        """Of input channels."""

    def add(
        self, arguments: Arguments, task: Expression, source: PaddedSource, sums: list[TirBuffer],
        tap: tuple[Expression, Expression], pixels: TilePixels,
    ) -> None:  # fmt: skip
        """Adds one tap, (kernel row, kernel column), to a row of the tile: `sums` a buffer a vector
        of output channels; `pixels` the image row, the image column of a pixel of the tile, and
        which of its pixels there are."""


class WindowLoops:
    """Writes the loops of one kernel."""

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
        v, w = self.v, self.w
        tile = self.height * self.width * self.taps.sums
        kernel = (1, w.kernel_w, w.kernel_h * w.kernel_w)[v["unroll_kernel"]]
        border = sum(end < 0 for _, end in self.pieces)
        written = kernel * (len(self.pieces) - border) + border * max(kernel, w.kernel_w)
        if self._tests_rows():
            written += (w.kernel_w if v["unroll_kernel"] else 1) * len(self.pieces)
        check_tile(tile, tile * self.taps.unrolled * written)

    def _tests_rows(self) -> bool:
        return not self.copies and bool(self.w.pad_top or self._beyond(self.w.out_height - 1, True))

    def _beyond(self, at: int, vertical: bool) -> bool:
        """Whether the window of the output row or column `at` ends beyond the image."""
        w = self.w
        if vertical:
            return at * w.stride_h - w.pad_top + self.reach_h > w.height
        return at * w.stride_w - w.pad_left + self.reach_w > w.width

    def _pieces(self) -> list[tuple[int, int]]:
        """Tiles of columns: (first, past the last) of those that a loop can do, and each of the
        others, which the padding touches or which begins earlier, as (x, -1)."""
        w, count = self.w, tiles(self.w.out_width, self.width)
        inner = []
        for tile in range(count):
            whole = (tile + 1) * self.width <= w.out_width
            touches = tile * self.width * w.stride_w < w.pad_left or self._beyond(
                min((tile + 1) * self.width, w.out_width) - 1, False
            )
            if whole and (self.copies or not touches):
                inner.append(tile)
        found = [] if not inner else [(inner[0], inner[-1] + 1)]
        for tile in range(count):
            if tile not in inner:
                found.append((min(tile * self.width, w.out_width - self.width), -1))
        return found

    def write(self, arguments: Arguments) -> None:
        """The whole kernel, into the function that is being built."""
        w, v = self.w, self.v
        self.a = arguments
        kind = "float32" if w.dequantises else w.dtype

        def converted(number: Expression) -> Expression:
            return real(number, arguments.zero) if w.dequantises else number

        copies = Copies(w, arguments.data, self.in_block, kind, converted)
        whole = copies.of_everything() if v["padding"] == COPY_ALL else None
        with T.parallel(0, w.batch * self.taps.tasks * v["row_shares"]) as chunk:
            if v["channels_first"]:
                n, task, part = split_index(chunk, w.batch, self.taps.tasks, v["row_shares"])
            else:
                n, part, task = split_index(chunk, w.batch, v["row_shares"], self.taps.tasks)
            rows = share(part, v["row_shares"], self.row_tiles)
            first = self.taps.first_block(task)

            def plain(c: Expression, y: Expression, x: Expression, i: Expression) -> Expression:
                return converted(arguments.data[n, first + c, y, x, i])

            def copied(c: Expression, y: Expression, x: Expression, i: Expression) -> Expression:
                assert whole is not None
                return whole[n, first + c, y + w.pad_top, x + w.pad_left, i]

            source = PaddedSource(plain if whole is None else copied)
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
        """Whether no window of a row of tiles touches the padding above or below."""
        w = self.w
        top = tile_start(row, w.out_height, self.height) * w.stride_h - w.pad_top
        bottom = top + (self.height - 1) * w.stride_h + self.reach_h
        return tirx.all(top >= 0, bottom <= w.height)

    def _tile(
        self, n: Expression, task: Expression, source: PaddedSource,
        at: tuple[Expression, Expression], border: bool, tests: bool,
    ) -> None:  # fmt: skip
        """One register tile whose first pixel is `at`; a `border` tile has a constant column."""
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
                    where = n, block, at[0] + r, at[1] + x, i
                    self.a.finish(buffer[x * self.out_block + i], where, (block, i))

    def _kernel_rows(
        self, task: Expression, source: PaddedSource, sums: list[list[TirBuffer]],
        at: tuple[Expression, Expression], border: bool, tests: bool,
    ) -> None:  # fmt: skip
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
        """Which pixels of a tile at column `x` a kernel column has inside the image."""
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
        """What a task reads, between its padding."""
        most = tiles(self.row_tiles, self.v["row_shares"]) * self.height
        top = tile_start(rows[0], self.w.out_height, self.height)
        return copies.of_rows((n, first), self.taps.blocks, top, min(most, self.w.out_height))


def written(
    windows: WindowLoops, data: tuple[int, ...], weights: tuple[int, ...], out: tuple[int, ...]
) -> PrimFunc:
    """The function of TensorIR with those shapes of arguments."""
    with ir_builder.IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        bias = (out[1], out[-1])
        windows.write(Arguments(windows.w, data, weights, bias, out))
    return builder.get()
