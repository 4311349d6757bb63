"""Timing whole batches: lower into a scratch buffer, simulate, keep the numbers."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from targets.vta.isa import Layout
from targets.vta.lowering import emit
from targets.vta.lowering.batch import Lowering, lower_one, over_chunks
from targets.vta.lowering.geometry import Geometry
from targets.vta.spec import Machine
from targets.vta.timing.kernel import Simulator, simulate
from targets.vta.timing.machine import simulator_of

COUNTER_NAMES = (
    "instructions", "inp_load_bytes", "wgt_load_bytes", "acc_load_bytes", "uop_load_bytes",
    "out_store_bytes", "gemm_iterations", "alu_iterations",
)  # fmt: skip
_SLOTS = (
    emit.COUNT, emit.INP_BYTES, emit.WGT_BYTES, emit.ACC_BYTES, emit.UOP_BYTES, emit.OUT_BYTES,
    emit.GEMM_ITERATIONS, emit.ALU_ITERATIONS,
)  # fmt: skip


def measure_rows(
    lowering: Lowering, values: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cycles (n,) and counters (n, len(COUNTER_NAMES)) of configs that lower.

    `values` (n, knobs) are knob values, `sizes` (n,) their instruction counts. -1 cycles where a
    program does not finish.
    """
    cycles = np.full(len(values), -1, np.int64)
    states = np.zeros((len(values), emit.STATE_SIZE), np.int64)

    def run(begin: int, end: int) -> None:
        longest = int(sizes[begin:end].max(initial=0))
        _measure_rows(
            lowering.code, lowering.geometry, lowering.machine, lowering.layout, lowering.epilogue,
            values, lowering.stock, begin, end, longest, cycles, states,
            simulator_of(lowering.spec),
        )  # fmt: skip

    over_chunks(len(values), run)
    return cycles, states[:, _SLOTS]


@nb.njit(cache=True, nogil=True)
def _measure_rows(
    kind: int, geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
    values: NDArray[np.int64], stock: bool, begin: int, end: int, longest: int,
    cycles: NDArray[np.int64], states: NDArray[np.int64], sim: Simulator,
) -> None:  # fmt: skip
    out = np.zeros((longest, 2), np.uint64)
    uops = np.zeros(1 << m.log_uop_depth, np.uint64)
    tokens = np.zeros(4, np.int64)
    untimed = np.zeros(0, np.int64)
    unexplained = np.zeros((0, 0), np.int64)
    for r in range(begin, end):
        code = lower_one(kind, geo, m, lay, epilogue, values[r], stock, out, uops, states[r])
        if code == 0:
            n = states[r, emit.COUNT]
            cycles[r] = simulate(
                out[:n], geo.insn_bytes_at, tokens, untimed, untimed, unexplained, sim
            )
