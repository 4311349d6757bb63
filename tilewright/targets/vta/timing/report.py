"""Reports one program's cycles, instruction by instruction, and where each unit spent them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import MODULE_NAMES, QUEUE_NAMES, module_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing.batch import simulate_one
from tilewright.targets.vta.timing.errors import CycleError, error_of
from tilewright.targets.vta.timing.outcome import (  # fmt: skip
    ACTIVITIES,
    AHEAD_LOADS,
    BREAKDOWN_COLUMNS,
    RD_BEATS,
    RD_BURSTS,
    START,
    STOP,
    TIMES_COLUMNS,
    VISIBLE,
    WR_BEATS,
    WR_BURSTS,
)
from tilewright.targets.vta.timing.simulator import simulator_of
from tilewright.targets.vta.timing.work_limit import WORK_LIMIT, check_work


@dataclass(frozen=True, eq=False)
class CycleReport:
    """Cycles are counted from launch. An instruction executes in cycles start … end − 1; what never
    happened is -1 (possible behind FINISH only)."""

    total: int  # the cycle in which FINISH executes
    insns: NDArray[np.uint64]  # (n, 2)
    modules: NDArray[np.int8]  # (n,), index into MODULE_NAMES
    visible: NDArray[np.int64]  # (n,), first cycle in which its module sees it in its queue
    starts: NDArray[np.int64]  # (n,)
    ends: NDArray[np.int64]  # (n,)
    breakdown: NDArray[np.int64]  # (units, len(ACTIVITIES)) cycles; each row sums to `total`
    read_beats: int  # with instruction fetch
    read_bursts: int
    write_beats: int
    write_bursts: int
    early_loads: int  # ended before their data arrived: the hardware's counter wrapped

    def spent(self, unit: str) -> dict[str, int]:
        """Cycles a unit spent in each of its `ACTIVITIES`, those that occur; their sum is total."""
        row = self.breakdown[MODULE_NAMES.index(unit)].tolist()
        return {name: cycles for name, cycles in zip(ACTIVITIES, row, strict=True) if cycles}

    def busy(self, unit: str) -> int:
        """Cycles in which a unit executes an instruction (transfers and their waits included)."""
        return int(self.breakdown[MODULE_NAMES.index(unit), :3].sum())


def simulate_program(
    insns: NDArray[np.uint64],
    spec: VtaSpec | Mapping[str, object],
    insn_address: int = 0,
    tokens: Sequence[int] = (0, 0, 0, 0),
    work_limit: int = WORK_LIMIT,
) -> CycleReport:
    """Time one program: `insns` (n, 2) low and high words, the first at byte `insn_address`.

    `tokens` are the tokens in the queues l2g, g2l, g2s, s2g before launch (a single-threaded
    program of the stock compiler leaves one s2g token to the next). Raises `CycleError`; a program
    of more than `work_limit` steps is not begun (`work.check_work`).
    """
    simulator = simulator_of(spec)
    if insn_address % 8 or not 0 <= insn_address < 1 << 32:
        raise CycleError(
            f"the instructions lie at {insn_address:#x}; choose a multiple of 8 below 2^32"
        )
    limit = simulator.machine.token_limit
    if len(tokens) != len(QUEUE_NAMES) or not all(0 <= count <= limit for count in tokens):
        raise CycleError(
            f"initial tokens {tuple(tokens)}: give {', '.join(QUEUE_NAMES)}, each 0 to {limit}"
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
