"""Defines the errors of programs the hardware would never finish, told apart by what stops them."""

from __future__ import annotations

from tilewright.core.errors import TilewrightError
from tilewright.targets.vta.instruction_format import MODULE_NAMES, QUEUE_NAMES
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
