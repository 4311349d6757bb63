"""Executes ALU instructions: element-wise operations on accumulators, in strict order.

A later iteration sees the results of earlier ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.decode import DecodedLoops, uop_of
from tilewright.targets.vta.functional.gemm import largest, trips, truncate
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.functional.vector import LANES, alu_tile
from tilewright.targets.vta.isa import ALU_MUL, ALU_SHR, Layout
from tilewright.targets.vta.njit_args import helper
from tilewright.targets.vta.spec import Machine

_BY_SIGN, _LEFT, _RIGHT = 0, 1, 2


@helper
def alu(m: Machine, lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops) -> None:
    """One ALU instruction."""
    outer, inner, uops = trips(rules, g)
    if outer == 0 or inner == 0 or uops == 0:
        return
    operation, imm, shift, mask = _operation(m, rules, g)
    from_source = not g.use_imm or rules.immediate_reads_source
    size, first = m.batch * pads.acc_row, g.uop_bgn % rules.uop_depth
    if uops == 1 and inner > 1 and g.dst_in == g.src_in == 1 and m.acc_bits == 32:
        d, s, _ = uop_of(lay, pads.uop[first])
        if (
            largest(d, outer, g.dst_out, inner, 1) < rules.acc_depth
            and largest(s, outer, g.src_out, inner, 1) < rules.acc_depth
        ):
            _rows(
                pads.acc, pads.fresh, d, s, outer, g.dst_out, g.src_out, inner, size,
                g.use_imm, from_source, imm, operation, shift, mask,
            )  # fmt: skip
            return
    _scattered(
        pads.acc, pads.fresh, pads.uop, lay, first, uops, rules.acc_depth,
        outer, g.dst_out, g.src_out, inner, g.dst_in, g.src_in, size,
        g.use_imm, from_source, imm, operation, shift, mask, m.acc_bits,
    )  # fmt: skip


@helper
def _operation(m: Machine, rules: SemanticRules, g: DecodedLoops) -> tuple[int, int, int, int]:
    """(operation, immediate, shift direction, shift amount mask) in the terms of `alu_tile`."""
    if g.alu_opcode != ALU_SHR:
        return g.alu_opcode, g.imm, _BY_SIGN, 31
    if rules.hardware_shift:
        # The RTL takes the direction from bit 15 of the immediate field, used or not.
        return ALU_SHR, g.imm, _LEFT if g.imm < 0 else _RIGHT, m.acc_bits - 1
    if g.use_imm and g.imm < -31:
        return ALU_MUL, 0, _BY_SIGN, 31
    return ALU_SHR, min(g.imm, 31) if g.use_imm else 0, _BY_SIGN, 31


@helper
def _rows(
    acc: NDArray[np.int32], fresh: NDArray[np.uint8], d: int, s: int,
    outer: int, by_d: int, by_s: int, inner: int, size: int,
    use_imm: int, from_source: bool, imm: int, operation: int, shift: int, mask: int,
) -> None:  # fmt: skip
    """Runs of `inner` neighbouring elements of `size` lanes."""
    for i in range(outer):
        target, source = d + i * by_d, s + i * by_s
        left = source if use_imm and from_source else target
        for n in range(target, target + inner):
            fresh[n] = 1
        alu_tile(
            acc, target * size, left * size, source * size, use_imm, imm, operation, shift, mask,
            LANES, inner * size // LANES,
        )  # fmt: skip


@helper
def _scattered(
    acc: NDArray[np.int32], fresh: NDArray[np.uint8], uop: NDArray[np.uint64], lay: Layout,
    first: int, uops: int, depth: int, outer: int, d_out: int, s_out: int,
    inner: int, d_in: int, s_in: int, size: int, use_imm: int, from_source: bool, imm: int,
    operation: int, shift: int, mask: int, acc_bits: int,
) -> None:  # fmt: skip
    """One element at a time, indices modulo the depth."""
    for i in range(outer):
        for j in range(inner):
            for k in range(first, first + uops):
                d, s, _ = uop_of(lay, uop[k % uop.size])
                d = (d + i * d_out + j * d_in) % depth
                s = (s + i * s_out + j * s_in) % depth
                left = s if use_imm and from_source else d
                alu_tile(
                    acc, d * size, left * size, s * size, use_imm, imm, operation, shift, mask,
                    LANES, size // LANES,
                )  # fmt: skip
                fresh[d] = 1
                if acc_bits < 32:
                    truncate(acc, d * size, size, acc_bits)


@helper
def shift_element(acc: NDArray[np.int32], d: int, s: int, size: int, acc_bits: int) -> None:
    """One iteration of the functional simulator's SHR by a tensor: the elements `d` and `s` of
    `acc` (depth · size,), `size` lanes each."""
    alu_tile(acc, d * size, d * size, s * size, 0, 0, ALU_SHR, _BY_SIGN, 31, LANES, size // LANES)
    if acc_bits < 32:
        truncate(acc, d * size, size, acc_bits)
