"""Timing whole batches: lower into a scratch buffer, simulate, keep the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import Layout
from tilewright.targets.vta.lowering import instruction_writer
from tilewright.targets.vta.lowering.batch import SCRATCH, Lowering, lower_whole, over_chunks
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.njit_args import unowned
from tilewright.targets.vta.spec import Machine
from tilewright.targets.vta.timing.kernel import simulate
from tilewright.targets.vta.timing.simulator import Simulator, simulator_of

COUNTERS = (
    ("instructions", instruction_writer.COUNT),
    ("inp_load_bytes", instruction_writer.INP_BYTES),
    ("wgt_load_bytes", instruction_writer.WGT_BYTES),
    ("acc_load_bytes", instruction_writer.ACC_BYTES),
    ("uop_load_bytes", instruction_writer.UOP_BYTES),
    ("out_store_bytes", instruction_writer.OUT_BYTES),
    ("gemm_iterations", instruction_writer.GEMM_ITERATIONS),
    ("alu_iterations", instruction_writer.ALU_ITERATIONS),
)
"""Name and place in the emitter's state of what is counted beside cycles."""
NO_PROGRAM = -(1 << 62)
COUNTER_NAMES = tuple(name for name, _ in COUNTERS)
COUNTER_SLOTS = tuple(slot for _, slot in COUNTERS)


def time_rows(
    lowering: Lowering,
    values: NDArray[np.int64],
    progress: Callable[[int], None] | None = None,
    every_row: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Lower and time a batch of knob *values* (n, knobs) in one pass.

    Returns failure codes (n,), counts (n, STATE_SIZE) and cycles (n,): NO_PROGRAM where lowering
    failed, another negative number where the program does not finish (codes of
    `targets.vta.timing.kernel`). `progress` is told the number of rows done, from any thread.
    Rows that are one schedule are lowered and timed once, unless `every_row` is to be.
    """
    every = np.arange(len(values))
    rows, which = (every, every) if every_row else lowering.distinct(values)
    alike = np.bincount(which, minlength=len(rows))
    chosen = values[rows]
    codes = np.zeros(len(rows), np.int64)
    states = np.zeros((len(rows), instruction_writer.STATE_SIZE), np.int64)
    cycles = np.full(len(rows), NO_PROGRAM, np.int64)

    def run(begin: int, end: int) -> None:
        _time_rows(
            lowering.code, *lowering.records, lowering.epilogue, chosen, lowering.stock,
            begin, end, simulator_of(lowering.spec), codes, states, cycles,
        )  # fmt: skip
        if progress is not None:
            progress(int(alike[begin:end].sum()))

    over_chunks(len(rows), run)
    return codes[which], states[which], cycles[which]


@nb.njit(cache=True, nogil=True)
def _time_rows(
    kind: int, geo: Geometry, m: Machine, lay: Layout, epilogue: NDArray[np.int64],
    values: NDArray[np.int64], stock: bool, begin: int, end: int, sim: Simulator,
    codes: NDArray[np.int64], states: NDArray[np.int64], cycles: NDArray[np.int64],
) -> None:  # fmt: skip
    out = np.empty((SCRATCH, 2), np.uint64)
    uops = np.zeros(1 << m.log_uop_depth, np.uint64)
    tokens = np.zeros(4, np.int64)
    nothing = np.zeros((0, 0), np.int64)
    for r in range(begin, end):
        code, out = lower_whole(kind, geo, m, lay, epilogue, values[r], stock, out, uops, states[r])
        codes[r] = code
        if code == 0:
            program = out[: states[r, instruction_writer.COUNT]]
            cycles[r] = simulate(
                unowned(program), geo.insn_bytes_at, unowned(tokens), unowned(nothing),
                unowned(nothing), unowned(sim),
            )  # fmt: skip
