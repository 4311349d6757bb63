"""Defines the errors of programs that have no number of cycles, and the limits beyond which a
simulation is not begun.

A program that the hardware would never finish is told apart by what stops it. The steps of a
simulation are predicted from the instructions: every burst read and every row written is a step,
and one instruction can ask for millions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.core.errors import TilewrightError
from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU,
    GEMM,
    INP,
    LOAD,
    MODULE_NAMES,
    QUEUE_NAMES,
    STORE,
    UOP,
    WGT,
    Layout,
)
from tilewright.targets.vta.spec import LOOP_FIELD_BITS, Machine
from tilewright.targets.vta.timing.simulator import (
    CULPRIT,
    DEADLOCK,
    ENDLESS,
    HEAD,
    MISSING,
    MISSING_FINISH,
    OVERTAKEN,
    UNDECODABLE,
)


class CycleError(TilewrightError):
    """A program without a number of cycles. `instruction` is the index to look at, or -1."""

    def __init__(self, message: str, instruction: int = -1) -> None:
        super().__init__(message)
        self.instruction = instruction


class UndecodableStream(CycleError):
    """An opcode, memory type or ALU operation the fetch unit does not know: it stops there."""


class EndlessTransfer(CycleError):
    """A transfer with elements but without rows: its unit waits for ever. `field` is `y_size`."""

    field = "y_size"
    limit = 1


class OvertakenLoad(CycleError):
    """A load that the hardware takes for done while a whole scratchpad of data is outstanding, and
    whose data then meet its own padding or the next load of the same memory."""


class MissingFinish(CycleError):
    """Every instruction has run and none was FINISH."""


class Deadlock(CycleError):
    """Units wait for tokens nobody will push: `waiting` maps a unit to (instruction, queues)."""

    def __init__(self, waiting: dict[str, tuple[int, tuple[str, ...]]]) -> None:
        text = "; ".join(
            f"{unit} unit at instruction {insn} for {' and '.join(queues)}"
            for unit, (insn, queues) in waiting.items()
        )
        super().__init__(
            f"deadlock before FINISH: {text or 'no unit has anything to do'}; push these tokens "
            "earlier, pass initial tokens, or check that none is lost (a counter holds a limited "
            "number)",
            min((insn for insn, _ in waiting.values()), default=-1),
        )
        self.waiting = waiting


class CycleLimitExceeded(CycleError):
    """More steps than the caller lets a simulation take. Raised before it begins."""

    def __init__(self, instruction: int, limit: int) -> None:
        super().__init__(
            f"instruction {instruction} brings the program to more than the limit of {limit:,} "
            "steps (a burst read, a row written); correct its sizes, or raise the limit",
            instruction,
        )
        self.limit = limit


class TooManyCycles(CycleError):
    """More cycles than the counters are sure to hold. Raised before the simulation begins."""

    def __init__(self, instruction: int, limit: int) -> None:
        super().__init__(
            f"instruction {instruction} brings the program to what may be more than {limit:,} "
            "cycles, which cannot be counted; correct its loop counts and sizes",
            instruction,
        )
        self.limit = limit


def error_of(outcome: list[int]) -> CycleError:
    """The error for a negative result of the kernel; `outcome` is the simulator's, as a list."""
    code, insn = outcome[0], outcome[CULPRIT]
    if code == UNDECODABLE:
        return UndecodableStream(
            f"instruction {insn} cannot be decoded: the fetch unit knows LOAD of UOP, WGT, INP and "
            "ACC, STORE, GEMM, FINISH and the ALU operations MIN, MAX, ADD and SHR",
            insn,
        )
    if code == ENDLESS:
        return EndlessTransfer(
            f"instruction {insn} transfers elements in y_size = 0 rows and never ends; "
            "set y_size to at least 1, or x_size to 0 for a no-op",
            insn,
        )
    if code == OVERTAKEN:
        return OvertakenLoad(
            f"the data of a load that fills its whole scratchpad arrive after instruction {insn} "
            "has begun: the load unit's counter of outstanding beats wraps there; split such loads",
            insn,
        )
    if code == MISSING_FINISH:
        return MissingFinish("the program ends without FINISH; append one")
    assert code == DEADLOCK
    waiting = {}
    for module, name in enumerate(MODULE_NAMES):
        if outcome[HEAD + module] >= 0:
            missing = outcome[MISSING + module]
            queues = tuple(q for bit, q in enumerate(QUEUE_NAMES) if missing >> bit & 1)
            waiting[name] = (outcome[HEAD + module], queues)
    return Deadlock(waiting)


