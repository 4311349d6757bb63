"""Proves that no C10 on `huge` is within 5 % of its bound: `python -m
benchmarks.schedule_spaces.startup_bound`.

The bound counts iterations only. 5 % above it are so few cycles that a program can have no more
than 13 GEMM and ALU instructions, each of which costs 7 cycles beside its iterations. Data are used
where a GEMM instruction starts, so they arrive in as many stages as there are GEMMs; and each stage
is over when the work runs out that the data of the stages before have made possible. All is granted
that could help: data arrive in the best order, pixels are read in whatever pieces are the cheapest,
every output row is finished as soon as it can be. Still, when the GEMMs are used up, not all has
arrived.

Rules of time are those of the RTL for a program of sixteen instructions, the shortest that could
do: fetch is done at cycle 30, a LOAD takes 22 cycles beside its beats, so the first GEMM executes
from cycle 53 on. After the last ALU instruction come 6 cycles of a STORE and FINISH. Every second
pixel is needed: a piece of k of them is 2k - 1 beats, so two in three are the cheapest. A LOAD of
single pixels takes three cycles for each beyond the eighth, so it saves at most four.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from benchmarks.layers import RESNET18
from tilewright.targets.vta.bounds import bounds
from tilewright.targets.vta.spec import VtaSpec

LAYER, TARGET, SHARE = "C10", "huge", 0.05
INSTRUCTION, LOAD, FIRST_LOAD, FIRST_GEMM, LAST_STORE = 7, 22 - 4, 30, 53, 6
INPUT_BLOCKS = 4
ALU_OPERATIONS = 3


@nb.njit
def most_work(
    rows: int, columns: int, row_beats: int, outputs: int, weight_beats: int, beats: int
) -> NDArray[np.int64]:
    """Iterations that so many beats can make possible at most, shape (beats + 1,): reset, GEMMs and
    epilogue, for any rows of each of the four input blocks and any weights on each of them."""
    best = np.zeros(beats + 1, np.int64)
    for r0 in range(rows + 1):
        for r1 in range(r0, rows + 1):
            for r2 in range(r1, rows + 1):
                for r3 in range(r2, rows + 1):
                    for n0 in range(outputs + 1):
                        for n1 in range(outputs + 1):
                            for n2 in range(outputs + 1):
                                for n3 in range(outputs + 1):
                                    at = row_beats * (r0 + r1 + r2 + r3)
                                    at += weight_beats * (n0 + n1 + n2 + n3)
                                    gemm = r0 * n0 + r1 * n1 + r2 * n2 + r3 * n3
                                    done = r0 * min(min(n0, n1), min(n2, n3))
                                    work = columns * (gemm + ALU_OPERATIONS * done)
                                    best[at] = max(best[at], work)
    for at in range(1, beats + 1):
        best[at] = max(best[at], best[at - 1])
    return best + rows * columns * outputs  # the reset needs no data


def arrived(work: NDArray[np.int64], gemms: int, instructions: int, wait: int) -> int:
    """Beats that can have arrived when the last of `gemms` GEMM instructions starts.

    `work` (beats + 1,) of `most_work`; `wait` are cycles in which nothing runs.
    """
    beats = 0
    for stage in range(1, gemms + 1):
        # Over can be all but this GEMM, those after it, and the three of the last epilogue.
        over = instructions - (gemms - stage + 1) - ALU_OPERATIONS
        start = FIRST_GEMM + int(work[beats]) + INSTRUCTION * over + wait
        # Inputs and weights are two LOADs at least, and every later stage is one more.
        beats = min(start - FIRST_LOAD - LOAD * (stage + 1), len(work) - 1)
    return beats


def main() -> None:
    """Print the most that can arrive, for every number of instructions that is short enough."""
    workload, _ = RESNET18[LAYER]
    spec = VtaSpec.load(TARGET)
    m = spec.machine
    limits = bounds(workload, spec)
    outputs = workload.out_channels // m.block_out
    assert workload.in_channels // m.block_in == INPUT_BLOCKS
    assert m.inp_bytes == m.bus_bytes
    row = workload.out_width * 3 // 2
    weight = m.wgt_bytes // m.bus_bytes
    needed = INPUT_BLOCKS * (workload.out_height * row + outputs * weight)
    work = most_work(workload.out_height, workload.out_width, row, outputs, weight, needed)
    assert int(work[needed]) == limits["compute"]
    spare = int(SHARE * limits["compute"]) - FIRST_GEMM - LAST_STORE
    print(
        f"{LAYER} on {TARGET}: bound {limits['compute']:,}, {SHARE:.0%} above leaves {spare} cycles"
    )
    most = 0
    for instructions in range(2, spare // INSTRUCTION + 1):
        # One reset; SHR in two parts at least, or all of it follows the last data.
        for gemms in range(1, instructions - ALU_OPERATIONS - 1):
            wait = spare - INSTRUCTION * instructions
            most = max(most, arrived(work, gemms, instructions, wait))
    print(f"{spare // INSTRUCTION} instructions: at most {most:,} of {needed:,} beats come in time")
    print("out of reach" if most < needed else "not excluded")


if __name__ == "__main__":
    main()
