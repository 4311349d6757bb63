"""Scans a program in one pass that looks at every instruction and lets none stop it.

The program runs twice side by side: on zeroed scratchpads and on scratchpads full of noise. If the
two store different values, the result depends on what was there before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.checks import MOST_FAULTS, check, first_hazard, work_of
from tilewright.targets.vta.functional.decode import loops_of, transfer_of
from tilewright.targets.vta.functional.faults import ALU_RAW_HAZARD, WORK_LIMIT_EXCEEDED
from tilewright.targets.vta.functional.kernel import execute_one
from tilewright.targets.vta.functional.scratchpads import Scratchpads
from tilewright.targets.vta.functional.semantics import SemanticRules
from tilewright.targets.vta.functional.transfer import footprint_of
from tilewright.targets.vta.isa import ACC_8BIT, ALU, ALU_SHR, GEMM, LOAD, OUT, STORE, Layout, get
from tilewright.targets.vta.lint import classes as c
from tilewright.targets.vta.lint.log import Log, note
from tilewright.targets.vta.lint.portability import (
    HLS_GEMM_PIPELINE,
    Accesses,
    inspect_alu,
    inspect_gemm,
    inspect_transfer,
    inspect_trips,
    run_tensor_shift,
)
from tilewright.targets.vta.njit_args import helper, kernel
from tilewright.targets.vta.spec import Machine


@kernel
def survey(
    insns: NDArray[np.uint64], order: NDArray[np.int64], clocks: NDArray[np.int32],
    dram: NDArray[np.uint8], noisy_dram: NDArray[np.uint8], base: int, m: Machine, lay: Layout,
    rules: SemanticRules, pads: Scratchpads, noisy: Scratchpads, queues_of_flags: NDArray[np.int64],
    seen: Accesses, log: Log,
) -> None:  # fmt: skip
    """Note what is wrong with each instruction, in the order they run. Changes both images.

    `insns` (n, 2), `order` as they run, `clocks` (n, 3) of `clocks_of`; both images are (bytes,).
    Instructions beyond the work limit are noted and skipped.
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
