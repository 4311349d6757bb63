"""The stock compiler's conv2d template: its knobs, its loop nest, its instruction stream.

Reproduces TVM's VTA schedule (vta_conv2d.py with its transform passes and runtime) exactly where
that compiler succeeds. Where it gives up (a tile that is no 2-D DMA, padding on an inner block, an
odd number of tiles for two threads, …) the same knob values are lowered all the same unless `stock`
is set; then they fail with the stock stack's class.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.base import Knob, Space
from tilewright.targets.vta.isa import ACC, INP, LOAD, OUT, STORE, UOP, WGT, Layout, pack_uop
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.failures import (
    ALLOC_ACC,
    ALLOC_INP,
    ALLOC_WGT,
    EMPTY_WINDOW,
    LOAD2D,
    MATCH,
    NBYTES,
    OK,
    PADINNER,
    STORE2D,
    UOP_CAPACITY,
    VERIFYDEP,
)
from tilewright.targets.vta.lowering.geometry import (
    EPILOGUE_BIAS,
    EPILOGUE_IMMEDIATE,
    EPILOGUE_TENSOR,
    Geometry,
)
from tilewright.targets.vta.spec import Machine

KNOBS = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")

_L, _C, _S = 0, 1, 2


def divisors(n: int) -> tuple[int, ...]:
    """All divisors in increasing order."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def template_space(geo: Geometry) -> Space:
    """The stock template's knobs for a packed workload; the flat index counts tile_b fastest."""
    values = (
        divisors(geo.batches), divisors(geo.oh), divisors(geo.ow), divisors(geo.ci),
        divisors(geo.co), (1, 2), (1, 2),
    )  # fmt: skip
    return Space("template", tuple(Knob(n, v) for n, v in zip(KNOBS, values, strict=True)))


@nb.njit(cache=True)
def window(tile: int, stride: int, kernel: int, dilation: int) -> int:
    """Input rows (columns) that `tile` output rows (columns) read."""
    return (tile - 1) * stride + (kernel - 1) * dilation + 1


