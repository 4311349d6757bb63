"""Divides a workload into the tiles of a template schedule and assigns them to virtual threads.

There are up to four virtual threads. The module also computes the micro-ops of a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import Layout, pack_uop
from tilewright.targets.vta.lowering.geometry import EPILOGUE_IMMEDIATE, Geometry, window
from tilewright.targets.vta.numba_decorators import helper, stage

_IMAGES, _ROWS, _CHANNELS = 0, 1, 2
_GROUP_ORDERS = (
    (_IMAGES, _ROWS, _CHANNELS),  # one thread
    (_ROWS, _IMAGES, _CHANNELS),  # number of virtual threads over rows
    (_ROWS, _CHANNELS, _IMAGES),  # threads over channels
)
"""Orders of the loops over groups of virtual threads, one row per number and kind of threads. A row
lists the dimensions of the loops, the outermost first. The loop over the groups of a grouped
convolution encloses these loops, and the loop over columns is inside of them."""


class TemplateTiling(NamedTuple):
    """Tile sizes of a template schedule, and the numbers of its tiles and thread groups.

    A thread group is a group of tiles that the virtual threads compute at the same time.
    """

    th: int  # size of a tile: output rows, output columns, input blocks and output blocks
    tw: int
    tci: int
    tco: int
    on: int  # number of virtual threads over output blocks
    hn: int  # number of virtual threads over rows
    threads: int  # number of virtual threads in all
    row_tiles: int  # number of tiles along rows, columns and output blocks
    col_tiles: int
    co_tiles: int
    nk: int  # reduction steps of a tile
    ih: int  # input rows that a tile reads; `iw`: input columns
    iw: int
    padded: bool  # whether the convolution has padding
    tile: int  # accumulators per tile
    inp: int  # input elements per reduction step
    wgt: int  # weight elements per reduction step
    operands: int  # epilogue steps that read an operand from the accumulators
    # thread groups from one image to the next; likewise for rows and output blocks
    images_step: int
    rows_step: int
    channels_step: int
    row_groups: int  # thread groups per column of tiles
    co_groups: int
    groups: int  # number of thread groups


class ThreadGroup(NamedTuple):
    """A group of tiles that the virtual threads compute at the same time, one tile per thread."""

    group: int  # channel group of the convolution
    image: int
    row_group: int  # index of the thread group along rows; `co_group`: along output blocks
    co_group: int
    col: int  # column of tiles
    cos: int  # number of threads over output blocks that have a tile
    threads: int  # number of threads that have a tile


class TemplateTile(NamedTuple):
    """Position of the tile that one virtual thread computes."""

    thread: int
    group: int
    image: int
    co: int  # index of the first output block
    row: int  # row and column of the first output pixel
    col: int


@stage
def tiling_of(
    geo: Geometry, epilogue: NDArray[np.int64], knobs: NDArray[np.int64], stock: bool
) -> TemplateTiling:
    """Compute the tile sizes of a template schedule.

    Args:
        geo: geometry of the workload.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values, shape (7,).
        stock: whether the restrictions of the stock compiler apply. Otherwise, there are no more
            threads than tiles.
    """
    th, tw, tci, tco, on, hn = knobs[1], knobs[2], knobs[3], knobs[4], knobs[5], knobs[6]
    row_tiles, col_tiles, co_tiles = geo.oh // th, geo.ow // tw, geo.co // tco
    if not stock:
        # One tile needs no second thread.
        on, hn = min(on, co_tiles), min(hn, row_tiles)
    operands = 0
    for e in range(epilogue.shape[0]):
        operands += epilogue[e, 0] != EPILOGUE_IMMEDIATE
    ih, iw = window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw)
    row_groups, co_groups = -(-row_tiles // hn), -(-co_tiles // on)
    order = _GROUP_ORDERS[2 if on == 2 else 1 if hn == 2 else 0]
    extents = (geo.batches, row_groups, co_groups)
    return TemplateTiling(
        th, tw, tci, tco, on, hn, on * hn, row_tiles, col_tiles, co_tiles, geo.ci // tci, ih, iw,
        geo.pad_top + geo.pad_left + geo.pad_bottom + geo.pad_right > 0,
        tco * th * tw, tci * ih * iw, tco * tci * geo.kh * geo.kw, operands,
        col_tiles * _iterations_inside(order, extents, _IMAGES),
        col_tiles * _iterations_inside(order, extents, _ROWS),
        col_tiles * _iterations_inside(order, extents, _CHANNELS),
        row_groups, co_groups, geo.groups * geo.batches * row_groups * col_tiles * co_groups,
    )  # fmt: skip


@helper
def _iterations_inside(
    order: tuple[int, int, int], extents: tuple[int, int, int], walked: int
) -> int:
    """Return the product of the iterations of all loops inside the loop over one axis.

    Args:
        order: axes of the three loops (images, rows or channels), outermost first.
        extents: number of iterations along each axis, by axis number.
        walked: the axis.
    """
    inside = 1
    for place in range(2, -1, -1):
        if order[place] == walked:
            break
        inside *= extents[order[place]]
    return inside


@stage
def group_at(geo: Geometry, t: TemplateTiling, number: int) -> ThreadGroup:
    """Return a group of tiles that the virtual threads compute at the same time.

    Args:
        geo: geometry of the workload.
        t: sizes and numbers of the tiles.
        number: position of the group in the program, counted from 0.
    """
    row_group = number // t.rows_step % t.row_groups
    co_group = number // t.channels_step % t.co_groups
    # Without the stock restrictions the last group may have fewer threads.
    rows, cos = min(t.hn, t.row_tiles - row_group * t.hn), min(t.on, t.co_tiles - co_group * t.on)
    return ThreadGroup(
        number // (t.groups // geo.groups), number // t.images_step % geo.batches, row_group,
        co_group, number % t.col_tiles, cos, rows * cos,
    )  # fmt: skip


@stage
def tile_of(geo: Geometry, t: TemplateTiling, group: ThreadGroup, thread: int) -> TemplateTile:
    """Return the tile of a group that one virtual thread computes.

    Args:
        geo: geometry of the workload.
        t: sizes and numbers of the tiles.
        group: the group of tiles.
        thread: index of the thread.
    """
    row_tile = group.row_group * t.hn + thread // group.cos
    co_tile = group.co_group * t.on + thread % group.cos
    return TemplateTile(
        thread, group.group, group.image, group.group * geo.co + co_tile * t.tco,
        row_tile * t.th, group.col * t.tw,
    )  # fmt: skip


class LoopNest(NamedTuple):
    """The loops of a micro-op kernel, outermost first.

    Attributes:
        extents: number of iterations of each loop.
        dst: accumulator index step per iteration of each loop.
        src: input index step per iteration of each loop.
        wgt: weight index step per iteration of each loop.
    """

    extents: tuple[int, int, int, int, int, int]
    dst: tuple[int, int, int, int, int, int]
    src: tuple[int, int, int, int, int, int]
    wgt: tuple[int, int, int, int, int, int]


class KernelLoops(NamedTuple):
    """The two loops of a nest that run in hardware (-1: none), and the number of other iterations.

    The iterations of the other loops become micro-ops.
    """

    first: int  # index of the outer hardware loop in the nest; `second`: of the inner one
    second: int
    uops: int  # number of iterations of all other loops
    n0: int  # iterations of the outer hardware loop; `n1`: of the inner one
    n1: int
    d0: int  # accumulator index steps of these loops
    d1: int
    s0: int  # input index steps
    s1: int
    w0: int  # weight index steps
    w1: int


@stage
def gemm_nest(geo: Geometry, t: TemplateTiling) -> LoopNest:
    """Return the loops of a GEMM, outermost first.

    They iterate over input blocks, columns, kernel columns, kernel rows, output blocks and rows.

    Args:
        geo: geometry of the workload.
        t: sizes and numbers of the tiles.
    """
    kk = geo.kh * geo.kw
    return LoopNest(
        (t.tci, t.tw, geo.kw, geo.kh, t.tco, t.th),
        (0, 1, 0, 0, t.th * t.tw, t.tw),
        (t.ih * t.iw, geo.sw, geo.dw, geo.dh * t.iw, 0, geo.sh * t.iw),
        (kk, 0, 1, geo.kw, t.tci * kk, 0),
    )


@stage
def reset_nest(t: TemplateTiling) -> LoopNest:
    """Return the loops of an accumulator reset: the accumulator loops of `gemm_nest`.

    Args:
        t: sizes and numbers of the tiles.
    """
    return LoopNest(
        (1, t.tw, 1, 1, t.tco, t.th),
        (0, 1, 0, 0, t.th * t.tw, t.tw),
        (0, 0, 0, 0, 0, 0),
        (0, 0, 0, 0, 0, 0),
    )


@stage
def loops_of(nest: LoopNest) -> KernelLoops:
    """Divide loops into two loops that run in hardware and loops that are unrolled to micro-ops.

    The two outermost loops with more than one iteration run in hardware.

    Args:
        nest: the loops of a micro-op kernel.
    """
    first, second, uops = -1, -1, 1
    for loop in range(6):
        if nest.extents[loop] == 1:
            continue
        if first < 0:
            first = loop
        elif second < 0:
            second = loop
        else:
            uops *= nest.extents[loop]
    return KernelLoops(
        first, second, uops,
        _item(nest.extents, first, 1), _item(nest.extents, second, 1),
        _item(nest.dst, first, 0), _item(nest.dst, second, 0),
        _item(nest.src, first, 0), _item(nest.src, second, 0),
        _item(nest.wgt, first, 0), _item(nest.wgt, second, 0),
    )  # fmt: skip


@helper
def _item(numbers: tuple[int, int, int, int, int, int], loop: int, otherwise: int) -> int:
    return numbers[loop] if loop >= 0 else otherwise


@helper
def write_uops(
    lay: Layout, uops: NDArray[np.uint64], at: int, nest: LoopNest, first: int, second: int,
    dst: int, src: int, wgt: int,
) -> None:  # fmt: skip
    """Write the micro-ops of a kernel, one per iteration of the loops that do not run in hardware.

    Micro-ops beyond the end of the scratchpad are omitted.

    Args:
        lay: bit positions of the instruction fields.
        uops: the micro-op scratchpad, shape (micro-ops,).
        at: position of the first micro-op.
        nest: the loops.
        first: index of the first hardware loop in the nest.
        second: index of the second hardware loop in the nest.
        dst: first accumulator index.
        src: first input index.
        wgt: first weight index.
    """
    n, d, s, w = nest
    e0 = 1 if first == 0 or second == 0 else n[0]
    e1 = 1 if first == 1 or second == 1 else n[1]
    e2 = 1 if first == 2 or second == 2 else n[2]
    e3 = 1 if first == 3 or second == 3 else n[3]
    e4 = 1 if first == 4 or second == 4 else n[4]
    e5 = 1 if first == 5 or second == 5 else n[5]
    for i0 in range(e0):
        for i1 in range(e1):
            for i2 in range(e2):
                for i3 in range(e3):
                    for i4 in range(e4):
                        for i5 in range(e5):
                            if at < uops.shape[0]:
                                uops[at] = pack_uop(
                                    lay,
                                    dst + i1 * d[1] + i4 * d[4] + i5 * d[5],
                                    src + i0 * s[0] + i1 * s[1] + i2 * s[2] + i3 * s[3] + i5 * s[5],
                                    wgt + i0 * w[0] + i2 * w[2] + i3 * w[3] + i4 * w[4],
                                )
                            at += 1
