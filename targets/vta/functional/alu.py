"""ALU: elementwise operations on accumulators, in strict order (a later iteration sees the results
of earlier ones)."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from targets.vta.functional.decode import Loops, uop_of
from targets.vta.functional.gemm import largest, trips, truncate
from targets.vta.functional.scratchpads import Scratchpads
from targets.vta.functional.semantics import Rules
from targets.vta.isa import ALU_ADD, ALU_MAX, ALU_MIN, ALU_SHR, Layout
from targets.vta.spec import Machine


@nb.njit(cache=True, nogil=True)
def alu(m: Machine, lay: Layout, rules: Rules, pads: Scratchpads, g: Loops) -> None:
    """One ALU instruction."""
    outer, inner, uops = trips(rules, g)
    if outer == 0 or inner == 0 or uops == 0:
        return
    size = m.batch * pads.acc_row
    if uops == 1 and g.dst_in == 1 and g.src_in == 1 and inner > 1 and m.acc_bits == 32:
        d, s, _ = uop_of(lay, pads.uop[g.uop_bgn % rules.uop_depth])
        if (
            largest(d, outer, g.dst_out, inner, 1) < rules.acc_depth
            and largest(s, outer, g.src_out, inner, 1) < rules.acc_depth
        ):
            for i in range(outer):
                alu_rows(
                    m, rules, pads, g, d + i * g.dst_out, s + i * g.src_out, inner, size
                )  # fmt: skip
            return
    for i in range(outer):
        for j in range(inner):
            for k in range(uops):
                d, s, _ = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
                d = (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth
                s = (s + i * g.src_out + j * g.src_in) % rules.acc_depth
                alu_rows(m, rules, pads, g, d, s, 1, size)


@nb.njit(cache=True, nogil=True)
def alu_rows(
    m: Machine, rules: Rules, pads: Scratchpads, g: Loops, d: int, s: int, count: int, size: int
) -> None:  # fmt: skip
    """Elements d, d+1, ... from themselves and s, s+1, ... (or the immediate), one by one."""
    if g.use_imm:
        source = s if rules.immediate_reads_source else d
        _immediate(pads.acc, d * size, source * size, count * size, g, rules.hardware_shift, m)
    else:
        _tensor(pads.acc, d * size, s * size, count * size, g, rules.hardware_shift, m)
    for n in range(count):
        pads.fresh[d + n] = 1
        if m.acc_bits < 32:
            truncate(m, pads, d + n)


@nb.njit(cache=True, nogil=True)
def _immediate(
    acc: NDArray[np.int32], d: int, s: int, lanes: int, g: Loops, hardware: int, m: Machine
) -> None:
    """acc[d + l] = op(acc[s + l], imm)."""
    y = np.int32(g.imm)
    if g.alu_opcode == ALU_MIN:
        for lane in range(lanes):
            acc[d + lane] = min(acc[s + lane], y)
    elif g.alu_opcode == ALU_MAX:
        for lane in range(lanes):
            acc[d + lane] = max(acc[s + lane], y)
    elif g.alu_opcode == ALU_ADD:
        for lane in range(lanes):
            acc[d + lane] = np.int32(acc[s + lane] + y)
    elif g.alu_opcode == ALU_SHR:
        amount = abs(g.imm)
        if hardware:
            amount &= m.acc_bits - 1
        if g.imm >= 0:
            amount = min(amount, 31)
            for lane in range(lanes):
                acc[d + lane] = acc[s + lane] >> amount
        elif amount > 31:
            for lane in range(lanes):
                acc[d + lane] = 0
        else:
            for lane in range(lanes):
                acc[d + lane] = np.int32(np.int64(acc[s + lane]) << amount)
    else:
        for lane in range(lanes):
            acc[d + lane] = np.int32(np.int64(acc[s + lane]) * y)


@nb.njit(cache=True, nogil=True)
def _tensor(
    acc: NDArray[np.int32], d: int, s: int, lanes: int, g: Loops, hardware: int, m: Machine
) -> None:
    """acc[d + l] = op(acc[d + l], acc[s + l])."""
    if g.alu_opcode == ALU_MIN:
        for lane in range(lanes):
            acc[d + lane] = min(acc[d + lane], acc[s + lane])
    elif g.alu_opcode == ALU_MAX:
        for lane in range(lanes):
            acc[d + lane] = max(acc[d + lane], acc[s + lane])
    elif g.alu_opcode == ALU_ADD:
        for lane in range(lanes):
            acc[d + lane] = np.int32(np.int64(acc[d + lane]) + acc[s + lane])
    elif g.alu_opcode == ALU_SHR:
        mask = m.acc_bits - 1 if hardware else 31
        for lane in range(lanes):
            x, y = np.int64(acc[d + lane]), np.int64(acc[s + lane])
            # The RTL takes the direction from bit 15 of the immediate field, used or not.
            left = g.imm < 0 if hardware else y < 0
            acc[d + lane] = np.int32(x << (-y & mask)) if left else np.int32(x >> (y & mask))
    else:
        for lane in range(lanes):
            acc[d + lane] = np.int32(np.int64(acc[d + lane]) * acc[s + lane])
