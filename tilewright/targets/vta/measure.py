"""Times whole batches: lowers into a scratch buffer, simulates, keeps the numbers."""

from __future__ import annotations

from collections.abc import Callable

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import Layout
from tilewright.targets.vta.lowering.batch import SCRATCH, Lowering, lower_whole, over_chunks
from tilewright.targets.vta.lowering.geometry import Geometry
from tilewright.targets.vta.lowering.program_state import new_states
from tilewright.targets.vta.njit_args import unowned
from tilewright.targets.vta.spec import Machine
from tilewright.targets.vta.timing.kernel import simulate
from tilewright.targets.vta.timing.simulator import Simulator, simulator_of

COUNTERS = (
    ("instructions", "instructions"),
    ("inp_load_bytes", "inp_bytes"),
    ("wgt_load_bytes", "wgt_bytes"),
    ("acc_load_bytes", "acc_bytes"),
    ("uop_load_bytes", "uop_bytes"),
    ("out_store_bytes", "out_bytes"),
    ("gemm_iterations", "gemm_iterations"),
    ("alu_iterations", "alu_iterations"),
)
"""Name and field of `ProgramState` of what is counted beside cycles."""
NO_PROGRAM = -(1 << 62)
COUNTER_NAMES = tuple(name for name, _ in COUNTERS)
COUNTER_FIELDS = tuple(field for _, field in COUNTERS)


def time_rows(
    lowering: Lowering,
    values: NDArray[np.int64],
    progress: Callable[[int], None] | None = None,
    every_row: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.void], NDArray[np.int64]]:
    """Lower and time a batch of knob *values* (n, knobs) in one pass.

    Returns failure codes (n,), counts (n,) and cycles (n,): NO_PROGRAM where lowering
    failed, another negative number where the program does not finish (codes of
    `targets.vta.timing.kernel`). `progress` is told the number of rows done, from any thread.
    Rows that are one schedule are lowered and timed once, unless `every_row` is to be.
    """
    every = np.arange(len(values))
    rows, which = (every, every) if every_row else lowering.distinct(values)
    alike = np.bincount(which, minlength=len(rows))
    chosen = values[rows]
    codes = np.zeros(len(rows), np.int64)
    states = new_states(len(rows))
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
    codes: NDArray[np.int64], states: NDArray[np.void], cycles: NDArray[np.int64],
) -> None:  # fmt: skip
    out = np.empty((SCRATCH, 2), np.uint64)
    uops = np.zeros(1 << m.log_uop_depth, np.uint64)
    tokens = np.zeros(4, np.int64)
    nothing = np.zeros((0, 0), np.int64)
    for r in range(begin, end):
        code, out = lower_whole(kind, geo, m, lay, epilogue, values[r], stock, out, uops, states[r])
        codes[r] = code
        if code == 0:
            program = out[: states[r].instructions]
            cycles[r] = simulate(
                unowned(program), geo.insn_bytes_at, unowned(tokens), unowned(nothing),
                unowned(nothing), unowned(sim),
            )  # fmt: skip
