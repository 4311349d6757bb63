"""Estimates the unchecked space's schedules in closed form.

A step is one block, threads take turns over consecutive tiles, and tiles at the image's edge are
computed in full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.estimates.columns import FETCH_BEATS, START_CYCLES
from tilewright.targets.vta.estimates.template import _inside, _load_cycles, _store_cycles
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.template_tiling import window
from tilewright.targets.vta.njit_args import kernel
from tilewright.targets.vta.spec import Machine


@kernel
def estimate_unchecked(
    geo: Geometry, m: Machine, operations: int, tensors: int, values: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Columns as `estimate_template`; `values` (n, 3) are threads, tile rows, tile columns."""
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