WORK_LIMIT = 1 << 30
"""Default bound on a program's steps: half a minute on one core at worst."""
MOST_CYCLES = 1 << 58
"""A program that might run for longer is refused: times are kept in 64 bits."""
_CHUNK = 1 << 16  # instructions looked at at once


def check_work(
    insns: NDArray[np.uint64], machine: Machine, layout: Layout, limit: int = WORK_LIMIT
) -> None:
    """Raises `CycleLimitExceeded` where the steps of `insns` (n, 2) come to more than `limit`, and
    `TooManyCycles` where their cycles might come to more than `MOST_CYCLES`."""
    steps = cycles = 0.0
    for begin in range(0, len(insns), _CHUNK):
        more = most_work(insns[begin : begin + _CHUNK], machine, layout)
        steps_after, cycles_after = steps + np.cumsum(more[0]), cycles + np.cumsum(more[1])
        for total, most, error in (
            (steps_after, limit, CycleLimitExceeded), (cycles_after, MOST_CYCLES, TooManyCycles),
        ):  # fmt: skip
            if total[-1] > most:
                raise error(begin + int(np.argmax(total > most)), most)
        steps, cycles = steps_after[-1], cycles_after[-1]


def most_work(
    insns: NDArray[np.uint64], machine: Machine, layout: Layout
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most so many steps and so many cycles for each instruction, one after the other, each of
    shape (n,); the batches that fetch them included."""
    lo, hi = insns[:, 0], insns[:, 1]
    opcode, memory = _field(lo, 0, 3), _field(lo, 7, 3)
    element = np.zeros(len(insns))
    for kind, size in (
        (UOP, machine.uop_bytes), (INP, machine.inp_bytes), (WGT, machine.wgt_bytes),
        (ACC, machine.acc_bytes),
    ):  # fmt: skip
        element[(opcode == LOAD) & (memory == kind)] = size
    element[opcode == STORE] = machine.out_bytes
    rows, width, pads = _field(hi, 0, 16), _field(hi, 16, 16), _field(hi, 48, 16)
    rows[(rows == 0) & (opcode == STORE)] = 1 << 16  # what a narrow store makes of none
    row_bytes = width * element
    row_bursts = np.where(
        row_bytes > 0, row_bytes // (machine.bus_bytes * machine.max_burst_beats) + 2, 0
    )
    bursts = rows * row_bursts
    beats = rows * (row_bytes // machine.bus_bytes + 2) * (row_bytes > 0)
    padding = np.where(pads > 0, (rows + 30) * (width + 30), 0)
    cycles = bursts * (machine.memory_latency_cycles + 16) + 2 * beats + padding
    computes = (opcode == GEMM) | (opcode == ALU)
    cycles += np.where(computes, 2 * _iterations(lo, hi, layout), 0)
    steps = np.where(opcode == STORE, rows, bursts) + 1
    return steps, cycles + machine.memory_latency_cycles + 32


def _iterations(lo: NDArray[np.uint64], hi: NDArray[np.uint64], lay: Layout) -> NDArray[np.float64]:
    """As `store_and_gemm_cycles.loop_iterations`, but at most: a counter that is 0 or wraps runs in
    full."""
    whole = 1 << LOOP_FIELD_BITS
    outer, inner = (_bits(lo, hi, place, LOOP_FIELD_BITS) for place in (lay.iter_out, lay.iter_in))
    begin = _bits(lo, hi, lay.uop_bgn, lay.uop_index_bits)
    end = _bits(lo, hi, lay.uop_end, lay.uop_index_bits + 1)
    uops = np.where(end > begin, end - begin, 1 << (lay.uop_index_bits + 1))
    return np.where(outer > 0, outer, whole) * np.where(inner > 0, inner, whole) * uops


def _bits(
    lo: NDArray[np.uint64], hi: NDArray[np.uint64], place: int, width: int
) -> NDArray[np.float64]:
    """A field of an instruction, which never lies across its two words."""
    return _field(lo, place, width) if place < 64 else _field(hi, place - 64, width)


def _field(words: NDArray[np.uint64], place: int, width: int) -> NDArray[np.float64]:
    mask = np.uint64((1 << width) - 1)
    return ((words >> np.uint64(place)) & mask).astype(np.float64)
