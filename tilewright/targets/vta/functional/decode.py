"""Decodes instructions in compiled code: LOAD and STORE to one tuple, GEMM and ALU to another."""

from __future__ import annotations

from typing import NamedTuple

import numba as nb

from tilewright.targets.vta.instruction_format import GEMM, Layout, get
from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import LOOP_FIELD_BITS


class Transfer(NamedTuple):
    """Decoded fields of a LOAD or STORE instruction. Sizes and addresses are in elements."""

    memory: int
    sram_base: int
    dram_base: int
    y_size: int
    x_size: int
    x_stride: int
    y_pad_0: int
    y_pad_1: int
    x_pad_0: int
    x_pad_1: int


class DecodedLoops(NamedTuple):
    """Fields of a GEMM or ALU instruction: two hardware loops around a range of micro-ops.

    The index of iteration (i, j) and micro-op k is base[k] + i·factor_out + j·factor_in.
    """

    reset: int
    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int
    dst_out: int
    dst_in: int
    src_out: int
    src_in: int
    wgt_out: int
    wgt_in: int
    alu_opcode: int
    use_imm: int
    imm: int


@helper
def transfer_of(lo: int, hi: int) -> Transfer:
    """Decode a LOAD or STORE.

    Args:
        lo: low word of the instruction.
        hi: high word of the instruction.
    """
    return Transfer(
        get(lo, hi, 7, 3), get(lo, hi, 10, 16), get(lo, hi, 26, 32),
        get(lo, hi, 64, 16), get(lo, hi, 80, 16), get(lo, hi, 96, 16),
        get(lo, hi, 112, 4), get(lo, hi, 116, 4), get(lo, hi, 120, 4), get(lo, hi, 124, 4),
    )  # fmt: skip


@helper
def loops_of(lay: Layout, lo: int, hi: int) -> DecodedLoops:
    """Decode a GEMM or ALU instruction. Fields that its kind of instruction lacks are zero.

    Args:
        lay: bit positions of the instruction fields.
        lo: low word of the instruction.
        hi: high word of the instruction.
    """
    opcode = get(lo, hi, 0, 3)
    reset = get(lo, hi, 7, 1)
    bgn = get(lo, hi, lay.uop_bgn, lay.uop_index_bits)
    end = get(lo, hi, lay.uop_end, lay.uop_index_bits + 1)
    outer = get(lo, hi, lay.iter_out, LOOP_FIELD_BITS)
    inner = get(lo, hi, lay.iter_in, LOOP_FIELD_BITS)
    a, i, w = lay.acc_bits, lay.inp_bits, lay.wgt_bits
    if opcode == GEMM:
        return DecodedLoops(
            reset, bgn, end, outer, inner,
            get(lo, hi, lay.gemm_dst_out, a), get(lo, hi, lay.gemm_dst_in, a),
            get(lo, hi, lay.gemm_src_out, i), get(lo, hi, lay.gemm_src_in, i),
            get(lo, hi, lay.gemm_wgt_out, w), get(lo, hi, lay.gemm_wgt_in, w),
            0, 0, 0,
        )  # fmt: skip
    imm = get(lo, hi, lay.alu_imm, 16)
    return DecodedLoops(
        0, bgn, end, outer, inner,
        get(lo, hi, lay.alu_dst_out, a), get(lo, hi, lay.alu_dst_in, a),
        get(lo, hi, lay.alu_src_out, a), get(lo, hi, lay.alu_src_in, a),
        0, 0,
        get(lo, hi, lay.alu_opcode, 3), get(lo, hi, lay.alu_use_imm, 1),
        imm - ((imm & 0x8000) << 1),
    )  # fmt: skip


@helper
def uop_of(lay: Layout, word: int) -> tuple[int, int, int]:
    """Decode a micro-op to its accumulator, source and weight indices (dst, src, wgt).

    Args:
        lay: bit positions of the instruction fields.
        word: the micro-op as an unsigned 64-bit integer.
    """
    src_at = lay.uop_dst_bits
    wgt_at = src_at + lay.uop_src_bits
    dst = nb.int64(word & nb.uint64((1 << lay.uop_dst_bits) - 1))
    src = nb.int64((word >> nb.uint64(src_at)) & nb.uint64((1 << lay.uop_src_bits) - 1))
    wgt = nb.int64((word >> nb.uint64(wgt_at)) & nb.uint64((1 << lay.uop_wgt_bits) - 1))
    return dst, src, wgt
