"""Times many programs at once, on all cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.njit_args import kernel, unowned
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing.kernel import simulate
from tilewright.targets.vta.timing.outcome import (  # fmt: skip
    BREAKDOWN_COLUMNS,
    OUTCOME_FIELDS,
    RD_BEATS,
    RD_BURSTS,
    WR_BEATS,
    WR_BURSTS,
)
from tilewright.targets.vta.timing.simulator import Simulator, simulator_of

_CHUNK_INSNS = 1 << 17  # instructions a thread takes at a time
_NO_TOKENS = np.zeros(4, np.int64)
_NOTHING = np.zeros((0, 0), np.int64)


@dataclass(frozen=True, eq=False)
class BatchCycles:
    """One row a program. `cycles` is negative where a program never finishes: one of the codes in
    `outcome`; `simulate_program` says more about one."""

    cycles: NDArray[np.int64]  # (programs,)
    read_beats: NDArray[np.int64]
    read_bursts: NDArray[np.int64]
    write_beats: NDArray[np.int64]
    write_bursts: NDArray[np.int64]
    breakdown: NDArray[np.int64] | None  # (programs, units, len(ACTIVITIES)) cycles


def simulate_batch(
    insns: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    spec: VtaSpec | Mapping[str, object],
    insn_addresses: NDArray[np.int64] | int = 0,
    explain: bool = False,
    threads: int | None = None,
) -> BatchCycles:
    """Time concatenated programs: program p is `insns[offsets[p]:offsets[p + 1]]`, words (n, 2).

    `explain` adds the breakdown of each unit's cycles. Threads default to the number of cores.
    """
    programs = len(offsets) - 1
    insns = np.ascontiguousarray(insns, dtype=np.uint64)
    offsets = np.asarray(offsets, np.int64)
    # A copy: numba would compile the kernel once more for an array that cannot be written.
    addresses = np.array(np.broadcast_to(np.asarray(insn_addresses, np.int64), programs))
    cycles = np.empty(programs, np.int64)
    outcomes = np.empty((programs, OUTCOME_FIELDS), np.int64)
    breakdown = np.empty((programs if explain else 0, 3, BREAKDOWN_COLUMNS), np.int64)

    def run(rows: tuple[int, int]) -> None:
        _simulate_rows(
            insns, offsets, addresses, _NO_TOKENS, rows[0], rows[1], cycles, outcomes, _NOTHING,
            breakdown, simulator_of(spec),
        )  # fmt: skip

    chunks = _chunks(offsets)
    workers = min(threads or os.cpu_count() or 1, len(chunks))
    if workers > 1:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, chunks))
    else:
        for rows in chunks:
            run(rows)
    return BatchCycles(
        cycles,
        outcomes[:, RD_BEATS],
        outcomes[:, RD_BURSTS],
        outcomes[:, WR_BEATS],
        outcomes[:, WR_BURSTS],
        breakdown if explain else None,
    )


def simulate_chunk(
    insns: NDArray[np.uint64], offsets: NDArray[np.int64], insn_address: int, spec: VtaSpec
) -> NDArray[np.int64]:
    """Return the cycles of concatenated programs, (programs,), in the calling thread only.

    `insns` (n, 2) and `offsets` (programs + 1,) are as in `simulate_batch`. Negative numbers are
    codes of `outcome`.
    """
    programs = len(offsets) - 1
    cycles, outcomes = np.empty(programs, np.int64), np.empty((programs, OUTCOME_FIELDS), np.int64)
    _simulate_rows(
        insns, offsets, np.full(programs, insn_address), _NO_TOKENS, 0, programs, cycles, outcomes,
        _NOTHING, np.zeros((0, 0, 0), np.int64), simulator_of(spec),
    )  # fmt: skip
    return cycles


def simulate_one(
    insns: NDArray[np.uint64],
    insn_address: int,
    tokens: NDArray[np.int64],
    times: NDArray[np.int64],
    breakdown: NDArray[np.int64],
    simulator: Simulator,
) -> int:
    """Return the cycles of one program, or a negative code; `simulator.outcome` says more.

    Args:
        insns: low and high words, shape (n, 2), C-contiguous.
        insn_address: byte address of the first instruction.
        tokens: initial tokens in l2g, g2l, g2s, s2g, shape (4,).
        times: shape (n, TIMES_COLUMNS); takes cycles, -1 for what did not happen.
        breakdown: shape (3, BREAKDOWN_COLUMNS); takes the cycles of each module.
        simulator: the machine, with its scratch arrays.
    """
    cycles, outcomes = np.empty(1, np.int64), np.empty((1, OUTCOME_FIELDS), np.int64)
    _simulate_rows(
        insns, np.array([0, len(insns)]), np.array([insn_address]), tokens, 0, 1, cycles, outcomes,
        times, breakdown[None], simulator,
    )  # fmt: skip
    return int(cycles[0])


def _chunks(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of programs with about as many instructions each."""
    marks = np.arange(offsets[0], offsets[-1], _CHUNK_INSNS)[1:]
    cuts = np.unique([0, *np.searchsorted(offsets, marks), len(offsets) - 1]).tolist()
    return list(pairwise(cuts))


@kernel
def _simulate_rows(
    insns: NDArray[np.uint64], offsets: NDArray[np.int64], addresses: NDArray[np.int64],
    tokens: NDArray[np.int64], first: int, last: int, cycles: NDArray[np.int64],
    outcomes: NDArray[np.int64], times: NDArray[np.int64], breakdown: NDArray[np.int64],
    sim: Simulator,
) -> None:  # fmt: skip
    nothing = np.zeros((0, 0), np.int64)
    for p in range(first, last):
        program = insns[offsets[p] : offsets[p + 1]]
        spent = breakdown[p] if len(breakdown) > 0 else nothing
        ends = times[offsets[p] : offsets[p + 1]] if len(times) > 0 else nothing
        cycles[p] = simulate(
            unowned(program), addresses[p], unowned(tokens), unowned(ends), unowned(spent),
            unowned(sim),
        )  # fmt: skip
        outcomes[p] = sim.outcome
