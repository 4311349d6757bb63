"""Errors of the timing simulator, and limits on the work of a simulation.

A program that the hardware would never finish has no number of cycles. The error for such a program
says what stops it.

The number of simulation steps is bounded before a simulation starts, from the fields of the
instructions. Every burst that is read and every row that is written counts as a step, and a single
instruction can cause millions of steps.
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
    """Raised if a program cannot be simulated to its end.

    Attributes:
        instruction: index of the instruction that causes the problem; -1 if the whole program does.
    """

    def __init__(self, message: str, instruction: int = -1) -> None:
        super().__init__(message)
        self.instruction = instruction


class UndecodableStream(CycleError):
    """Raised if an instruction has an opcode, memory type or ALU operation that does not exist.

    The fetch unit of the hardware stops at such an instruction.
    """


class EndlessTransfer(CycleError):
    """Raised if a transfer has elements but no rows, so that its module waits forever.

    Attributes:
        field: name of the instruction field that is 0, `y_size`.
        limit: smallest valid value of this field.
    """

    field = "y_size"
    limit = 1


class OvertakenLoad(CycleError):
    """Raised if the hardware considers a LOAD finished while some of its data is still outstanding.

    This can happen if the outstanding data fills a whole scratchpad. The data then collides with
    the padding of the same LOAD, or with the next LOAD of the same memory type.
    """


class MissingFinish(CycleError):
    """Raised if every instruction of a program has run and none of them was FINISH."""


class Deadlock(CycleError):
    """Raised if modules wait for dependency tokens that no module sends.

    Attributes:
        waiting: for each waiting module, the index of the instruction at which it waits, and the
            names of the queues whose tokens are missing.
    """

    def __init__(self, waiting: dict[str, tuple[int, tuple[str, ...]]]) -> None:
        text = "; ".join(
            f"{unit} unit at instruction {insn} for {' and '.join(queues)}"
            for unit, (insn, queues) in waiting.items()
        )
        super().__init__(
            f"deadlock before FINISH: {text or 'no unit has anything to do'}; push these "
            "tokens earlier, pass initial tokens, or check that no token is lost (a counter "
            "holds a limited number)",
            min((insn for insn, _ in waiting.values()), default=-1),
        )
        self.waiting = waiting


class CycleLimitExceeded(CycleError):
    """Raised if a simulation may need more steps than the caller allows.

    The limit is checked before the simulation starts.
    """

    def __init__(self, instruction: int, limit: int) -> None:
        super().__init__(
            f"instruction {instruction} brings the program to more than the limit of {limit:,} "
            "steps (a burst read, a row written); correct its sizes, or raise the limit",
            instruction,
        )
        self.limit = limit


class TooManyCycles(CycleError):
    """Raised if a program may have more cycles than the counters can hold.

    The bound on the cycles is checked before the simulation starts.
    """

    def __init__(self, instruction: int, limit: int) -> None:
        super().__init__(
            f"instruction {instruction} may bring the program to more than {limit:,} cycles, "
            "which cannot be counted; correct its loop counts and sizes",
            instruction,
        )
        self.limit = limit


def error_of(outcome: list[int]) -> CycleError:
    """Create the exception that describes why a simulation failed.

    Args:
        outcome: `Simulator.outcome` as a list, after a run that returned a negative code.
    """
    code, insn = outcome[0], outcome[CULPRIT]
    if code == UNDECODABLE:
        return UndecodableStream(
            f"instruction {insn} cannot be decoded: the fetch unit supports LOAD of UOP, "
            "WGT, INP and ACC, STORE, GEMM, FINISH and the ALU operations MIN, MAX, ADD and "
            "SHR",
            insn,
        )
    if code == ENDLESS:
        return EndlessTransfer(
            f"instruction {insn} transfers elements in y_size = 0 rows and never ends; set "
            "y_size to at least 1, or x_size to 0 for a no-op",
            insn,
        )
    if code == OVERTAKEN:
        return OvertakenLoad(
            f"instruction {insn} begins before all data of a load that fills its whole "
            "scratchpad have arrived, because the load unit's counter of outstanding beats "
            "wraps around; split such loads",
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
"""Default maximum number of simulation steps of a program. Simulating this many steps takes half a
minute on one core at worst."""
MOST_CYCLES = 1 << 58
"""Maximum number of cycles of a program, so that times fit into 64-bit integers."""
_CHUNK = 1 << 16  # number of instructions that are checked at a time


def check_work(
    insns: NDArray[np.uint64], machine: Machine, layout: Layout, limit: int = WORK_LIMIT
) -> None:
    """Check that a program needs neither too many simulation steps nor too many cycles.

    Args:
        insns: instructions, shape (n, 2).
        machine: the machine.
        layout: bit positions of the instruction fields.
        limit: maximum number of steps.

    Raises:
        CycleLimitExceeded: the program may need more than `limit` steps.
        TooManyCycles: the program may have more than `MOST_CYCLES` cycles.
    """
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
    """Return upper bounds on the simulation steps and the cycles of each instruction.

    The bounds assume that instructions run one after the other, and include the fetch of the
    instruction.

    Args:
        insns: instructions, shape (n, 2).
        machine: the machine.
        layout: bit positions of the instruction fields.

    Returns:
        The simulation steps and the simulated cycles, float64, shape (n,) each.
    """
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
    # the row counter of a narrow store wraps around at 0 rows
    rows[(rows == 0) & (opcode == STORE)] = 1 << 16
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
    """Return an upper bound on the loop iterations of each GEMM or ALU instruction.

    A counter that is 0 or wraps around counts as its full range; see `loop_iterations` in
    `store_and_gemm_cycles`.

    Args:
        lo: low word of each instruction, shape (n,).
        hi: high word of each instruction, shape (n,).
        lay: bit positions of the instruction fields.
    """
    whole = 1 << LOOP_FIELD_BITS
    outer, inner = (_bits(lo, hi, place, LOOP_FIELD_BITS) for place in (lay.iter_out, lay.iter_in))
    begin = _bits(lo, hi, lay.uop_bgn, lay.uop_index_bits)
    end = _bits(lo, hi, lay.uop_end, lay.uop_index_bits + 1)
    uops = np.where(end > begin, end - begin, 1 << (lay.uop_index_bits + 1))
    return np.where(outer > 0, outer, whole) * np.where(inner > 0, inner, whole) * uops


def _bits(
    lo: NDArray[np.uint64], hi: NDArray[np.uint64], place: int, width: int
) -> NDArray[np.float64]:
    """Return the value of a bit field in each instruction.

    Args:
        lo: low word of each instruction, shape (n,).
        hi: high word of each instruction, shape (n,).
        place: first bit of the field in the 128-bit instruction. No field crosses bit 64.
        width: width of the field in bits.
    """
    return _field(lo, place, width) if place < 64 else _field(hi, place - 64, width)


def _field(words: NDArray[np.uint64], place: int, width: int) -> NDArray[np.float64]:
    mask = np.uint64((1 << width) - 1)
    return ((words >> np.uint64(place)) & mask).astype(np.float64)
