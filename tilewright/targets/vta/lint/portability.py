"""Finds instructions whose behaviour differs between the implementations of the VTA.

Each `inspect_…` function examines instruction `n` just before it runs, with the scratchpads in
their state at that time. No instruction stops the examination. `clock`, shape (3,), is the number
of instructions of each module that have certainly finished when instruction `n` has finished.

`survey` runs the program twice in parallel: on scratchpads that contain zeros, and on scratchpads
that contain noise. If the two runs store different values, the result depends on the previous
content of the scratchpads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.checks import MOST_FAULTS, check, first_hazard, work_of
from tilewright.targets.vta.functional.decode import (
    DecodedLoops,
    Transfer,
    loops_of,
    transfer_of,
    uop_of,
)
from tilewright.targets.vta.functional.faults import ALU_RAW_HAZARD, WORK_LIMIT_EXCEEDED
from tilewright.targets.vta.functional.gemm_alu import shift_element, trips
from tilewright.targets.vta.functional.kernel import execute_one
from tilewright.targets.vta.functional.load_store import depth_of, footprint_of
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.instruction_format import (
    ACC,
    ACC_8BIT,
    ALU,
    ALU_SHR,
    GEMM,
    INP,
    LOAD,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    OUT,
    STORE,
    UOP,
    WGT,
    Layout,
    get,
)
from tilewright.targets.vta.lint import findings as c
from tilewright.targets.vta.lint.findings import Log, note
from tilewright.targets.vta.numba_decorators import helper, kernel
from tilewright.targets.vta.spec import Machine

HLS_GEMM_PIPELINE = 4
"""Number of iterations within which the HLS GEMM must not use the same accumulator again."""


class Accesses(NamedTuple):
    """Last access to each scratchpad element, as an instruction count of the accessing module.

    The count is 0 if there was no access. Each array has the depth of its scratchpad. Only accesses
    that can race are recorded: LOADs write inputs and weights that GEMM reads, and the compute
    module writes accumulators that STORE reads.
    """

    inp_written: NDArray[np.int32]
    inp_read: NDArray[np.int32]
    wgt_written: NDArray[np.int32]
    wgt_read: NDArray[np.int32]
    acc_written: NDArray[np.int32]
    acc_read: NDArray[np.int32]
    acc_met: NDArray[np.int64]  # last GEMM iteration that used each accumulator


def no_accesses(rules: SemanticRules) -> Accesses:
    """Allocate the record of accesses before the first instruction, without any access."""
    inp, wgt, acc = rules.inp_depth, rules.wgt_depth, rules.acc_depth
    return Accesses(
        np.zeros(inp, np.int32), np.zeros(inp, np.int32), np.zeros(wgt, np.int32),
        np.zeros(wgt, np.int32), np.zeros(acc, np.int32), np.zeros(acc, np.int32),
        np.zeros(acc, np.int64),
    )  # fmt: skip


@helper
def inspect_transfer(
    m: Machine, rules: SemanticRules, pads: Scratchpads, is_store: bool, t: Transfer,
    clock: NDArray[np.int32], seen: Accesses, n: int, log: Log,
) -> None:  # fmt: skip
    """Examine a LOAD or STORE that transfers at least one element.

    Args:
        m: the machine.
        rules: the semantic rules.
        pads: the scratchpads.
        is_store: whether the instruction is a STORE.
        t: fields of the instruction.
        clock: number of instructions of each module that have certainly finished, shape (3,).
        seen: last accesses to the scratchpads; changed in place.
        n: index of the instruction.
        log: log of findings; changed in place.
    """
    memory = OUT if is_store else t.memory
    foot = footprint_of(m, memory, t)
    if foot.wrapped:
        note(log, c.DRAM_ADDRESS_WRAP, n, foot.start, 0, 0)
    padded = t.y_pad_0 or t.y_pad_1 or t.x_pad_0 or t.x_pad_1
    if is_store:
        _inspect_stored(rules, pads, t, clock, seen, n, log)
        return
    elements = (t.y_pad_0 + t.y_size + t.y_pad_1) * (t.x_pad_0 + t.x_size + t.x_pad_1)
    if memory == UOP:
        end = t.sram_base + elements
        if m.uop_built < end:
            note(log, c.UOP_INDEX_NOT_BUILT, n, end, m.uop_built, 0)
        if padded or t.y_size > 1:
            note(log, c.HLS_UOP_2D, n, 0, 0, 0)
        return
    written, read, rival = seen.acc_written, seen.acc_read, MODULE_STORE
    if memory == WGT:
        written, read, rival = seen.wgt_written, seen.wgt_read, MODULE_COMPUTE
        if padded:
            note(log, c.HLS_WGT_PADDING, n, 0, 0, 0)
    elif memory == INP:
        written, read, rival = seen.inp_written, seen.inp_read, MODULE_COMPUTE
    module = MODULE_COMPUTE if rival == MODULE_STORE else MODULE_LOAD
    raced = False
    for k in range(min(elements, depth_of(rules, memory))):
        index = (t.sram_base + k) % depth_of(rules, memory)
        if read[index] > clock[rival] and not raced:
            raced = True
            note(log, c.DATA_RACE, n, index, 0, memory)
        written[index] = clock[module]


@helper
def _inspect_stored(
    rules: SemanticRules, pads: Scratchpads, t: Transfer,
    clock: NDArray[np.int32], seen: Accesses, n: int, log: Log,
) -> None:  # fmt: skip
    stale = raced = False
    for k in range(min(t.x_size * t.y_size, rules.acc_depth)):
        index = (t.sram_base + k) % rules.acc_depth
        if not pads.fresh[index] and not stale:
            stale = True
            note(log, c.STALE_STORE, n, index, 0, 0)
        if seen.acc_written[index] > clock[MODULE_COMPUTE] and not raced:
            raced = True
            note(log, c.DATA_RACE, n, index, 0, ACC)
        seen.acc_read[index] = clock[MODULE_STORE]


@helper
def inspect_trips(m: Machine, g: DecodedLoops, n: int, log: Log) -> bool:
    """Examine the loop counts of a GEMM or ALU instruction.

    Returns:
        Whether the instruction executes at least one iteration.
    """
    if g.iter_out == 0 or g.iter_in == 0:
        note(log, c.ZERO_TRIP_COUNT, n, 0, 0, 0)
    if g.uop_end <= g.uop_bgn:
        note(log, c.EMPTY_UOP_RANGE, n, 0, 0, 0)
    if g.iter_out == 0 or g.iter_in == 0 or g.uop_end <= g.uop_bgn:
        return False
    if m.uop_built < g.uop_end:
        note(log, c.UOP_INDEX_NOT_BUILT, n, g.uop_end, m.uop_built, 0)
    return True


@helper
def inspect_gemm(
    lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops, first_iteration: int,
    clock: NDArray[np.int32], seen: Accesses, n: int, log: Log,
) -> None:  # fmt: skip
    """Examine a GEMM that executes at least one iteration.

    Args:
        lay: layout of the instruction fields.
        rules: the semantic rules.
        pads: the scratchpads.
        g: fields of the instruction.
        first_iteration: number of the instruction's first iteration. Iterations are counted over
            the whole program, with a gap of the length of the HLS pipeline between instructions.
        clock: number of instructions of each module that have certainly finished, shape (3,).
        seen: last accesses to the scratchpads; changed in place.
        n: index of the instruction.
        log: log of findings; changed in place.
    """
    outer, inner, uops = trips(rules, g)
    iteration = first_iteration
    reused = raced = False
    for i in range(outer):
        for j in range(inner):
            for k in range(uops):
                d, s, t = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
                d = (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth
                race = _write_acc(seen, d, clock)
                if not g.reset:
                    s = (s + i * g.src_out + j * g.src_in) % rules.inp_depth
                    t = (t + i * g.wgt_out + j * g.wgt_in) % rules.wgt_depth
                    race |= seen.inp_written[s] > clock[MODULE_LOAD]
                    race |= seen.wgt_written[t] > clock[MODULE_LOAD]
                    seen.inp_read[s] = seen.wgt_read[t] = clock[MODULE_COMPUTE]
                distance = iteration - seen.acc_met[d]
                if not reused and not g.reset and distance < HLS_GEMM_PIPELINE:
                    reused = True
                    note(log, c.HLS_GEMM_ACC_RAW, n, d, distance, 0)
                if race and not raced:
                    raced = True
                    note(log, c.DATA_RACE, n, d, 0, ACC)
                seen.acc_met[d] = iteration
                iteration += 1


@helper
def inspect_alu(
    lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops,
    clock: NDArray[np.int32], seen: Accesses, n: int, log: Log,
) -> None:  # fmt: skip
    """Examine an ALU instruction that executes at least one iteration.

    `run_tensor_shift` examines the amounts of a shift with a tensor operand.

    Args:
        lay: layout of the instruction fields.
        rules: the semantic rules.
        pads: the scratchpads.
        g: fields of the instruction.
        clock: number of instructions of each module that have certainly finished, shape (3,).
        seen: last accesses to the scratchpads; changed in place.
        n: index of the instruction.
        log: log of findings; changed in place.
    """
    if g.use_imm and g.alu_opcode == ALU_SHR:
        if abs(g.imm) > 31:
            note(log, c.SHIFT_UNDEFINED, n, g.imm, 0, 0)
        if abs(g.imm) > 15:
            note(log, c.HLS_SHIFT_GT15, n, g.imm, 0, 0)
    outer, inner, uops = trips(rules, g)
    differs = raced = False
    for i in range(outer):
        for j in range(inner):
            for k in range(uops):
                d, s, _ = uop_of(lay, pads.uop[(g.uop_bgn + k) % rules.uop_depth])
                d = (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth
                s = (s + i * g.src_out + j * g.src_in) % rules.acc_depth
                if g.use_imm and s != d and not differs:
                    differs = True
                    note(log, c.ALU_IMM_SRC_NE_DST, n, s, d, 0)
                if _write_acc(seen, d, clock) and not raced:
                    raced = True
                    note(log, c.DATA_RACE, n, d, 0, ACC)


@helper
def run_tensor_shift(
    m: Machine, lay: Layout, rules: SemanticRules, pads: Scratchpads, g: DecodedLoops, n: int,
    log: Log,
) -> None:  # fmt: skip
    """Execute a shift by a tensor, and log amounts that implementations treat differently."""
    note(log, c.ALU_TENSOR_SHIFT, n, 0, 0, 0)
    outer, inner, uops = trips(rules, g)
    size = m.batch * pads.acc_row
    negative = undefined = long = False
    for i in range(outer):
        for j in range(inner):
            for k in range(g.uop_bgn, g.uop_bgn + uops):
                d, s, _ = uop_of(lay, pads.uop[k % rules.uop_depth])
                d = (d + i * g.dst_out + j * g.dst_in) % rules.acc_depth
                s = (s + i * g.src_out + j * g.src_in) % rules.acc_depth
                for b in range(m.batch):
                    for lane in range(m.block_out):
                        amount = pads.acc[s * size + b * pads.acc_row + lane]
                        if amount < 0 and not negative:
                            negative = True
                            note(log, c.ALU_TENSOR_SHIFT_NEGATIVE, n, d, 0, 0)
                        if (amount > 15 or amount < -15) and not long:
                            long = True
                            note(log, c.HLS_SHIFT_GT15, n, amount, 0, 0)
                        if (amount > 31 or amount < -31) and not undefined:
                            undefined = True
                            note(log, c.SHIFT_UNDEFINED, n, amount, 0, 0)
                shift_element(pads.acc, d, s, size, m.acc_bits)
                pads.fresh[d] = 1


@helper
def _write_acc(seen: Accesses, d: int, clock: NDArray[np.int32]) -> bool:
    """Record that compute writes an accumulator.

    Returns:
        Whether a STORE may still be reading the accumulator.
    """
    seen.acc_written[d] = clock[MODULE_COMPUTE]
    return bool(seen.acc_read[d] > clock[MODULE_STORE])


@kernel
def survey(
    insns: NDArray[np.uint64], order: NDArray[np.int64], clocks: NDArray[np.int32],
    dram: NDArray[np.uint8], noisy_dram: NDArray[np.uint8], base: int, m: Machine, lay: Layout,
    rules: SemanticRules, pads: Scratchpads, noisy: Scratchpads, queues_of_flags: NDArray[np.int64],
    seen: Accesses, log: Log,
) -> None:  # fmt: skip
    """Log the findings of each instruction, in the order in which the instructions run.

    Instructions beyond the work limit are logged and skipped.

    Args:
        insns: instructions, shape (n, 2).
        order: indices of the instructions in the order in which they run, shape (k,).
        clocks: clocks of `clocks_of`, shape (n, 3).
        dram: memory image for the run on zeroed scratchpads, shape (bytes,); changed in place.
        noisy_dram: memory image for the run on noise, shape (bytes,); changed in place.
        base: byte address of both images.
        m: the machine.
        lay: layout of the instruction fields.
        rules: the semantic rules.
        pads: zeroed scratchpads.
        noisy: scratchpads filled with noise.
        queues_of_flags: queue of each module and flag, shape (3, 4).
        seen: last accesses to the scratchpads; changed in place.
        log: log of findings; changed in place.
    """
    found = np.zeros((MOST_FAULTS + 1, 4), np.int64)
    ignored = np.zeros(7, np.int64)
    work, iteration = 0, HLS_GEMM_PIPELINE
    for n in order:
        lo, hi = insns[n, 0], insns[n, 1]
        check(m, lay, rules, pads, lo, hi, base, dram.size, queues_of_flags, found)
        for k in range(1, found[0, 0] + 1):
            note(log, found[k, 0], n, found[k, 1], found[k, 2], found[k, 3])
        cost = work_of(m, lay, rules, lo, hi, pads.inp_row, pads.acc_row)
        if work + cost > rules.work_limit:
            note(log, WORK_LIMIT_EXCEEDED, n, work + cost, rules.work_limit, 0)
            continue
        work += cost
        hazard = first_hazard(lay, rules, pads, lo, hi)
        if hazard >= 0:
            note(log, ALU_RAW_HAZARD, n, hazard, 0, 0)
        opcode, executed = get(lo, hi, 0, 3), False
        if opcode == LOAD or opcode == STORE:
            t = transfer_of(lo, hi)
            if t.x_size and (opcode == STORE or (t.memory != OUT and t.memory <= ACC_8BIT)):
                inspect_transfer(m, rules, pads, opcode == STORE, t, clocks[n], seen, n, log)
        elif opcode == GEMM or opcode == ALU:
            g = loops_of(lay, lo, hi)
            active = inspect_trips(m, g, n, log)
            if active and opcode == GEMM:
                inspect_gemm(lay, rules, pads, g, iteration, clocks[n], seen, n, log)
                iteration += g.iter_out * g.iter_in * (g.uop_end - g.uop_bgn) + HLS_GEMM_PIPELINE
            elif active:
                inspect_alu(lay, rules, pads, g, clocks[n], seen, n, log)
                if g.alu_opcode == ALU_SHR and not g.use_imm:
                    run_tensor_shift(m, lay, rules, pads, g, n, log)
                    executed = True
        if not executed:
            execute_one(m, lay, rules, pads, lo, hi, dram, base, ignored)
        execute_one(m, lay, rules, noisy, lo, hi, noisy_dram, base, ignored)
        if opcode == STORE:
            _compare_stored(m, lo, hi, dram, noisy_dram, base, n, log)


@helper
def _compare_stored(
    m: Machine, lo: int, hi: int,
    dram: NDArray[np.uint8], noisy_dram: NDArray[np.uint8], base: int, n: int, log: Log,
) -> None:  # fmt: skip
    t = transfer_of(lo, hi)
    if t.x_size == 0:
        return
    foot = footprint_of(m, OUT, t)
    for y in range(t.y_size):
        first = foot.start - base + y * foot.pitch
        for at in range(max(first, 0), min(first + t.x_size * foot.step, dram.size)):
            if dram[at] != noisy_dram[at]:
                note(log, c.READS_UNINITIALISED, n, base + at, 0, 0)
                return
