"""Simulates the timing of one program, with a report per instruction, or of many programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import MODULE_NAMES, QUEUE_NAMES, module_of
from tilewright.targets.vta.numba_decorators import kernel, unowned
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing.errors import WORK_LIMIT, CycleError, check_work, error_of
from tilewright.targets.vta.timing.kernel import simulate
from tilewright.targets.vta.timing.simulator import (
    ACTIVITIES,
    AHEAD_LOADS,
    BREAKDOWN_COLUMNS,
    OUTCOME_FIELDS,
    RD_BEATS,
    RD_BURSTS,
    START,
    STOP,
    TIMES_COLUMNS,
    VISIBLE,
    WR_BEATS,
    WR_BURSTS,
    Simulator,
    simulator_of,
)

_CHUNK_INSNS = 1 << 17  # number of instructions that a thread takes at a time
_NO_TOKENS = np.zeros(4, np.int64)
_NOTHING = np.zeros((0, 0), np.int64)


@dataclass(frozen=True, eq=False)
class BatchCycles:
    """Timing of a batch, with one row per program.

    `cycles` is negative if the program never finishes. The negative codes are defined in
    `timing.simulator`, and `simulate_program` explains the failure.
    """

    cycles: NDArray[np.int64]  # shape (programs,)
    read_beats: NDArray[np.int64]
    read_bursts: NDArray[np.int64]
    write_beats: NDArray[np.int64]
    write_bursts: NDArray[np.int64]
    breakdown: NDArray[np.int64] | None  # cycles, shape (programs, units, len(ACTIVITIES))


def simulate_batch(
    insns: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    spec: VtaSpec | Mapping[str, object],
    insn_addresses: NDArray[np.int64] | int = 0,
    explain: bool = False,
    threads: int | None = None,
) -> BatchCycles:
    """Simulate the timing of concatenated programs, in several threads.

    Args:
        insns: instructions of all programs, uint64, shape (n, 2).
        offsets: index of the first instruction of each program, and the end, shape (programs + 1,).
        spec: the machine, or a mapping with its keys.
        insn_addresses: byte address of each program, shape (programs,), or one address for all
            programs.
        explain: whether to compute the breakdown of each module's cycles.
        threads: number of threads; by default the number of cores.
    """
    programs = len(offsets) - 1
    insns = np.ascontiguousarray(insns, dtype=np.uint64)
    offsets = np.asarray(offsets, np.int64)
    # A copy is passed because numba would compile the kernel again for a read-only array.
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
    """Simulate the timing of concatenated programs in the calling thread.

    Args:
        insns: instructions of all programs, uint64, shape (n, 2).
        offsets: index of the first instruction of each program, and the end, shape (programs + 1,).
        insn_address: byte address of each program.
        spec: the machine.

    Returns:
        Cycles, int64, shape (programs,). Negative numbers are codes of `timing.simulator`.
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
    """Simulate the timing of one program.

    Args:
        insns: low and high words, uint64, shape (n, 2), C-contiguous.
        insn_address: byte address of the first instruction.
        tokens: initial number of tokens in l2g, g2l, g2s and s2g, shape (4,).
        times: filled with cycles, -1 for events that do not happen, shape (n, TIMES_COLUMNS).
        breakdown: filled with the cycles of each module, shape (3, BREAKDOWN_COLUMNS).
        simulator: the machine, with its working memory.

    Returns:
        The cycles, or a negative code. `simulator.outcome` then has the details.
    """
    cycles, outcomes = np.empty(1, np.int64), np.empty((1, OUTCOME_FIELDS), np.int64)
    _simulate_rows(
        insns, np.array([0, len(insns)]), np.array([insn_address]), tokens, 0, 1, cycles, outcomes,
        times, breakdown[None], simulator,
    )  # fmt: skip
    return int(cycles[0])


