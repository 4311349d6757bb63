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

COUNTERS = (
    ("instructions", emit.COUNT),
    ("inp_load_bytes", emit.INP_BYTES),
    ("wgt_load_bytes", emit.WGT_BYTES),
    ("acc_load_bytes", emit.ACC_BYTES),
    ("uop_load_bytes", emit.UOP_BYTES),
    ("out_store_bytes", emit.OUT_BYTES),
    ("gemm_iterations", emit.GEMM_ITERATIONS),
    ("alu_iterations", emit.ALU_ITERATIONS),
)
"""Name and place in the emitter's state of what is counted beside cycles."""
COUNTER_NAMES = tuple(name for name, _ in COUNTERS)
COUNTER_SLOTS = tuple(slot for _, slot in COUNTERS)


def measure_rows(
    lowering: Lowering, values: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cycles (n,) and counters (n, len(COUNTERS)) of configs that lower.

    `values` (n, knobs) are knob values, `sizes` (n,) their instruction counts. Cycles are negative
    where a program does not finish (the codes of `targets.vta.timing.kernel`).
    """
    cycles = np.full(len(values), -1, np.int64)
    states = np.zeros((len(values), emit.STATE_SIZE), np.int64)

    def run(begin: int, end: int) -> None:
        longest = int(sizes[begin:end].max(initial=0))
        _measure_rows(
            lowering.code, lowering.geometry, lowering.machine, lowering.layout, lowering.epilogue,
            values, lowering.stock, begin, end, longest, simulator_of(lowering.spec), cycles,
            states,
        )  # fmt: skip

    over_chunks(len(values), run)
    return cycles, states[:, COUNTER_SLOTS]


@nb.njit(cache=True, nogil=True)
def _measure_rows(
    kind: int, geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
    values: NDArray[np.int64], stock: bool, begin: int, end: int, longest: int, sim: Simulator,
    cycles: NDArray[np.int64], states: NDArray[np.int64],
) -> None:  # fmt: skip
    out = np.empty((longest, 2), np.uint64)
    uops = np.zeros(1 << m.log_uop_depth, np.uint64)
    tokens = np.zeros(4, np.int64)
    untimed = np.zeros(0, np.int64)
    unexplained = np.zeros((0, 0), np.int64)
    for r in range(begin, end):
        code = lower_one(kind, geo, m, lay, epilogue, values[r], stock, out, uops, states[r])
        if code == 0:
            program = out[: states[r, emit.COUNT]]
            cycles[r] = simulate(
                program, geo.insn_bytes_at, tokens, untimed, untimed, unexplained, sim
            )
