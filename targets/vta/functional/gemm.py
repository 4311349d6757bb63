"""GEMM: blocks of multiply-accumulates under two hardware loops and a range of micro-ops.

Accumulators only ever receive sums modulo 2³² here and inputs and weights do not change, so the
order of the iterations is free: they are grouped such that one weight block meets many inputs.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from targets.vta.functional.decode import Loops, uop_of
from targets.vta.functional.scratchpads import Scratchpads
from targets.vta.functional.semantics import Rules
from targets.vta.functional.transfer import keep_stale_output
from targets.vta.functional.vector import LANES, TILE, gemm_tile
from targets.vta.isa import Layout
from targets.vta.spec import LOOP_FIELD_BITS, Machine

_LOOP_RANGE = 1 << LOOP_FIELD_BITS


@nb.njit(cache=True, nogil=True)
def trips(rules: Rules, g: Loops) -> tuple[int, int, int]:
    """(outer, inner, micro-ops): how often each loop of a GEMM or ALU instruction runs."""
    outer, inner, uops = g.iter_out, g.iter_in, g.uop_end - g.uop_bgn
    if not rules.zero_trips_wrap:
        return outer, inner, max(uops, 0)
    # the RTL's counters run around
    uops = uops % _LOOP_RANGE
    return (
        outer if outer else _LOOP_RANGE,
        inner if inner else _LOOP_RANGE,
        (uops if uops else _LOOP_RANGE),
    )


@nb.njit(cache=True, nogil=True)
def largest(base: int, outer: int, by_out: int, inner: int, by_in: int) -> int:
    """The largest index of a loop nest: factors are unsigned, so it is the last iteration's."""
    return base + (outer - 1) * by_out + (inner - 1) * by_in


@nb.njit(cache=True, nogil=True)
def gemm(m: Machine, lay: Layout, rules: Rules, pads: Scratchpads, g: Loops) -> None:
    """One GEMM instruction, or its reset form."""
    outer, inner, uops = trips(rules, g)
    if outer == 0 or inner == 0:
        return
    # A loop that keeps the weights is best innermost.
    along_inner = g.wgt_in == 0 and inner > 1 and (g.wgt_out != 0 or inner >= outer)
    along_outer = not along_inner and g.wgt_out == 0 and outer > 1
    k = 0
    while k < uops:
        d, s, t = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
        fits = (
            largest(d, outer, g.dst_out, inner, g.dst_in) < rules.acc_depth
            and largest(s, outer, g.src_out, inner, g.src_in) < rules.inp_depth
            and largest(t, outer, g.wgt_out, inner, g.wgt_in) < rules.wgt_depth
        )
        length = 1
        if g.reset:
            _reset(m, rules, pads, d, outer, g.dst_out, inner, g.dst_in)
        elif not fits:
            _gemm_wrapped(m, rules, pads, g, d, s, t, outer, inner)
        elif along_inner:
            for i in range(outer):
                _gemm_run(
                    m, pads, d + i * g.dst_out, s + i * g.src_out, t + i * g.wgt_out,
                    g.dst_in, g.src_in, inner,
                )  # fmt: skip
        elif along_outer:
            for j in range(inner):
                _gemm_run(
                    m, pads, d + j * g.dst_in, s + j * g.src_in, t + j * g.wgt_in,
                    g.dst_out, g.src_out, outer,
                )  # fmt: skip
        else:
            length, d_step, s_step = _uop_run(lay, rules, pads, g, k, uops, outer, inner)
            for i in range(outer):
                for j in range(inner):
                    _gemm_run(
                        m, pads,
                        d + i * g.dst_out + j * g.dst_in,
                        s + i * g.src_out + j * g.src_in,
                        t + i * g.wgt_out + j * g.wgt_in,
                        d_step, s_step, length,
                    )  # fmt: skip
        k += length


@nb.njit(cache=True, nogil=True)
def _uop_run(
    lay: Layout, rules: Rules, pads: Scratchpads, g: Loops,
    k: int, uops: int, outer: int, inner: int,
) -> tuple[int, int, int]:  # fmt: skip
    """(length, dst step, src step) of the run from micro-op `k` on that shares its weight,
    moves evenly, and stays inside the scratchpads."""
    d, s, t = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
    length, d_step, s_step = 1, 0, 0
    while k + length < uops:
        d1, s1, t1 = uop_of(lay, pads.uop[(g.uop_bgn + k + length) % rules.uop_depth])
        if length == 1:
            d_step, s_step = d1 - d, s1 - s
        if (
            t1 != t
            or d1 != d + length * d_step
            or s1 != s + length * s_step
            or largest(d1, outer, g.dst_out, inner, g.dst_in) >= rules.acc_depth
            or largest(s1, outer, g.src_out, inner, g.src_in) >= rules.inp_depth
        ):
            break
        length += 1
    return length, d_step, s_step


@nb.njit(cache=True, nogil=True)
def _gemm_run(
    m: Machine, pads: Scratchpads, d: int, s: int, t: int, d_step: int, s_step: int, count: int
) -> None:  # fmt: skip
    """`count` blocks from (d, s) on in even steps under one weight block; all indices inside."""
    for n in range(count):
        pads.fresh[d + n * d_step] = 1
    acc_size, inp_size = m.batch * pads.acc_row, m.batch * pads.inp_row
    in_tiles, out_tiles = pads.inp_row // LANES, pads.acc_row // LANES
    for tile in range(out_tiles * in_tiles):
        out_lane, in_lane = tile // in_tiles * LANES, tile % in_tiles * LANES
        for b in range(m.batch):
            gemm_tile(
                pads.acc, d * acc_size + b * pads.acc_row + out_lane, d_step * acc_size,
                pads.inp, s * inp_size + b * pads.inp_row + in_lane, s_step * inp_size,
                pads.wgt, (t * out_tiles * in_tiles + tile) * TILE, count,
            )  # fmt: skip
    if m.acc_bits < 32:
        for n in range(count):
            truncate(m, pads, d + n * d_step)


@nb.njit(cache=True, nogil=True)
def _gemm_wrapped(
    m: Machine, rules: Rules, pads: Scratchpads, g: Loops,
    d: int, s: int, t: int, outer: int, inner: int,
) -> None:  # fmt: skip
    """One micro-op whose indices leave a scratchpad and come back at its beginning."""
    for i in range(outer):
        for j in range(inner):
            _gemm_run(
                m, pads,
                (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth,
                (s + i * g.src_out + j * g.src_in) % rules.inp_depth,
                (t + i * g.wgt_out + j * g.wgt_in) % rules.wgt_depth,
                0, 0, 1,
            )  # fmt: skip


@nb.njit(cache=True, nogil=True)
def _reset(
    m: Machine, rules: Rules, pads: Scratchpads, d: int,
    outer: int, by_out: int, inner: int, by_in: int,
) -> None:  # fmt: skip
    size = m.batch * pads.acc_row
    for i in range(outer):
        for j in range(inner):
            index = (d + i * by_out + j * by_in) % rules.acc_depth
            keep_stale_output(m, rules, pads, index)
            for lane in range(index * size, (index + 1) * size):
                pads.acc[lane] = 0


@nb.njit(cache=True, nogil=True)
def truncate(m: Machine, pads: Scratchpads, index: int) -> None:
    """Bring an accumulator element back to its width (narrower than 32 bits)."""
    size, unused = m.batch * pads.acc_row, 32 - m.acc_bits
    for lane in range(index * size, (index + 1) * size):
        pads.acc[lane] = np.int32(pads.acc[lane] << unused) >> unused
