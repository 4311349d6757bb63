"""Checks an instruction before the functional simulator executes it.

The checks use the fields of the instruction and the micro-ops that are loaded. For each fault, a
row (fault code, value, limit, extra) is appended to the array `found`. `found[0, 0]` is the number
of these rows. An instruction has at most `MOST_FAULTS` faults.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional import faults as f
from tilewright.targets.vta.functional.decode import (
    DecodedLoops,
    Transfer,
    loops_of,
    transfer_of,
    uop_of,
)
from tilewright.targets.vta.functional.gemm_alu import largest, trips
from tilewright.targets.vta.functional.load_store import depth_of, footprint_of
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.instruction_format import (
    ACC,
    ACC_8BIT,
    ALU,
    ALU_MUL,
    FINISH,
    GEMM,
    INP,
    LOAD,
    OUT,
    STORE,
    UOP,
    WGT,
    Layout,
    get,
    module_of,
)
from tilewright.targets.vta.numba_decorators import helper
from tilewright.targets.vta.spec import Machine

MOST_FAULTS = 12
NULL_PAGE_END = 4096


@helper
def check(
    m: Machine, lay: Layout, rules: SemanticRules, pads: Scratchpads, lo: int, hi: int,
    base: int, image_bytes: int, queues_of_flags: NDArray[np.int64], found: NDArray[np.int64],
) -> int:  # fmt: skip
    """Check one instruction and return its number of faults.

    The time of the check is proportional to the number of micro-ops. Faults that depend on single
    loop iterations are found by `first_hazard` instead.

    Args:
        m: the machine.
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads.
        lo: low word of the instruction.
        hi: high word of the instruction.
        base: byte address of the memory image.
        image_bytes: size of the memory image in bytes.
        queues_of_flags: queue of each module and flag, shape (3, 4), as in `issue_order`.
        found: fault records from row 1 on, shape (MOST_FAULTS + 1, 4); overwritten.
    """
    found[0, 0] = 0
    opcode = get(lo, hi, 0, 3)
    module = module_of(opcode, get(lo, hi, 7, 3))
    if not rules.illegal_flags_ignored:
        for flag in range(4):
            if queues_of_flags[module, flag] < 0 and get(lo, hi, 3 + flag, 1):
                _report(found, f.ILLEGAL_DEPENDENCY_FLAG, get(lo, hi, 0, 7) & 0x78, 0, 0)
                break
    if opcode == LOAD:
        _check_load(m, rules, transfer_of(lo, hi), base, image_bytes, found)
    elif opcode == STORE:
        _check_store(m, rules, transfer_of(lo, hi), base, image_bytes, found)
    elif opcode == GEMM:
        _check_gemm(lay, rules, pads, loops_of(lay, lo, hi), found)
    elif opcode == ALU:
        _check_alu(lay, rules, pads, loops_of(lay, lo, hi), found)
    elif opcode != FINISH:
        _report(found, f.UNDEFINED_OPCODE, opcode, 0, 0)
    return int(found[0, 0])


@helper
def work_of(
    m: Machine, lay: Layout, rules: SemanticRules, lo: int, hi: int, inp_row: int, acc_row: int
) -> int:
    """Estimate the cost of simulating an instruction, in units of multiply-accumulates.

    Args:
        m: the machine.
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        lo: low word of the instruction.
        hi: high word of the instruction.
        inp_row: number of values per row of an input element in the simulator's arrays.
        acc_row: number of values per row of an accumulator element in the simulator's arrays.
    """
    opcode = get(lo, hi, 0, 3)
    if opcode in (LOAD, STORE):
        t = transfer_of(lo, hi)
        if t.x_size == 0:
            return 1
        elements = (t.y_pad_0 + t.y_size + t.y_pad_1) * (t.x_pad_0 + t.x_size + t.x_pad_1)
        memory = OUT if opcode == STORE else t.memory
        return int(4 * elements * footprint_of(m, memory, t).step)
    if opcode in (GEMM, ALU):
        outer, inner, uops = trips(rules, loops_of(lay, lo, hi))
        width = inp_row if opcode == GEMM else 16
        # the limit keeps the product within 64 bits
        iterations = min(outer * inner * uops, 1 << 40)
        return int(iterations * m.batch * acc_row * width)
    return 1


@helper
def decodable_load(m: Machine, memory: int, extensions: int) -> int:
    """Return whether the memory type of a LOAD exists.

    ACC_8BIT converts bytes to accumulators. It exists only if `extensions` is set and the machine
    has 8-bit inputs and 32-bit accumulators.

    Args:
        m: the machine.
        memory: the memory type.
        extensions: 1 if the semantics include ACC_8BIT, else 0.
    """
    if memory == ACC_8BIT:
        return int(extensions and m.acc_bits == 32 and m.inp_bits == 8)
    return int(memory in (UOP, WGT, INP, ACC))


@helper
def _report(found: NDArray[np.int64], fault: int, value: int, limit: int, extra: int) -> None:
    if found[0, 0] < MOST_FAULTS:
        found[0, 0] += 1
        row = found[found[0, 0]]
        row[0], row[1], row[2], row[3] = fault, value, limit, extra


@helper
def _check_load(
    m: Machine,
    rules: SemanticRules,
    t: Transfer,
    base: int,
    image_bytes: int,
    found: NDArray[np.int64],
) -> None:
    if not decodable_load(m, t.memory, rules.extensions):
        # The RTL stops at this instruction even if it moves nothing. The functional simulator
        # ignores it.
        if t.memory == ACC_8BIT and not rules.extensions:
            _report(found, f.ACC_8BIT_LOAD, t.memory, 0, 0)
        elif t.x_size or not rules.extensions:
            _report(found, f.UNDEFINED_LOAD_MEMORY_TYPE, t.memory, 0, 0)
        return
    if t.x_size == 0:
        return
    if t.y_size == 0 and rules.empty_rows_hang:
        _report(found, f.Y_SIZE_ZERO, 0, 0, 0)
    elements = (t.x_pad_0 + t.x_size + t.x_pad_1) * (t.y_pad_0 + t.y_size + t.y_pad_1)
    depth = depth_of(rules, t.memory)
    if not rules.indices_wrap and t.sram_base + elements > depth:
        _report(found, f.SCRATCHPAD_OVERFLOW, t.sram_base + elements, depth, t.memory)
    _check_image(m, t.memory, t, base, image_bytes, found)


@helper
def _check_store(
    m: Machine,
    rules: SemanticRules,
    t: Transfer,
    base: int,
    image_bytes: int,
    found: NDArray[np.int64],
) -> None:
    if t.x_size == 0:
        return
    if not rules.store_ignores_fields:
        if t.memory != OUT:
            _report(found, f.UNDEFINED_STORE_MEMORY_TYPE, t.memory, 0, 0)
        if t.y_pad_0 or t.y_pad_1 or t.x_pad_0 or t.x_pad_1:
            _report(found, f.STORE_PADDING, 0, 0, 0)
    if t.y_size == 0 and rules.empty_rows_hang:
        _report(found, f.Y_SIZE_ZERO, 0, 0, 0)
    end = t.sram_base + t.x_size * t.y_size
    if not rules.indices_wrap and end > rules.acc_depth:
        _report(found, f.STORE_SCRATCHPAD_OVERFLOW, end, rules.acc_depth, ACC)
    _check_image(m, OUT, t, base, image_bytes, found)


@helper
def _check_image(
    m: Machine, memory: int, t: Transfer, base: int, image_bytes: int, found: NDArray[np.int64]
) -> None:
    foot = footprint_of(m, memory, t)
    limit = base + image_bytes
    end = foot.start
    if t.y_size > 0:
        end += (t.y_size - 1) * foot.pitch + t.x_size * foot.step
    if foot.start < base or foot.start >= limit:
        null = foot.start < NULL_PAGE_END
        _report(found, f.DRAM_NULL_PAGE if null else f.DRAM_OUT_OF_RANGE, foot.start, limit, 0)
    elif end > limit:
        _report(found, f.DRAM_PARTLY_OUT_OF_RANGE, end, limit, 0)


@helper
def _check_gemm(
    lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops, found: NDArray[np.int64]
) -> None:
    outer, inner, uops = trips(rules, g)
    if rules.indices_wrap or outer == 0 or inner == 0 or uops == 0:
        return
    if g.uop_end > rules.uop_depth:
        _report(found, f.UOP_INDEX_OVERFLOW, g.uop_end, rules.uop_depth, 0)
    seen_d = seen_s = seen_t = False
    for k in range(g.uop_bgn, min(g.uop_end, rules.uop_depth)):
        d, s, t = uop_of(lay, pads.uop[k])
        d = largest(d, outer, g.dst_out, inner, g.dst_in)
        s = largest(s, outer, g.src_out, inner, g.src_in)
        t = largest(t, outer, g.wgt_out, inner, g.wgt_in)
        if d >= rules.acc_depth and not seen_d:
            _report(found, f.ACC_INDEX_OVERFLOW, d, rules.acc_depth, k)
            seen_d = True
        if g.reset:
            continue
        if s >= rules.inp_depth and not seen_s:
            _report(found, f.INP_INDEX_OVERFLOW, s, rules.inp_depth, k)
            seen_s = True
        if t >= rules.wgt_depth and not seen_t:
            _report(found, f.WGT_INDEX_OVERFLOW, t, rules.wgt_depth, k)
            seen_t = True


@helper
def _check_alu(
    lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops, found: NDArray[np.int64]
) -> None:
    if g.alu_opcode > ALU_MUL:
        _report(found, f.UNDEFINED_ALU_OPCODE, g.alu_opcode, 0, 0)
    elif g.alu_opcode == ALU_MUL and not rules.extensions:
        _report(found, f.ALU_MUL, 0, 0, 0)
    outer, inner, uops = trips(rules, g)
    if rules.indices_wrap or outer == 0 or inner == 0 or uops == 0:
        return
    if g.uop_end > rules.uop_depth:
        _report(found, f.UOP_INDEX_OVERFLOW, g.uop_end, rules.uop_depth, 0)
    for k in range(g.uop_bgn, min(g.uop_end, rules.uop_depth)):
        d, s, _ = uop_of(lay, pads.uop[k])
        d = largest(d, outer, g.dst_out, inner, g.dst_in)
        s = largest(s, outer, g.src_out, inner, g.src_in)
        # the source index is checked even if the operand is an immediate
        if max(d, s) >= rules.acc_depth:
            _report(found, f.ACC_INDEX_OVERFLOW, max(d, s), rules.acc_depth, k)
            break


@helper
def first_hazard(lay: Layout, rules: SemanticRules, pads: Scratchpads, lo: int, hi: int) -> int:
    """Find the first read-after-write hazard of an ALU instruction.

    In the Chisel RTL (TensorAlu), an immediate operation must not have the same destination in two
    consecutive iterations, and a tensor operation must not read the destination of the previous
    iteration.

    Args:
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads.
        lo: low word of the instruction.
        hi: high word of the instruction.

    Returns:
        The index of the accumulator, or -1 if there is no hazard or the semantics allow hazards.
    """
    if not rules.alu_hazards_stop or get(lo, hi, 0, 3) != ALU:
        return -1
    g = loops_of(lay, lo, hi)
    outer, inner, uops = trips(rules, g)
    previous = -1
    for i in range(outer):
        for j in range(inner):
            for k in range(uops):
                d, s, _ = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
                d = (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth
                s = (s + i * g.src_out + j * g.src_in) % rules.acc_depth
                if previous == (d if g.use_imm else s):
                    return previous
                previous = d
    return -1