@nb.njit(cache=True)
def stock_failure(
    geo: Geometry, m: Machine, operands: int, th: int, tw: int, tci: int, tco: int, on: int, hn: int
) -> int:
    """The stock stack's verdict: the first class that applies, build errors before run errors."""
    ih, iw = window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw)
    padded = geo.pad_top + geo.pad_left + geo.pad_bottom + geo.pad_right > 0
    if (on == 2 and (geo.co // tco) % 2) or (hn == 2 and (geo.oh // th) % 2):
        return MATCH
    if padded and tci > 1:
        return PADINNER
    if not padded and tci > 1 and ih > 1 and iw != geo.w and ih != geo.h:
        return LOAD2D
    if tco > 1 and th > 1 and tw != geo.ow and th != geo.oh:
        return STORE2D
    v = on * hn
    tile = tco * th * tw
    acc = v * tile * (4 if v == 4 else 1) + v * tile * operands
    if v * tci * ih * iw > 1 << m.log_inp_depth:
        return ALLOC_INP
    if v * tco * tci * geo.kh * geo.kw > 1 << m.log_wgt_depth:
        return ALLOC_WGT
    if acc > 1 << m.log_acc_depth:
        return ALLOC_ACC
    if v == 4:
        return NBYTES
    if _repeats_destination(geo, th, tw, tci, tco):
        return VERIFYDEP
    return OK


@nb.njit(cache=True)
def _repeats_destination(geo: Geometry, th: int, tw: int, tci: int, tco: int) -> bool:
    """Whether the runtime's check sees one accumulator index twice within two consecutive uops."""
    extents = (tci, tw, geo.kw, geo.kh, tco, th)
    hardware = 0
    reduction_unrolled = False
    after = 1
    for loop in range(6):
        extent = extents[loop]
        if extent == 1:
            continue
        if hardware < 2:
            hardware += 1
        elif loop == 0 or loop == 2 or loop == 3:
            reduction_unrolled = True
            after = 1
        else:
            after *= extent
    return reduction_unrolled and after < 3


@nb.njit(cache=True)
def _kernel_uops(
    geo: Geometry, lay: Layout, uops: NDArray[np.uint64], at: int,
    th: int, tw: int, tci: int, tco: int, thread: int, factors: NDArray[np.int64],
) -> int:  # fmt: skip
    """Write a GEMM's micro-ops at `at`; fills `factors` (iterations and six factors); returns
    count.

    Loop order outermost first: ic, x_j, d_j, d_i, c_o, x_i. The first two loops longer than one
    become hardware loops, the others are unrolled.
    """
    ih, iw = window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw)
    kk = geo.kh * geo.kw
    n = (tci, tw, geo.kw, geo.kh, tco, th)
    dst = (0, 1, 0, 0, th * tw, tw)
    src = (ih * iw, geo.sw, geo.dw, geo.dh * iw, 0, geo.sh * iw)
    wgt = (kk, 0, 1, geo.kw, tci * kk, 0)
    factors[:] = 0
    factors[0] = 1
    factors[1] = 1
    found = 0
    first = -1
    second = -1
    for loop in range(6):
        if n[loop] > 1 and found < 2:
            factors[found] = n[loop]
            factors[2 + found] = dst[loop]
            factors[4 + found] = src[loop]
            factors[6 + found] = wgt[loop]
            if found == 0:
                first = loop
            else:
                second = loop
            found += 1
    e0 = 1 if first == 0 or second == 0 else tci
    e1 = 1 if first == 1 or second == 1 else tw
    e2 = 1 if first == 2 or second == 2 else geo.kw
    e3 = 1 if first == 3 or second == 3 else geo.kh
    e4 = 1 if first == 4 or second == 4 else tco
    e5 = 1 if first == 5 or second == 5 else th
    d = thread * tco * th * tw
    s = thread * tci * ih * iw
    w = thread * tco * tci * kk
    count = 0
    for i0 in range(e0):
        for i1 in range(e1):
            for i2 in range(e2):
                for i3 in range(e3):
                    for i4 in range(e4):
                        for i5 in range(e5):
                            if at + count < uops.shape[0]:
                                uops[at + count] = pack_uop(
                                    lay,
                                    d + i1 + i4 * dst[4] + i5 * tw,
                                    s + i0 * src[0] + i1 * src[1] + i2 * src[2] + i3 * src[3]
                                    + i5 * src[5],
                                    w + i0 * kk + i2 + i3 * geo.kw + i4 * wgt[4],
                                )  # fmt: skip
                            count += 1
    return count


@nb.njit(cache=True)
def _reset_uops(
    lay: Layout, uops: NDArray[np.uint64], at: int, th: int, tw: int, tco: int, thread: int,
    factors: NDArray[np.int64],
) -> int:  # fmt: skip
    """As `_kernel_uops` for the accumulator reset; loop order x_j, c_o, x_i."""
    n = (tw, tco, th)
    dst = (1, th * tw, tw)
    factors[:] = 0
    factors[0] = 1
    factors[1] = 1
    found = 0
    e0, e1, e2 = tw, tco, th
    for loop in range(3):
        if n[loop] > 1 and found < 2:
            factors[found] = n[loop]
            factors[2 + found] = dst[loop]
            found += 1
            if loop == 0:
                e0 = 1
            elif loop == 1:
                e1 = 1
            else:
                e2 = 1
    base = thread * tco * th * tw
    count = 0
    for i0 in range(e0):
        for i1 in range(e1):
            for i2 in range(e2):
                if at + count < uops.shape[0]:
                    uops[at + count] = pack_uop(lay, base + i0 + i1 * dst[1] + i2 * tw, 0, 0)
                count += 1
    return count


@nb.njit(cache=True)
def lower_template(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    stock: bool, out: NDArray[np.uint64], uops: NDArray[np.uint64], state: NDArray[np.int64],
) -> int:  # fmt: skip
    """Write the program of one config; `knobs` (7,) are the knob *values*, `epilogue` (steps, 3) is
    of `epilogue_steps`. Returns a failure code.

    `out` (instructions, 2) and `uops` (micro-ops,) are filled; `state` (STATE_SIZE,) holds the
    counts (see `emit`).
    """
    th, tw, tci, tco, on, hn = knobs[1], knobs[2], knobs[3], knobs[4], knobs[5], knobs[6]
    row_tiles, col_tiles = geo.oh // th, geo.ow // tw
    co_tiles, nk = geo.co // tco, geo.ci // tci
    if not stock:
        # One tile needs no second thread.
        on, hn = min(on, co_tiles), min(hn, row_tiles)
    operands = 0
    for e in range(epilogue.shape[0]):
        operands += epilogue[e, 0] != EPILOGUE_IMMEDIATE
    ih, iw = window(th, geo.sh, geo.kh, geo.dh), window(tw, geo.sw, geo.kw, geo.dw)
    kk = geo.kh * geo.kw
    padded = geo.pad_top + geo.pad_left + geo.pad_bottom + geo.pad_right > 0
    tile = tco * th * tw
    v = on * hn
    instruction_writer.start(state)
    if stock:
        failure = stock_failure(geo, m, operands, th, tw, tci, tco, on, hn)
        if failure:
            return failure
    if v * tci * ih * iw > m.inp_built:
        return ALLOC_INP
    if v * tco * tci * kk > m.wgt_built:
        return ALLOC_WGT
    if v * tile * (1 + operands) > m.acc_built:
        return ALLOC_ACC

    state[instruction_writer.INP_USED] = v * tci * ih * iw
    state[instruction_writer.WGT_USED] = v * tco * tci * kk
    state[instruction_writer.ACC_USED] = v * tile * (1 + operands)
    row_groups = -(-row_tiles // hn)
    co_groups = -(-co_tiles // on)
    groups = geo.groups * geo.batches * row_groups * col_tiles * co_groups

    # Micro-op kernels: for each thread reset, GEMM, epilogue; each loaded before its first use.
    f_reset = np.empty(8, np.int64)
    f_gemm = np.empty(8, np.int64)
    reset_at = np.zeros(4, np.int64)
    gemm_at = np.zeros(4, np.int64)
    alu_at = np.zeros((4, max(1, epilogue.shape[0])), np.int64)
    loaded = np.zeros((4, 2 + epilogue.shape[0]), np.int64)
    n_reset = _reset_uops(lay, uops, 0, th, tw, tco, 0, f_reset)
    n_gemm = _kernel_uops(geo, lay, uops, 0, th, tw, tci, tco, 0, f_gemm)
    total_uops = v * (n_reset + n_gemm + epilogue.shape[0])
    if total_uops > 1 << m.log_uop_depth or total_uops > uops.shape[0]:
        return UOP_CAPACITY

    several = groups > 1
    if several:
        for _ in range(v):
            instruction_writer.push(state, out, _S, _C)

    # Group loops. One thread: batch, row, co, column. Threads over co: row, co, batch, column.
    # Threads over rows: row, batch, co, column. Outermost of all: the convolution's groups.
    outer0, outer1, outer2 = geo.batches, row_groups, co_groups
    if on == 2:
        outer0, outer1, outer2 = row_groups, co_groups, geo.batches
    elif hn == 2:
        outer0, outer1, outer2 = row_groups, geo.batches, co_groups
    for g in range(geo.groups):
        for i0 in range(outer0):
            for i1 in range(outer1):
                for i2 in range(outer2):
                    n, row_group, co_group = i0, i1, i2
                    if on == 2:
                        n, row_group, co_group = i2, i0, i1
                    elif hn == 2:
                        n, row_group, co_group = i1, i0, i2
                    for col in range(col_tiles):
                        # Without the stock restrictions the last group may have fewer threads.
                        rows_here = min(hn, row_tiles - row_group * hn)
                        cos_here = min(on, co_tiles - co_group * on)
                        threads = rows_here * cos_here
                        state[instruction_writer.TILES] += threads
                        # Threads without a tile hand their token on, or the next group's first
                        # reset would take it and overtake this group's store.
                        for _ in range(v - threads):
                            instruction_writer.pop(state, out, _S, _C)
                            instruction_writer.commit_pops(state, out, _C)
                        for t in range(threads):
                            if several:
                                instruction_writer.pop(state, out, _S, _C)
                            if not loaded[t, 0]:
                                loaded[t, 0] = 1
                                reset_at[t] = state[instruction_writer.UOPS]
                                _reset_uops(lay, uops, reset_at[t], th, tw, tco, t, f_reset)
                                _load_uops(state, out, m, geo, n_reset)
                            instruction_writer.gemm(
                                state, out, lay, 1, reset_at[t], reset_at[t] + n_reset,
                                f_reset[0], f_reset[1], f_reset[2], f_reset[3], 0, 0, 0, 0,
                            )  # fmt: skip
                            instruction_writer.push(state, out, _C, _L)
                        for k in range(nk):
                            state[instruction_writer.STEPS] += threads
                            for t in range(threads):
                                row = row_group * hn + t // cos_here
                                co = g * geo.co + (co_group * on + t % cos_here) * tco
                                instruction_writer.pop(state, out, _C, _L)
                                _load_window(
                                    state, out, geo, m, padded, n, g, k * tci, tci,
                                    row * th * geo.sh - geo.pad_top,
                                    col * tw * geo.sw - geo.pad_left,
                                    ih, iw, t * tci * ih * iw,
                                )  # fmt: skip
                                instruction_writer.region(
                                    state, out, LOAD, WGT, t * tco * tci * kk,
                                    geo.wgt_base + (co * geo.ci + k * tci) * kk,
                                    1, 0, tco, geo.ci * kk, tci * kk, m.wgt_bytes,
                                )  # fmt: skip
                                instruction_writer.push(state, out, _L, _C)
                            for t in range(threads):
                                row = row_group * hn + t // cos_here
                                co = g * geo.co + (co_group * on + t % cos_here) * tco
                                instruction_writer.pop(state, out, _L, _C)
                                if not loaded[t, 1]:
                                    loaded[t, 1] = 1
                                    gemm_at[t] = state[instruction_writer.UOPS]
                                    _kernel_uops(
                                        geo, lay, uops, gemm_at[t], th, tw, tci, tco, t, f_gemm
                                    )
                                    _load_uops(state, out, m, geo, n_gemm)
                                instruction_writer.gemm(
                                    state, out, lay, 0, gemm_at[t], gemm_at[t] + n_gemm,
                                    f_gemm[0], f_gemm[1], f_gemm[2], f_gemm[3], f_gemm[4],
                                    f_gemm[5], f_gemm[6], f_gemm[7],
                                )  # fmt: skip
                                if nk > 1:
                                    instruction_writer.push(state, out, _C, _L)
                                else:
                                    _epilogue(
                                        state, out, lay, uops, geo, m, epilogue, t, v, th, tw, tco,
                                        n, co, row * th, col * tw, alu_at, loaded,
                                    )  # fmt: skip
                                    instruction_writer.push(state, out, _C, _S)
                        if nk > 1:
                            for _ in range(threads):
                                instruction_writer.pop(state, out, _C, _L)
                            for t in range(threads):
                                row = row_group * hn + t // cos_here
                                co = g * geo.co + (co_group * on + t % cos_here) * tco
                                _epilogue(
                                    state, out, lay, uops, geo, m, epilogue, t, v, th, tw, tco,
                                    n, co, row * th, col * tw, alu_at, loaded,
                                )  # fmt: skip
                                instruction_writer.push(state, out, _C, _S)
                        for t in range(threads):
                            row = row_group * hn + t // cos_here
                            co = g * geo.co + (co_group * on + t % cos_here) * tco
                            instruction_writer.pop(state, out, _C, _S)
                            stored = min(tco, geo.out_blocks - co)
                            if stored > 0:
                                instruction_writer.region(
                                    state, out, STORE, OUT, t * tile,
                                    geo.out_base
                                    + ((n * geo.out_blocks + co) * geo.oh + row * th) * geo.ow
                                    + col * tw,
                                    stored, geo.oh * geo.ow, th, geo.ow, tw, m.out_bytes,
                                )  # fmt: skip
                            else:
                                instruction_writer.commit_pops(state, out, _S)
                            if several:
                                instruction_writer.push(state, out, _S, _C)
                        for _ in range(v - threads):
                            instruction_writer.push(state, out, _S, _C)
    # The stock runtime emits the last pop of a single-threaded program only after FINISH.
    if several and v >= 2:
        for _ in range(v):
            instruction_writer.pop(state, out, _S, _C)
    instruction_writer.push(state, out, _S, _C)
    instruction_writer.push(state, out, _L, _C)
    instruction_writer.pop(state, out, _S, _C)
    instruction_writer.pop(state, out, _L, _C)
    instruction_writer.commit_pops(state, out, _C)
    instruction_writer.finish(state, out)
    return instruction_writer.outcome(state, out)


@nb.njit(cache=True)
def _load_uops(
    state: NDArray[np.int64], out: NDArray[np.uint64], m: Machine, geo: Geometry, count: int
) -> None:
    at = state[instruction_writer.UOPS]
    instruction_writer.memory(
        state, out, LOAD, UOP, at, geo.uop_base + at, 1, count, count, 0, 0, 0, 0, m.uop_bytes
    )
    state[instruction_writer.UOPS] = at + count


@nb.njit(cache=True)
def _load_window(
    state: NDArray[np.int64], out: NDArray[np.uint64], geo: Geometry, m: Machine, padded: bool,
    n: int, g: int, ci: int, tci: int, y0: int, x0: int, ih: int, iw: int, sram: int,
) -> None:  # fmt: skip
    """The input window of a tile; what lies outside the image is zero-filled by the LOAD."""
    top, left = max(0, -y0), max(0, -x0)
    bottom, right = max(0, y0 + ih - geo.h), max(0, x0 + iw - geo.w)
    rows, cols = ih - top - bottom, iw - left - right
    # In place of blocks beyond the image's, whose weights are zero, its last one is loaded.
    there = geo.inp_blocks - g * geo.ci - ci
    channel = n * geo.inp_blocks + g * geo.ci + ci
    dram = geo.inp_base + (channel * geo.h + max(0, y0)) * geo.w + max(0, x0)
    one_by_one = 0
    if not padded:
        one_by_one = max(0, min(tci, there))
        if one_by_one > 0:
            instruction_writer.region(
                state, out, LOAD, INP, sram, dram,
                one_by_one, geo.h * geo.w, ih, geo.w, iw, m.inp_bytes,
            )  # fmt: skip
    elif rows <= 0 or cols <= 0:
        # A window wholly in the padding has no LOAD that fills it: x_size 0 writes nothing.
        state[instruction_writer.PROBLEM] = EMPTY_WINDOW
    for c in range(one_by_one, tci):
        instruction_writer.memory(
            state, out, LOAD, INP, sram + c * ih * iw, dram + min(c, there - 1) * geo.h * geo.w,
            rows, cols, geo.w, top, bottom, left, right, m.inp_bytes,
        )  # fmt: skip


@nb.njit(cache=True)
def _epilogue(
    state: NDArray[np.int64], out: NDArray[np.uint64], lay: Layout, uops: NDArray[np.uint64],
    geo: Geometry, m: Machine, epilogue: NDArray[np.int64], t: int, v: int,
    th: int, tw: int, tco: int, n: int, co: int, row: int, col: int,
    alu_at: NDArray[np.int64], loaded: NDArray[np.int64],
) -> None:  # fmt: skip
    """One ALU instruction an element-wise operation, in place, operands behind the accumulators."""
    tile = tco * th * tw
    operand = v * tile + t * tile
    for e in range(epilogue.shape[0]):
        kind = epilogue[e, 0]
        if kind == EPILOGUE_BIAS:
            instruction_writer.memory(
                state, out, LOAD, ACC, operand,
                geo.bias_base + epilogue[e, 2] * geo.groups * geo.co + co, 1, tco, tco,
                0, 0, 0, 0, m.acc_bytes,
            )  # fmt: skip
        elif kind == EPILOGUE_TENSOR:
            there = geo.out_blocks - co
            blocks = max(0, min(tco, there))
            add = geo.add_base + ((n * geo.out_blocks + co) * geo.oh + row) * geo.ow + col
            if blocks > 0:
                instruction_writer.region(
                    state, out, LOAD, ACC, operand, add,
                    blocks, geo.oh * geo.ow, th, geo.ow, tw, m.acc_bytes,
                )  # fmt: skip
            for c in range(blocks, tco):  # not stored
                instruction_writer.region(
                    state, out, LOAD, ACC, operand + c * th * tw,
                    add + (there - 1) * geo.oh * geo.ow, 1, 0, th, geo.ow, tw, m.acc_bytes,
                )  # fmt: skip
        source = t * tile if kind == EPILOGUE_IMMEDIATE else operand
        if not loaded[t, 2 + e]:
            loaded[t, 2 + e] = 1
            alu_at[t, e] = state[instruction_writer.UOPS]
            if alu_at[t, e] < uops.shape[0]:
                uops[alu_at[t, e]] = pack_uop(lay, t * tile, source, 0)
            _load_uops(state, out, m, geo, 1)
        at = alu_at[t, e]
        if kind == EPILOGUE_BIAS:
            # One element a channel block, broadcast over the tile's pixels.
            instruction_writer.alu(
                state, out, lay, at, at + 1, tco, th * tw, th * tw, 1, 1, 0, epilogue[e, 1], 0, 0
            )
        else:
            step = 1 if tile > 1 else 0
            use_imm = 1 if kind == EPILOGUE_IMMEDIATE else 0
            instruction_writer.alu(
                state, out, lay, at, at + 1, 1, tile, 0, step, 0, step, epilogue[e, 1], use_imm,
                epilogue[e, 2] if use_imm else 0,
            )  # fmt: skip
        if kind != EPILOGUE_IMMEDIATE:
            operand += v * tile
