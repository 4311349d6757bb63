"""Closed-form estimates for the template space and the unchecked space.

The lengths of single instructions follow the Chisel RTL (TensorLoad, TensorStore, TensorGemm,
TensorAlu): a latency plus the beats, or one micro-op per cycle. One expression per group of tiles
describes which instructions overlap. The estimates do not tell whether a schedule compiles.

In the unchecked space, a reduction step processes one block, virtual threads alternate over
consecutive tiles, and tiles at the image border are computed in full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates import FETCH_BEATS, START_CYCLES
from tilewright.targets.vta.lowering.geometry import Geometry, window
from tilewright.targets.vta.numba_decorators import helper, kernel
from tilewright.targets.vta.spec import Machine


@helper
def _inside(start: int, length: int, size: int) -> int:
    """Count the rows of a range that lie inside an image.

    Args:
        start: first row of the range; it may be negative.
        length: number of rows of the range.
        size: number of rows of the image.
    """
    return max(0, min(start + length, size) - max(start, 0))


@helper
def _load_cycles(rows: int, row_bytes: int, element_bytes: int, pads: int, m: Machine) -> int:
    """Return the cycles of a LOAD that runs alone: the memory latency, then one beat per cycle.

    Zero padding is written in parallel.

    Args:
        rows: number of rows.
        row_bytes: bytes per row.
        element_bytes: size of an element in bytes.
        pads: number of zero elements that are written as padding.
        m: the machine.
    """
    beats = rows * -(-row_bytes // m.bus_bytes)
    if element_bytes <= m.bus_bytes and row_bytes <= m.bus_bytes:
        # rows of one beat empty the request queue, so that the memory latency is paid again: about
        # 2.97 cycles per row on the RTL
        beats = 3 * rows
    return max(m.memory_latency_cycles + 6 + beats, 2 + pads + beats)


@helper
def _store_cycles(rows: int, row_elements: int, m: Machine) -> float:
    """Return the cycles of a STORE that runs alone.

    Its bursts follow one another, and are split at rows and at burst windows.

    Args:
        rows: number of rows.
        row_elements: number of elements per row.
        m: the machine.
    """
    beats = -(-m.out_bytes // m.bus_bytes)
    gap = 1 if m.out_bytes > m.bus_bytes else 0
    window_bytes = m.max_burst_beats * m.bus_bytes
    row_bytes = row_elements * m.out_bytes
    bursts = max(1.0, row_bytes / window_bytes + 0.5 * (row_bytes > window_bytes // 4))
    elements = row_elements if m.out_bytes >= m.bus_bytes else -(-row_bytes // m.bus_bytes)
    return rows * (bursts * (4 - gap) + elements * (beats + gap))


@kernel
def estimate_template(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Estimate schedules of the template space.

    Args:
        geo: geometry of the workload.
        m: the machine.
        operations: number of ALU operations of the epilogue.
        tensors: number of these operations that have a tensor operand.
        values: knob values, shape (n, 7).

    Returns:
        float64 array of shape (n, 10), with the columns `ESTIMATES`.
    """
    out = np.empty((len(values), 10), dtype=np.float64)
    taps = geo.kh * geo.kw
    for r in range(len(values)):
        th, tw, tci, tco = values[r, 1], values[r, 2], values[r, 3], values[r, 4]
        threads = values[r, 5] * values[r, 6]
        ih = window(th, geo.sh, geo.kh, geo.dh)
        iw = window(tw, geo.sw, geo.kw, geo.dw)
        row_tiles, col_tiles, nk = geo.oh // th, geo.ow // tw, geo.ci // tci
        tiles = geo.batches * row_tiles * col_tiles * (geo.co // tco)
        # Threads without a tile wait for the others.
        groups = (
            geo.batches * col_tiles
            * -(-row_tiles // values[r, 6]) * -(-(geo.co // tco) // values[r, 5])
        )  # fmt: skip
        m_tile = tco * th * tw

        # -- loads: mean over the places of a window in the image ----------------------------
        inp_sum, bytes_sum = 0.0, 0.0
        for i in range(row_tiles):
            rows = _inside(i * th * geo.sh - geo.pad_top, ih, geo.h)
            for j in range(col_tiles):
                columns = _inside(j * tw * geo.sw - geo.pad_left, iw, geo.w)
                whole = columns == geo.w  # whole rows merge into one transfer
                pads = tci * (ih * iw - rows * columns)
                size = tci * rows * columns * m.inp_bytes
                if whole:
                    inp_sum += _load_cycles(1, size, m.inp_bytes, pads, m)
                else:
                    inp_sum += _load_cycles(tci * rows, columns * m.inp_bytes, m.inp_bytes, pads, m)
                bytes_sum += size
        inp_load = inp_sum / (row_tiles * col_tiles)
        wgt_load = _load_cycles(1, tco * tci * taps * m.wgt_bytes, m.wgt_bytes, 0, m)
        load = inp_load + wgt_load + 2.0

        # -- compute and store ---------------------------------------------------------------
        # Each GEMM or ALU instruction takes 7 cycles in addition to its iterations, see
        # `tile_instructions`.
        gemm = m_tile * tci * taps + 7.0
        reset = m_tile + 7.0
        operand = _load_cycles(tco * th, tw * m.acc_bytes, m.acc_bytes, 0, m) + 1.0
        alu = operations * (m_tile + 7.0) + tensors * (m_tile + operand)
        if tw == geo.ow and th == geo.oh:
            store = _store_cycles(1, m_tile, m) + 1.0
        elif tw == geo.ow:
            store = _store_cycles(tco, th * tw, m) + 1.0
        else:
            store = _store_cycles(tco * th, tw, m) + 1.0

        # -- a group: v tiles, threads alternate ---------------------------------------------
        if threads == 1:
            group = reset + nk * (load + gemm) + alu + store
        else:
            slower = max(load, gemm)
            group = (
                threads * reset + load + (threads * nk - 1) * slower + gemm
                + alu + (threads - 1) * max(alu, store) + store - min(reset, load)
            )  # fmt: skip
        instructions = tiles * (3 * nk + 2 + operations) + 12 * threads
        out[r, 0] = groups * group + FETCH_BEATS * instructions + START_CYCLES
        out[r, 1] = tiles * nk * load
        out[r, 2] = tiles * (nk * gemm + reset + alu)
        out[r, 3] = tiles * store
        out[r, 4] = instructions
        out[r, 5] = bytes_sum * geo.batches * nk * (geo.co // tco)
        out[r, 6] = tiles * nk * tco * tci * taps * m.wgt_bytes
        out[r, 7] = threads * tci * ih * iw / (1 << m.log_inp_depth)
        out[r, 8] = threads * tco * tci * taps / (1 << m.log_wgt_depth)
        out[r, 9] = threads * m_tile * (1 + tensors) / (1 << m.log_acc_depth)
    return out


@kernel
def estimate_unchecked(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Estimate schedules of the unchecked space.

    Args:
        geo: geometry of the workload.
        m: the machine.
        operations: number of ALU operations of the epilogue.
        tensors: unused, because the epilogues of this space read no tensors.
        values: threads, tile rows and tile columns, shape (n, 3).

    Returns:
        float64 array of shape (n, 10), with the columns `ESTIMATES`.
    """
    out = np.empty((len(values), 10), dtype=np.float64)
    taps = geo.kh * geo.kw
    wgt_load = _load_cycles(1, taps * m.wgt_bytes, m.wgt_bytes, 0, m)
    for r in range(len(values)):
        v, th, tw = values[r, 0], values[r, 1], values[r, 2]
        ih = window(th, geo.sh, geo.kh, geo.dh)
        iw = window(tw, geo.sw, geo.kw, geo.dw)
        row_tiles, col_tiles = -(-geo.oh // th), -(-geo.ow // tw)
        places = geo.batches * geo.groups * row_tiles * col_tiles
        tiles = places * geo.co
        m_tile = th * tw

        # -- means over the places of a tile in the image ------------------------------------
        load_sum, store_sum, bytes_sum = 0.0, 0.0, 0.0
        for i in range(row_tiles):
            rows = _inside(i * th * geo.sh - geo.pad_top, ih, geo.h)
            out_rows = min(th, geo.oh - i * th)
            for j in range(col_tiles):
                columns = _inside(j * tw * geo.sw - geo.pad_left, iw, geo.w)
                pads = ih * iw - rows * columns
                load_sum += _load_cycles(rows, columns * m.inp_bytes, m.inp_bytes, pads, m)
                store_sum += _store_cycles(out_rows, min(tw, geo.ow - j * tw), m)
                bytes_sum += rows * columns * m.inp_bytes
        load = load_sum / (row_tiles * col_tiles) + wgt_load + 2.0
        store = store_sum / (row_tiles * col_tiles) + 1.0
        gemm = m_tile * taps + 7.0
        reset = m_tile + 7.0
        alu = operations * (m_tile + 7.0)

        groups = -(-tiles // v)
        if v == 1:
            group = reset + geo.ci * (load + gemm) + alu + store
        else:
            group = (
                v * reset + load + (v * geo.ci - 1) * max(load, gemm) + gemm
                + alu + (v - 1) * max(alu, store) + store - min((v - 1) * reset, load)
            )  # fmt: skip
        instructions = tiles * (3 * geo.ci + 2 + operations) + 2 * v
        out[r, 0] = groups * group + FETCH_BEATS * instructions + START_CYCLES
        out[r, 1] = tiles * geo.ci * load
        out[r, 2] = tiles * (geo.ci * gemm + reset + alu)
        out[r, 3] = tiles * store
        out[r, 4] = instructions
        out[r, 5] = bytes_sum * geo.batches * geo.groups * geo.ci * geo.co
        out[r, 6] = tiles * geo.ci * taps * m.wgt_bytes
        out[r, 7] = v * ih * iw / m.inp_built
        out[r, 8] = v * taps / m.wgt_built
        out[r, 9] = v * m_tile / m.acc_built
    return out
