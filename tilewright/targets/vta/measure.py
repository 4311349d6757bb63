"""Lowers and times batches of schedules in one pass, without keeping the programs in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.lowering.batch import Lowering, over_chunks
from tilewright.targets.vta.lowering.instruction_writer import new_states
from tilewright.targets.vta.timing.simulate import simulate_chunk

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
"""Pairs of a counter's name and the field of `ProgramState` that contains its value."""
NO_PROGRAM = -(1 << 62)
COUNTER_NAMES = tuple(name for name, _ in COUNTERS)
COUNTER_FIELDS = tuple(field for _, field in COUNTERS)


def time_rows(
    lowering: Lowering,
    values: NDArray[np.int64],
    progress: Callable[[int], None] | None = None,
    every_row: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.void], NDArray[np.int64]]:
    """Lower and time a batch of schedules in one pass.

    Rows that lead to the same program are lowered and timed only once, unless `every_row` is set.

    Args:
        lowering: lowering of the workload.
        values: knob values (not indices), shape (n, knobs).
        progress: called with the number of rows that were just finished, possibly from another
            thread.
        every_row: whether to lower and time every row.

    Returns:
        The failure code of each row, shape (n,); the record with the counts of each program, shape
        (n,); and the cycles of each row, shape (n,). The cycles are NO_PROGRAM if lowering failed,
        and another negative number if the program does not finish (codes of
        `targets.vta.timing.kernel`).
    """
    every = np.arange(len(values))
    rows, which = (every, every) if every_row else lowering.find_distinct(values)
    alike = np.bincount(which, minlength=len(rows))
    chosen = values[rows]
    codes = np.zeros(len(rows), np.int64)
    states = new_states(len(rows))
    cycles = np.full(len(rows), NO_PROGRAM, np.int64)

    def run(begin: int, end: int) -> None:
        insns, _ = lowering.lower_rows(chosen, begin, end, codes, states, keep=True)
        compiled = codes[begin:end] == 0
        lengths = states["instructions"][begin:end] * compiled
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        timed = simulate_chunk(insns, offsets, lowering.geometry.insn_bytes_at, lowering.spec)
        cycles[begin:end][compiled] = timed[compiled]
        if progress is not None:
            progress(int(alike[begin:end].sum()))

    over_chunks(len(rows), run)
    return codes[which], states[which], cycles[which]
