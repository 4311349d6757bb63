"""Lowers schedules of ML²Tuner's extended VTA like its compiler, which checks no sizes.

The space has three knobs: virtual threads (1 to 8), tile height and tile width (1 to 56 each).
Every layer has all 25,088 schedules, because nothing is verified. Tiles that exceed a scratchpad
wrap around in it, and padding that exceeds its four-bit field is truncated. Only running the
program reveals such errors.

The compiler's source code is not public. Where the publication leaves details open, we chose the
following. A reduction step processes one input block and one output block. Consecutive tiles belong
to consecutive threads. Among tiles, the output block varies fastest, then the column, then the row.
The loops of a GEMM and the tokens are those of the stock template. A tile at the image border is
computed in full, including pixels outside of the image. Only the pixels inside are stored, row by
row if columns are cut off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.instruction_format import (
    INP,
    LOAD,
    OUT,
    STORE,
    UOP,
    WGT,
    Layout,
    pack_uop,
)
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.geometry import Geometry, window
from tilewright.targets.vta.lowering.instruction_writer import ProgramState
from tilewright.targets.vta.lowering.invalid_configs import OK, OUT_OF_SPACE
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, kernel
from tilewright.targets.vta.spec import Machine

EVERY_GROUP = 1 << 40

_L, _C, _S = 0, 1, 2


def unchecked_space() -> Space:
    """Create the unchecked space: 1 to 8 threads, 1 to 56 tile rows, 1 to 56 tile columns.

    In the flat index, the number of threads varies fastest.
    """
    sizes = tuple(range(1, 57))
    return Space("unchecked", (Knob("nthread", tuple(range(1, 9))), Knob("tile_h", sizes),
                               Knob("tile_w", sizes)))  # fmt: skip


@kernel
def fits(geo: Geometry, m: Machine, knobs: NDArray[np.int64]) -> bool:
    """Return whether a schedule of the unchecked space computes correct results.

    This is the case if no scratchpad wraps around and no padding is truncated.

    Args:
        geo: geometry of the workload.
        m: the machine.
        knobs: threads, tile rows and tile columns, shape (3,).
    """
    v, th, tw = knobs[0], knobs[1], knobs[2]
    ih, iw = window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw)
    below = (-(-geo.oh // th) - 1) * th * geo.sh - geo.pad_top + ih - geo.h
    right = (-(-geo.ow // tw) - 1) * tw * geo.sw - geo.pad_left + iw - geo.w
    return (
        v * ih * iw <= m.inp_built and v * th * tw <= m.acc_built
        and v * geo.kh * geo.kw <= m.wgt_built and v * (geo.kh * th + 1) <= m.uop_built
        and max(below, right) <= 15
    )  # fmt: skip


@kernel
def stored_blocks(geo: Geometry, knobs: NDArray[np.int64], most_groups: int) -> NDArray[np.bool_]:
    """Return which output elements a shortened program stores.

    Args:
        geo: geometry of the workload.
        knobs: number of threads, tile rows and tile columns, shape (3,).
        most_groups: number of groups of tiles after which the program ends; a group has one tile
            per thread.

    Returns:
        Mask of shape (n, co, oh, ow), where n and co count blocks.
    """
    v, th, tw = knobs[0], knobs[1], knobs[2]
    row_tiles, col_tiles = -(-geo.oh // th), -(-geo.ow // tw)
    co_all = geo.out_blocks
    stored = np.zeros((geo.batches, co_all, geo.oh, geo.ow), np.bool_)
    for tile in range(min(geo.batches * row_tiles * col_tiles * co_all, most_groups * v)):
        n, co, row, col = _place(tile, co_all, row_tiles, col_tiles, th, tw)
        stored[n, co, row : row + th, col : col + tw] = True
    return stored


@allocating_helper
def lower_unchecked(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: ProgramState,
    options: tuple[int, ...],
) -> int:  # fmt: skip
    """Write the program of one schedule of the unchecked space. No schedule is rejected.

    The second operand of every epilogue step must be a constant.

    Args:
        geo: geometry of the workload.
        m: the machine.
        lay: bit positions of the instruction fields.
        epilogue: ALU operations as rows (operand kind, opcode, immediate) of `epilogue_steps`,
            shape (steps, 3).
        knobs: knob values (not indices), shape (3,).
        out: filled with instructions, uint64, shape (instructions, 2).
        uops: filled with micro-ops, uint64, shape (micro-ops,).
        state: filled with the program's counts, such as the numbers of instructions.
        options: number of groups of tiles after which the program ends, shape (1,).

    Returns:
        OK, or OUT_OF_SPACE if `out` is too short.
    """
    most_groups = options[0]
    v, th, tw = knobs[0], knobs[1], knobs[2]
    ih, iw = window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw)
    kk = geo.kh * geo.kw
    instruction_writer.start(state)
    state.inp_used = v * ih * iw
    state.wgt_used = v * kk
    state.acc_used = v * th * tw
    row_tiles, col_tiles = -(-geo.oh // th), -(-geo.ow // tw)
    co_all = geo.out_blocks
    tiles = geo.batches * row_tiles * col_tiles * co_all
    tiles = min(tiles, most_groups * v)
    groups = -(-tiles // v)
    count = _write_kernels(geo, lay, uops, v, th, tw, ih, iw)
    state.uops = v * (1 + count)
    instruction_writer.memory(
        state, out, LOAD, UOP, 0, geo.uop_base, 1, v * (1 + count), v * (1 + count), 0, 0, 0, 0,
        m.uop_bytes,
    )  # fmt: skip
    for group in range(groups):
        threads = min(v, tiles - group * v)
        state.tiles += threads
        for t in range(threads):
            if group > 0:
                instruction_writer.pop(state, out, _S, _C)
            bgn = t * (1 + count)
            instruction_writer.gemm(state, out, lay, 1, bgn, bgn + 1, th, tw, tw, 1, 0, 0, 0, 0)
        for k in range(geo.ci):
            state.steps += threads
            for t in range(threads):
                n, co, row, col = _place(group * v + t, co_all, row_tiles, col_tiles, th, tw)
                # Weights beyond the last block of an image are zero, so any data can be used there.
                block = min(co // geo.co * geo.ci + k, geo.inp_blocks - 1)
                channel = n * geo.inp_blocks + block
                if group > 0 or k > 0:
                    instruction_writer.pop(state, out, _C, _L)
                _load_window(state, out, geo, m, channel, row, col, ih, iw, t * ih * iw)
                instruction_writer.memory(
                    state, out, LOAD, WGT, t * kk, geo.wgt_base + (co * geo.ci + k) * kk,
                    1, kk, kk, 0, 0, 0, 0, m.wgt_bytes,
                )  # fmt: skip
                instruction_writer.push(state, out, _L, _C)
            for t in range(threads):
                instruction_writer.pop(state, out, _L, _C)
                bgn = t * (1 + count) + 1
                # The hardware loops run over the columns of the tile, then over the columns of the
                # kernel, or over its rows if the kernel has one column.
                if geo.kw > 1:
                    instruction_writer.gemm(
                        state, out, lay, 0, bgn, bgn + count, tw, geo.kw, 1, 0, geo.sw, geo.dw, 0, 1
                    )
                else:
                    instruction_writer.gemm(
                        state, out, lay, 0, bgn, bgn + count, tw, th, 1, tw, geo.sw, geo.sh * iw,
                        0, 0,
                    )  # fmt: skip
                # The slot is free for its next load, unless this thread has no further tile.
                if k < geo.ci - 1 or group * v + t + v < tiles:
                    instruction_writer.push(state, out, _C, _L)
        for t in range(threads):
            bgn = t * (1 + count)
            for e in range(epilogue.shape[0]):
                instruction_writer.alu(
                    state, out, lay, bgn, bgn + 1, th, tw, tw, 1, tw, 1, epilogue[e, 1], 1,
                    epilogue[e, 2],
                )  # fmt: skip
            instruction_writer.push(state, out, _C, _S)
            instruction_writer.pop(state, out, _C, _S)
            n, co, row, col = _place(group * v + t, co_all, row_tiles, col_tiles, th, tw)
            _store(state, out, geo, m, n * co_all + co, row, col, th, tw, t * th * tw)
            if group * v + t + v < tiles:
                instruction_writer.push(state, out, _S, _C)
    instruction_writer.push(state, out, _S, _C)
    instruction_writer.pop(state, out, _S, _C)
    instruction_writer.finish(state, out)
    return OUT_OF_SPACE if state.instructions > out.shape[0] else OK


@helper
def _place(
    tile: int, co_all: int, row_tiles: int, col_tiles: int, th: int, tw: int
) -> tuple[int, int, int, int]:
    """Return the image, the output block, the first row and the first column of a tile.

    Args:
        tile: number of the tile.
        co_all: number of output blocks of the workload.
        row_tiles: number of tiles along rows.
        col_tiles: number of tiles along columns.
        th: rows per tile.
        tw: columns per tile.
    """
    pixel = tile // co_all
    row = pixel // col_tiles % row_tiles * th
    return pixel // col_tiles // row_tiles, tile % co_all, row, pixel % col_tiles * tw


@helper
def _write_kernels(
    geo: Geometry, lay: Layout, uops: NDArray[np.uint64], v: int, th: int, tw: int, ih: int, iw: int
) -> int:
    """Write the micro-ops of each virtual thread: one for reset and ALU, and those of the GEMM.

    Micro-ops beyond the end of the scratchpad overwrite its beginning.

    Args:
        geo: geometry of the workload.
        lay: bit positions of the instruction fields.
        uops: micro-op scratchpad, shape (micro-ops,); changed in place.
        v: number of virtual threads.
        th: output rows per tile.
        tw: output columns per tile.
        ih: input rows per tile.
        iw: input columns per tile.

    Returns:
        The number of GEMM micro-ops per thread.
    """
    rows = th if geo.kw > 1 else 1
    count = geo.kh * rows
    at = 0
    for t in range(v):
        uops[at % uops.shape[0]] = pack_uop(lay, t * th * tw, t * th * tw, 0)
        at += 1
        for i in range(geo.kh):
            for r in range(rows):
                uops[at % uops.shape[0]] = pack_uop(
                    lay,
                    t * th * tw + r * tw,
                    t * ih * iw + (i * geo.dh + r * geo.sh) * iw,
                    t * geo.kh * geo.kw + i * geo.kw,
                )
                at += 1
    return count


@helper
def _load_window(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, m: Machine, channel: int,
    row: int, col: int, ih: int, iw: int, sram: int,
) -> None:  # fmt: skip
    y0, x0 = row * geo.sh - geo.pad_top, col * geo.sw - geo.pad_left
    top, left = max(0, -y0), max(0, -x0)
    bottom, right = max(0, y0 + ih - geo.h), max(0, x0 + iw - geo.w)
    dram = geo.inp_base + (channel * geo.h + max(0, y0)) * geo.w + max(0, x0)
    instruction_writer.memory(
        state, out, LOAD, INP, sram, dram, ih - top - bottom, iw - left - right, geo.w,
        top, bottom, left, right, m.inp_bytes,
    )  # fmt: skip


@helper
def _store(
    state: ProgramState, out: NDArray[np.uint64], geo: Geometry, m: Machine, channel: int,
    row: int, col: int, th: int, tw: int, sram: int,
) -> None:  # fmt: skip
    """Write the STOREs of the part of a tile that lies inside the image.

    The part is stored in one transfer, or in one transfer per row if columns are cut off.

    Args:
        state: counts of the program; changed in place.
        out: the instructions, shape (instructions, 2); changed in place.
        geo: geometry of the workload.
        m: the machine.
        channel: index of the output block, over all images.
        row: first output row of the tile.
        col: first output column of the tile.
        th: output rows per tile.
        tw: output columns per tile.
        sram: first scratchpad element.
    """
    rows, cols = min(th, geo.oh - row), min(tw, geo.ow - col)
    dram = geo.out_base + (channel * geo.oh + row) * geo.ow + col
    if cols == tw:
        instruction_writer.memory(
            state, out, STORE, OUT, sram, dram, rows, cols, geo.ow, 0, 0, 0, 0, m.out_bytes
        )
        return
    for r in range(rows):
        instruction_writer.memory(
            state, out, STORE, OUT, sram + r * tw, dram + r * geo.ow, 1, cols, cols, 0, 0, 0, 0,
            m.out_bytes,
        )  # fmt: skip
