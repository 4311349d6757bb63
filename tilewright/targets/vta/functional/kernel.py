"""Runs one program from its first to its last instruction in a single compiled call.

The call releases the GIL, so that batches of programs can run in threads. Each thread needs its own
`Scratchpads` and `ExecutionOutcome`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional import faults as f
from tilewright.targets.vta.functional.checks import MOST_FAULTS, check, first_hazard, work_of
from tilewright.targets.vta.functional.decode import loops_of, transfer_of
from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS, issue_order
from tilewright.targets.vta.functional.gemm_alu import alu, gemm, trips
from tilewright.targets.vta.functional.load_store import load, store
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.instruction_format import (
    ACC,
    ACC_8BIT,
    ALU,
    FINISH,
    GEMM,
    INP,
    LOAD,
    OUT,
    STORE,
    WGT,
    Layout,
    get,
)
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, kernel, unowned
from tilewright.targets.vta.spec import Machine

COUNTER_NAMES = (
    "inp_load_nbytes",
    "wgt_load_nbytes",
    "acc_load_nbytes",
    "uop_load_nbytes",
    "out_store_nbytes",
    "gemm_counter",
    "alu_counter",
)
"""Names of the functional simulator's counters: bytes that are transferred, without padding, and
iterations of GEMM and ALU, without resets."""


class ExecutionOutcome(NamedTuple):
    """Result of a run without the memory image, as int64 arrays that compiled code fills."""

    counters: NDArray[np.int64]  # shape (7,), see COUNTER_NAMES
    # tokens per queue before the run, replaced by those after it; shape (4,)
    tokens: NDArray[np.int64]
    heads: NDArray[np.int64]  # instruction at which each module is stuck, or -1; shape (3,)
    fault: NDArray[np.int64]  # instruction, fault code, value, limit and extra; shape (5,)


def outcome(tokens: tuple[int, int, int, int] = (0, 0, 0, 0)) -> ExecutionOutcome:
    """Allocate the arrays for the result of a run.

    Args:
        tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start.
    """
    return ExecutionOutcome(
        np.zeros(len(COUNTER_NAMES), np.int64),
        np.array(tokens, np.int64),
        np.full(3, -1, np.int64),
        np.zeros(5, np.int64),
    )


@kernel
def run(
    insns: NDArray[np.uint64], dram: NDArray[np.uint8], base: int, m: Machine, lay: Layout,
    rules: SemanticRules, pads: Scratchpads, queues_of_flags: NDArray[np.int64],
    result: ExecutionOutcome,
) -> int:  # fmt: skip
    """Run a program.

    Args:
        insns: low and high word of each instruction, uint64, shape (n, 2).
        dram: memory image, uint8, changed in place; `dram[0]` is at address `base`.
        base: byte address of the memory image.
        m: the machine.
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: scratchpads of the run. They must be zero at the start, unless earlier content is to
            be kept.
        queues_of_flags: `execution_order.QUEUES_OF_FLAGS`.
        result: filled with the outcome.

    Returns:
        The code of the fault that stopped the program, or 0 if there was none.
    """
    return _run(
        unowned(insns), unowned(dram), base, m, lay, rules, unowned(pads),
        unowned(queues_of_flags), unowned(result),
    )  # fmt: skip


@allocating_helper
def _run(
    insns: NDArray[np.uint64], dram: NDArray[np.uint8], base: int, m: Machine, lay: Layout,
    rules: SemanticRules, pads: Scratchpads, queues_of_flags: NDArray[np.int64],
    result: ExecutionOutcome,
) -> int:  # fmt: skip
    order = issue_order(insns, queues_of_flags, result.tokens, result.heads)
    found = np.zeros((MOST_FAULTS + 1, 4), np.int64)
    finish, work = -1, 0
    for n in order:
        lo, hi = insns[n, 0], insns[n, 1]
        if finish >= 0 and not rules.finish_ends and get(lo, hi, 0, 3) != FINISH:
            return _record(result, n, f.INSTRUCTION_AFTER_FINISH, finish, 0, 0)
        if check(m, lay, rules, pads, lo, hi, base, dram.size, queues_of_flags, found):
            return _record(result, n, found[1, 0], found[1, 1], found[1, 2], found[1, 3])
        work += work_of(m, lay, rules, lo, hi, pads.inp_row, pads.acc_row)
        if work > rules.work_limit:
            return _record(result, n, f.WORK_LIMIT_EXCEEDED, work, rules.work_limit, 0)
        hazard = first_hazard(lay, rules, pads, lo, hi)
        if hazard >= 0:
            return _record(result, n, f.ALU_RAW_HAZARD, hazard, 0, 0)
        execute_one(m, lay, rules, pads, lo, hi, dram, base, result.counters)
        if get(lo, hi, 0, 3) == FINISH and finish < 0:
            finish = n
    if len(order) < len(insns) and not (rules.finish_ends and finish >= 0):
        return _record(result, -1, f.DEADLOCK, 0, 0, 0)
    if finish < 0:
        return _record(result, -1, f.MISSING_FINISH, 0, 0, 0)
    return 0


@helper
def execute_one(
    m: Machine, lay: Layout, rules: SemanticRules, pads: Scratchpads, lo: int, hi: int,
    dram: NDArray[np.uint8], base: int, counters: NDArray[np.int64],
) -> None:  # fmt: skip
    """Execute one instruction, without accesses outside of the scratchpads or the memory image.

    Args:
        m: the machine.
        lay: bit positions of the instruction fields.
        rules: the simulated behaviour where implementations of the VTA differ.
        pads: the scratchpads.
        lo: low word of the instruction.
        hi: high word of the instruction.
        dram: memory image, uint8, shape (bytes,).
        base: byte address of the memory image.
        counters: counters, shape (len(COUNTER_NAMES),); updated in place.
    """
    opcode = get(lo, hi, 0, 3)
    if opcode in (LOAD, STORE):
        t = transfer_of(lo, hi)
        if opcode == STORE:
            store(m, rules, pads, dram, base, t)
            counters[4] += t.x_size * t.y_size * m.out_bytes
        elif t.memory != OUT and t.memory <= ACC_8BIT:
            load(m, rules, pads, dram, base, t)
            elements = t.x_size * t.y_size
            if t.memory == INP:
                counters[0] += elements * m.inp_bytes
            elif t.memory == WGT:
                counters[1] += elements * m.wgt_bytes
            elif t.memory == ACC or t.memory == ACC_8BIT:
                counters[2] += elements * m.acc_bytes
            else:
                counters[3] += elements * m.uop_bytes
    elif opcode in (GEMM, ALU):
        g = loops_of(lay, lo, hi)
        outer, inner, uops = trips(rules, g)
        if opcode == ALU:
            alu(m, lay, rules, pads, g)
            counters[6] += outer * inner * uops
        else:
            gemm(m, lay, rules, pads, g)
            if not g.reset:
                counters[5] += outer * inner * uops


@helper
def _record(
    result: ExecutionOutcome, instruction: int, fault: int, value: int, limit: int, extra: int
) -> int:
    result.fault[0], result.fault[1] = instruction, fault
    result.fault[2], result.fault[3], result.fault[4] = value, limit, extra
    return fault


__all__ = ["COUNTER_NAMES", "QUEUES_OF_FLAGS", "ExecutionOutcome", "execute_one", "outcome", "run"]