def _chunks(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Divide programs into ranges with about equally many instructions.

    Args:
        offsets: index of the first instruction of each program, and the end, shape (programs + 1,).

    Returns:
        First program, and program after the last, of each range.
    """
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
        # A plain loop: for its error message, an assignment of rows compiles numba's strings, too.
        for field in range(OUTCOME_FIELDS):
            outcomes[p, field] = sim.outcome[field]


@dataclass(frozen=True, eq=False)
class CycleReport:
    """Timing of a program, in cycles from launch.

    An instruction executes in cycles start … end − 1. Events that never happen are -1. This is
    possible only for instructions after FINISH.
    """

    total: int  # cycle in which FINISH executes
    insns: NDArray[np.uint64]  # shape (n, 2)
    modules: NDArray[np.int8]  # index into MODULE_NAMES, shape (n,)
    visible: NDArray[np.int64]  # first cycle in which the module sees the instruction, shape (n,)
    starts: NDArray[np.int64]  # shape (n,)
    ends: NDArray[np.int64]  # shape (n,)
    breakdown: NDArray[np.int64]  # cycles, shape (units, len(ACTIVITIES)); each row sums to `total`
    read_beats: int  # including the fetching of instructions
    read_bursts: int
    write_beats: int
    write_bursts: int
    # LOADs that ended before their data arrived, because the hardware's counter wrapped around
    early_loads: int

    def spent(self, unit: str) -> dict[str, int]:
        """Return the cycles that a module spent in each of its `ACTIVITIES` that occur.

        They add up to the total cycles of the program.

        Args:
            unit: name of the module, such as `load`.
        """
        row = self.breakdown[MODULE_NAMES.index(unit)].tolist()
        return {name: cycles for name, cycles in zip(ACTIVITIES, row, strict=True) if cycles}

    def busy(self, unit: str) -> int:
        """Return the cycles in which a module executes instructions, including transfers.

        Args:
            unit: name of the module, such as `load`.
        """
        return int(self.breakdown[MODULE_NAMES.index(unit), :3].sum())


def simulate_program(
    insns: NDArray[np.uint64],
    spec: VtaSpec | Mapping[str, object],
    insn_address: int = 0,
    tokens: Sequence[int] = (0, 0, 0, 0),
    work_limit: int = WORK_LIMIT,
) -> CycleReport:
    """Simulate the timing of one program.

    Args:
        insns: low and high words, uint64, shape (n, 2).
        spec: the machine, or a mapping with its keys.
        insn_address: byte address of the first instruction, a multiple of 8.
        tokens: number of tokens in the queues l2g, g2l, g2s and s2g before launch. A
            single-threaded program of the stock compiler leaves one s2g token to the next program.
        work_limit: maximum number of simulation steps, see `timing.errors.check_work`.

    Raises:
        CycleError: the program never finishes, or exceeds a limit.
    """
    simulator = simulator_of(spec)
    if insn_address % 8 or not 0 <= insn_address < 1 << 32:
        raise CycleError(
            f"the instructions start at {insn_address:#x}; choose a multiple of 8 below 2^32"
        )
    limit = simulator.machine.token_limit
    if len(tokens) != len(QUEUE_NAMES) or not all(0 <= count <= limit for count in tokens):
        raise CycleError(
            f"the initial tokens {tuple(tokens)} are invalid: give {', '.join(QUEUE_NAMES)}, "
            f"each 0 to {limit}"
        )
    n = len(insns)
    times = np.empty((n, TIMES_COLUMNS), np.int64)
    breakdown = np.empty((len(MODULE_NAMES), BREAKDOWN_COLUMNS), np.int64)
    insns = np.ascontiguousarray(insns, dtype=np.uint64)
    check_work(insns, simulator.machine, simulator.layout, work_limit)
    held = np.array(tokens, np.int64)
    total = simulate_one(insns, insn_address, held, times, breakdown, simulator)
    if total < 0:
        raise error_of(simulator.outcome.tolist())
    modules = [module_of(lo & 7, lo >> 7 & 7) for lo in insns[:, 0].tolist()]
    return CycleReport(
        total=total,
        insns=insns,
        modules=np.array(modules, np.int8),
        visible=times[:, VISIBLE],
        starts=times[:, START],
        ends=times[:, STOP],
        breakdown=breakdown,
        read_beats=int(simulator.outcome[RD_BEATS]),
        read_bursts=int(simulator.outcome[RD_BURSTS]),
        write_beats=int(simulator.outcome[WR_BEATS]),
        write_bursts=int(simulator.outcome[WR_BURSTS]),
        early_loads=int(simulator.outcome[AHEAD_LOADS]),
    )
