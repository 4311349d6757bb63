"""Schedules the stock compiler cannot express: software pipelining, residency, uneven tiles.

One program is a sequence of output tiles; a tile is a sequence of reduction steps; a step loads
what its scratchpad slots do not hold yet, then runs one GEMM. Slots form rings, so loads run ahead
of the GEMMs as far as slots allow, whatever tile they belong to, and a slot that still holds the
wanted block is not loaded again (residency). Accumulator tiles form a ring too, so a store hides
under the next tile. The first step may be split so that the first GEMM starts early, the last
epilogue so that the last store is short.

Micro-ops are shared by all tiles of a shape: the two hardware loops walk over the pixels, so a
smaller tile is the same kernel with fewer iterations.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from targets.base import Knob, Space
from targets.vta.isa import (
    ACC,
    LOAD,
    OUT,
    PUSH_NEXT,
    PUSH_PREV,
    STORE,
    UOP,
    WGT,
    Layout,
    pack_uop,
)
from targets.vta.lowering import emit
from targets.vta.lowering.failures import (
    ALLOC_ACC,
    ALLOC_INP,
    ALLOC_WGT,
    UOP_CAPACITY,
)
from targets.vta.lowering.geometry import (
    EPILOGUE_BIAS,
    EPILOGUE_IMMEDIATE,
    EPILOGUE_TENSOR,
    Geometry,
)
from targets.vta.lowering.pieces import (
    COMPUTE_LATENCY,
    INSTRUCTION,
    KEY,
    LOAD_LATENCY,
    MAX_SLOTS,
    SEQUENCE,
    alu,
    epilogue_piece,
    find,
    gemm,
    last_part,
    load_bound,
    load_stream,
    load_window,
    one_uop,
    size_uop_load,
    stream_part,
    tile_transfer,
    weights_stream,
    write_kernel,
)
from targets.vta.lowering.template import window
from targets.vta.spec import Machine

KNOBS = (
    "tile_h", "tile_w", "tile_co", "tile_ci", "order", "inp_slots", "wgt_slots", "acc_slots",
    "head", "ramp", "tail",
)  # fmt: skip
CHANNELS_OUTER, PIXELS_OUTER = 0, 1
RESIDENT = 0  # value of inp_slots / wgt_slots: as many as the reuse needs
MAX_KERNELS = 512

_L, _C, _S = 0, 1, 2


def balanced(n: int, most: int = 1 << 30) -> tuple[int, ...]:
    """The tile sizes that cut `n` into 1, 2, 3, … `most` nearly equal parts, increasing."""
    return tuple(sorted({-(-n // parts) for parts in range(1, min(n, most) + 1)}))


def extended_space(geo: Geometry) -> Space:
    """The knobs of the extended space.

    `tile_*` in output rows, output columns, output blocks, input blocks (uneven: the last tile
    takes the remainder). `order`: 0 walks pixels inside channels, 1 channels inside pixels.
    `*_slots`: ring sizes of the scratchpads, 0 = keep resident what will be read again (weights
    read once that do not fit pass as a stream, where loads are slower than GEMMs). `head`: the
    first tile has 1/head of the rows. `ramp`: first steps whose weights come in growing parts
    (loads slower than GEMMs: the last weights come in shrinking parts). `tail`: pieces of the last
    epilogue and store.
    """
    powers = tuple(v for v in (1, 2, 4) if v < geo.ci)
    values = (
        balanced(geo.oh), balanced(geo.ow, 3), balanced(geo.co), (*powers, geo.ci),
        (CHANNELS_OUTER, PIXELS_OUTER), (RESIDENT, 2, 3), (RESIDENT, 2, 3), (1, 2),
        (1, 4), (0, 2), (1, 8),
    )  # fmt: skip
    return Space("extended", tuple(Knob(n, v) for n, v in zip(KNOBS, values, strict=True)))


@nb.njit(cache=True)
def lower_extended(
    geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64], knobs: NDArray[np.int64],
    out: NDArray[np.uint64], uops: NDArray[np.uint64], state: NDArray[np.int64],
) -> int:  # fmt: skip
    """Write the program of one config; `knobs` are the knob *values*. Returns a failure code."""
    th, tw, tco, tci = knobs[0], knobs[1], knobs[2], knobs[3]
    order, acc_slots, head, ramp, tail = knobs[4], knobs[7], knobs[8], knobs[9], knobs[10]
    emit.start(state)

    # -- tiles -----------------------------------------------------------------------------
    first_rows = -(-th // head)
    row_tiles = 1 if first_rows >= geo.oh else 1 + -(-(geo.oh - first_rows) // th)
    col_tiles = -(-geo.ow // tw)
    co_tiles = -(-geo.co // tco)
    nk = -(-geo.ci // tci)
    # A 1×1 kernel with a stride needs every sh-th row only: the DMA's row stride skips the rest.
    gather = geo.kh == 1 and geo.sh > 1 and geo.pad_top == 0 and geo.pad_bottom == 0
    ih = th if gather else window(th, geo.sh, geo.kh, geo.dh)
    iw = window(tw, geo.sw, geo.kw, geo.dw)
    kk = geo.kh * geo.kw

    # -- epilogue ---------------------------------------------------------------------------
    has_bias = False
    starts_with_tensor = False  # a residual that can be the accumulators' first value
    tensors = 0
    in_place = 0  # ALU operations a tile
    for e in range(epilogue.shape[0]):
        in_place += 1
        if epilogue[e, 0] == EPILOGUE_BIAS:
            has_bias = True
        elif epilogue[e, 0] == EPILOGUE_TENSOR:
            starts_with_tensor = e == 0 or (e == 1 and epilogue[0, 0] == EPILOGUE_BIAS)
            if starts_with_tensor:
                in_place -= 1
            else:
                tensors += 1

    # -- scratchpads -----------------------------------------------------------------------
    inp_size, wgt_size, acc_size = tci * ih * iw, tco * tci * kk, tco * th * tw
    inp_slots, wgt_slots = knobs[5], knobs[6]
    if inp_slots == RESIDENT:
        inp_slots = nk if order == PIXELS_OUTER else geo.batches * row_tiles * col_tiles * nk
    if wgt_slots == RESIDENT:
        wgt_slots = nk if order == CHANNELS_OUTER else co_tiles * nk
    element_beats = max(1, m.wgt_bytes // m.bus_bytes)
    reduction = geo.ci * kk
    compute_bound = not load_bound(geo, m, in_place, th * tw)
    streamed = not compute_bound and weights_stream(
        geo, m, knobs[6] == RESIDENT, wgt_slots * wgt_size, th, tw, nk,
        geo.batches * row_tiles * col_tiles,
    )  # fmt: skip
    if streamed:
        wgt_slots, wgt_size = 1, m.wgt_built
    if inp_slots > MAX_SLOTS or inp_slots * inp_size > m.inp_built:
        return ALLOC_INP
    if wgt_slots > MAX_SLOTS or wgt_slots * wgt_size > m.wgt_built:
        return ALLOC_WGT
    bias_at = acc_slots * acc_size * (1 + tensors)
    if bias_at + (tco if has_bias else 0) > m.acc_built:
        return ALLOC_ACC
    state[emit.INP_USED] = inp_slots * inp_size
    state[emit.WGT_USED] = wgt_slots * wgt_size
    state[emit.ACC_USED] = bias_at
    bias_resident = has_bias and bias_at + geo.groups * geo.co <= m.acc_built

    # -- which two loops run in hardware: pixels first, then the longest of the rest --------
    # 0 rows, 1 columns, 2 output blocks, 3 input blocks, 4 kernel rows, 5 kernel columns
    n_loops = (th, tw, tco, tci, geo.kh, geo.kw)
    hw0, hw1 = -1, -1
    if th > 1:
        hw0 = 0
    if tw > 1:
        if hw0 < 0:
            hw0 = 1
        else:
            hw1 = 1
    while hw1 < 0:
        longest = -1
        for loop in range(2, 6):
            if loop != hw0 and n_loops[loop] > 1:  # noqa: SIM102
                if longest < 0 or n_loops[loop] > n_loops[longest]:
                    longest = loop
        if longest < 0:
            break
        if hw0 < 0:
            hw0 = longest
        else:
            hw1 = longest
            break
    co_unrolled = hw0 != 2 and hw1 != 2
    # With only pixels in hardware, a run of micro-ops is a run of weights: cut it anywhere.
    unrolled = hw0 < 2 and hw1 < 2

    # -- rings -----------------------------------------------------------------------------
    inp_ring = np.full((inp_slots, 3), -1, np.int64)
    wgt_ring = np.full((wgt_slots, 3), -1, np.int64)
    inp_next = 0
    wgt_next = 0
    inp_hint = 0
    wgt_hint = 0
    # The stream: weight elements it has loaded and, by place, the GEMM that read it last.
    loaded = 0
    reader = np.full(m.wgt_built if streamed else 1, -1, np.int64)
    store_of = np.full(acc_slots, -1, np.int64)  # the last STORE that reads an accumulator slot
    kernel_keys = np.empty((MAX_KERNELS, 5), np.int64)
    kernel_at = np.empty(MAX_KERNELS, np.int64)
    kernels = 0
    kernel_hint = 0
    freed = -1  # GEMMs up to this sequence number are known to LOAD as done
    sequence = 0

    # All micro-ops are loaded by the first instruction; its size is filled in at the end.
    emit.memory(
        state, out, LOAD, UOP, 0, geo.uop_base, 1, 1, 1, 0, 0, 0, 0, m.uop_bytes
    )  # fmt: skip
    # One micro-op an accumulator slot serves reset and immediate ALU operations.
    for a in range(acc_slots):
        if a < uops.shape[0]:
            uops[a] = pack_uop(lay, a * acc_size, a * acc_size, 0)
    n_uops = acc_slots
    if bias_resident:
        emit.memory(
            state, out, LOAD, ACC, bias_at, geo.bias_base, 1, geo.groups * geo.co,
            geo.groups * geo.co, 0, 0, 0, 0, m.acc_bytes,
        )  # fmt: skip

    outer = co_tiles if order == CHANNELS_OUTER else geo.batches * row_tiles * col_tiles
    inner = geo.batches * row_tiles * col_tiles if order == CHANNELS_OUTER else co_tiles
    tiles = geo.groups * outer * inner
    if not starts_with_tensor:
        # Compute has nothing to do until the first weights are there: reset all slots meanwhile.
        count = min(acc_slots, tiles) * acc_size
        emit.gemm(
            state, out, lay, 1, 0, 1, 1, count, 0, 1 if count > 1 else 0, 0, 0, 0, 0
        )  # fmt: skip

    for tile in range(tiles):
        g = tile // (outer * inner)
        a_index = tile // inner % outer
        b_index = tile % inner
        co_tile = a_index if order == CHANNELS_OUTER else b_index
        pixel_tile = b_index if order == CHANNELS_OUTER else a_index
        n = pixel_tile // (row_tiles * col_tiles)
        row_tile = pixel_tile // col_tiles % row_tiles
        col_tile = pixel_tile % col_tiles
        row = 0 if row_tile == 0 else first_rows + (row_tile - 1) * th
        rows = min(first_rows if row_tile == 0 else th, geo.oh - row)
        col = col_tile * tw
        cols = min(tw, geo.ow - col)
        co = co_tile * tco
        cos = min(tco, geo.co - co)
        ih_here = rows if gather else window(rows, geo.sh, geo.kh, geo.dh)
        iw_here = window(cols, geo.sw, geo.kw, geo.dw)
        pitch = th * cols  # accumulator distance of two output blocks
        slot = tile % acc_slots
        acc = slot * acc_size
        state[emit.TILES] += 1

        # -- first value of the accumulators ------------------------------------------------
        if store_of[slot] >= 0:
            emit.flag(state, out, store_of[slot], PUSH_PREV)
            emit.pop(state, out, _S, _C)
        first_out = ((n * geo.groups + g) * geo.co + co) * geo.oh * geo.ow + row * geo.ow + col
        if starts_with_tensor:
            tile_transfer(
                state, out, geo, LOAD, ACC, acc, geo.add_base + first_out, cos, rows, cols, pitch,
                m.acc_bytes,
            )  # fmt: skip
        elif tile >= acc_slots:
            emit.gemm(
                state, out, lay, 1, slot, slot + 1, cos, rows * cols, pitch if cos > 1 else 0,
                1 if rows * cols > 1 else 0, 0, 0, 0, 0,
            )  # fmt: skip

        for k in range(nk):
            ci = k * tci
            cis = min(tci, geo.ci - ci)
            state[emit.STEPS] += 1
            # -- find or load the input window and the weights ------------------------------
            inp_key = ((g * geo.batches + n) * row_tiles + row_tile) * col_tiles + col_tile
            inp_key = inp_key * nk + k
            wgt_key = (g * co_tiles + co_tile) * nk + k
            i_slot = find(inp_ring, inp_key, inp_hint)
            w_slot = 0 if streamed else find(wgt_ring, wgt_key, wgt_hint)
            load_inp = i_slot < 0
            load_wgt = w_slot < 0
            needs = -1
            needs_at = -1
            if load_inp:
                i_slot = inp_next
                inp_next = (inp_next + 1) % inp_slots
                if inp_ring[i_slot, SEQUENCE] > needs:
                    needs = inp_ring[i_slot, SEQUENCE]
                    needs_at = inp_ring[i_slot, INSTRUCTION]
                inp_ring[i_slot, KEY] = inp_key
            if load_wgt:
                w_slot = wgt_next
                wgt_next = (wgt_next + 1) % wgt_slots
                if wgt_ring[w_slot, SEQUENCE] > needs:
                    needs = wgt_ring[w_slot, SEQUENCE]
                    needs_at = wgt_ring[w_slot, INSTRUCTION]
                wgt_ring[w_slot, KEY] = wgt_key
            used = tile * tco * reduction  # elements of the stream before this step
            wgt_at = used % m.wgt_built if streamed else w_slot * wgt_size
            inp_hint = i_slot + 1
            wgt_hint = w_slot + 1
            if needs > freed:
                # The slot's last reader tells LOAD that it is done; LOAD's next transfer waits.
                freed = needs
                emit.flag(state, out, needs_at, PUSH_PREV)
                emit.pop(state, out, _C, _L)
            if load_inp:
                y0 = row * geo.sh - geo.pad_top
                x0 = col * geo.sw - geo.pad_left
                load_window(
                    state, out, geo, m, gather, (n * geo.groups + g) * geo.ci + ci, cis, y0, x0,
                    ih_here, iw_here, ih, i_slot * inp_size,
                )  # fmt: skip

            # -- micro-op kernel of this combination of slots --------------------------------
            kernel = -1
            for probe in range(kernels):
                j = (kernel_hint + probe) % kernels
                if (
                    kernel_keys[j, 0] == slot and kernel_keys[j, 1] == i_slot
                    and kernel_keys[j, 2] == wgt_at and kernel_keys[j, 3] == cis
                    and kernel_keys[j, 4] == cols
                ):  # fmt: skip
                    kernel = j
                    break
            block_uops = 1  # of one output block
            for loop in range(3, 6):
                if loop != hw0 and loop != hw1:
                    block_uops *= cis if loop == 3 else n_loops[loop]
            if kernel < 0:
                if kernels == MAX_KERNELS:
                    return UOP_CAPACITY
                kernel = kernels
                kernels += 1
                kernel_keys[kernel, 0] = slot
                kernel_keys[kernel, 1] = i_slot
                kernel_keys[kernel, 2] = wgt_at
                kernel_keys[kernel, 3] = cis
                kernel_keys[kernel, 4] = cols
                kernel_at[kernel] = n_uops
                count = block_uops * (tco if co_unrolled else 1)
                if n_uops + count > m.uop_built or n_uops + count > uops.shape[0]:
                    return UOP_CAPACITY
                write_kernel(
                    geo, lay, uops, n_uops, hw0, hw1, tco, cis, pitch, ih, iw_here, acc,
                    i_slot * inp_size, wgt_at, m.wgt_built,
                )  # fmt: skip
                n_uops += count
            kernel_hint = kernel + 1

            # -- weights and GEMM, in parts at the beginning or at the end ---------------------
            block = cis * kk  # weight elements, and micro-ops, of one output block
            pixels = rows * cols
            part = cos * block
            left = (tiles * nk - sequence) * part  # weight elements still to come
            later = (tiles - 1 - tile) * (1 + in_place) * cos * pixels  # cycles besides GEMMs
            split = load_wgt and unrolled and ramp > 0
            if compute_bound:
                split = split and sequence < ramp
                if split:
                    part = 1 if sequence == 0 else -(-part // 4)
            else:
                split = split and last_part(left, later, pixels, element_beats) < part
            done = 0
            while done < cos * block:
                if split and not compute_bound:
                    part = last_part(left - done, later, pixels, element_beats)
                    rest = cos * block - done if part >= block else block - done % block
                    part = -(-rest // -(-rest // part))  # of equal parts, no remainder is tiny
                # A part lies within one output block, or is a number of whole blocks.
                inside = done % block
                fresh = load_inp or load_wgt
                if streamed:
                    fresh = loaded == used + done
                elif inside or part < block:
                    part = min(part, block - inside)
                else:
                    part = min(part // block * block, cos * block - done)
                if streamed and fresh:
                    left = reduction * geo.co - loaded
                    size = left
                    if ramp > 0:
                        other = later + (tiles - 1 - tile) * (1 + in_place) * COMPUTE_LATENCY
                        size = min(left, last_part(left, other, pixels, element_beats))
                    size = stream_part(m.wgt_built, loaded, left, size)
                    freed = load_stream(state, out, geo, m, reader, loaded, size, freed)
                    loaded += size
                if streamed:
                    part = min(loaded - used - done, cos * block - done)
                if load_wgt:
                    whole = part // block
                    emit.region(
                        state, out, LOAD, WGT, w_slot * wgt_size + done,
                        geo.wgt_base
                        + ((g * geo.co + co + done // block) * geo.ci + ci) * kk + inside,
                        1, 0, max(1, whole), geo.ci * kk, block if whole else part, m.wgt_bytes,
                    )  # fmt: skip
                if fresh:
                    # What was loaded last carries the token; a load is always the last instruction.
                    emit.push(state, out, _L, _C)
                    emit.pop(state, out, _L, _C)
                bgn = kernel_at[kernel]
                end = bgn + block_uops * (cos if co_unrolled else 1)
                if split or streamed:
                    bgn, end = bgn + done, bgn + done + part
                gemm(
                    state, out, lay, geo, bgn, end, hw0, hw1, rows, cols, cos, cis, pitch, ih,
                    iw_here, gather,
                )  # fmt: skip
                if streamed:
                    for place in range(used + done, used + done + part):
                        reader[place % m.wgt_built] = state[emit.COUNT] - 1
                done += part
                part = max(part + 1, (part * pixels - LOAD_LATENCY) // element_beats)
            at = state[emit.COUNT] - 1
            inp_ring[i_slot, SEQUENCE] = sequence
            inp_ring[i_slot, INSTRUCTION] = at
            wgt_ring[w_slot, SEQUENCE] = sequence
            wgt_ring[w_slot, INSTRUCTION] = at
            sequence += 1

        # -- epilogue and store, in pieces at the very end -----------------------------------
        cuts = tail if tile == tiles - 1 else 1
        pieces = 0
        if has_bias and not bias_resident:
            emit.memory(
                state, out, LOAD, ACC, bias_at, geo.bias_base + g * geo.co + co, 1, cos, cos,
                0, 0, 0, 0, m.acc_bytes,
            )  # fmt: skip
        c0 = 0
        r0 = 0
        while c0 < cos:
            pc, pr = epilogue_piece(m, in_place, cuts, pieces, cos, rows, c0, r0)
            offset = c0 * pitch + r0 * cols
            extra = acc_slots * acc_size  # where a tensor operand lies
            for e in range(epilogue.shape[0]):
                kind = epilogue[e, 0]
                if kind == EPILOGUE_TENSOR and starts_with_tensor:
                    continue
                source = acc + offset
                if kind == EPILOGUE_BIAS:
                    source = bias_at + (g * geo.co + co + c0 if bias_resident else c0)
                elif kind == EPILOGUE_TENSOR:
                    source = extra + slot * acc_size + offset
                    if c0 == 0 and r0 == 0:
                        tile_transfer(
                            state, out, geo, LOAD, ACC, source, geo.add_base + first_out, cos,
                            rows, cols, pitch, m.acc_bytes,
                        )  # fmt: skip
                at = slot
                if kind != EPILOGUE_IMMEDIATE or offset > 0:
                    word = pack_uop(lay, acc + offset, source, 0)
                    at = one_uop(uops, word, n_uops, acc_slots)
                    if at == n_uops:
                        if n_uops + 1 > m.uop_built or n_uops + 1 > uops.shape[0]:
                            return UOP_CAPACITY
                        uops[at] = word
                        n_uops += 1
                alu(
                    state, out, lay, at, pc, pr * cols, pitch, kind, epilogue[e, 1],
                    epilogue[e, 2],
                )  # fmt: skip
            emit.flag(state, out, state[emit.COUNT] - 1, PUSH_NEXT)
            emit.pop(state, out, _C, _S)
            tile_transfer(
                state, out, geo, STORE, OUT, acc + offset, geo.out_base + first_out
                + c0 * geo.oh * geo.ow + r0 * geo.ow, pc, pr, cols, pitch, m.out_bytes,
            )  # fmt: skip
            r0 += pr
            if r0 == rows:
                c0 += pc
                r0 = 0
            pieces += 1
        store_of[slot] = state[emit.COUNT] - 1
        if state[emit.PROBLEM]:
            break

    emit.push(state, out, _S, _C)
    emit.pop(state, out, _S, _C)
    emit.finish(state, out)
    size_uop_load(out, n_uops)
    state[emit.UOPS] = n_uops
    state[emit.UOP_BYTES] += (n_uops - 1) * m.uop_bytes
    return emit.outcome(state, out)
