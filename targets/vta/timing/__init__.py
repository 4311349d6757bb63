"""When each instruction of a VTA program starts and ends, exact to the clock cycle.

`cycles` for the plain numbers, `simulate_program` for a report on one program, `simulate_batch`
for many; compiled code calls `kernel.simulate` with a `simulator_of` a specification.
"""

from __future__ import annotations

from collections.abc import Mapping

from targets.vta.isa import MODULE_NAMES
from targets.vta.program import words_of
from targets.vta.spec import VtaSpec
from targets.vta.timing.batch import BatchCycles, simulate_batch
from targets.vta.timing.errors import (
    CycleError,
    Deadlock,
    EndlessTransfer,
    MissingFinish,
    OvertakenLoad,
    TooManyCycles,
    UndecodableInstruction,
    WorkLimitExceeded,
)
from targets.vta.timing.outcome import ACTIVITIES
from targets.vta.timing.report import CycleReport, simulate_program
from targets.vta.timing.simulator import simulator_of
from targets.vta.timing.work import WORK_LIMIT

__all__ = [
    "ACTIVITIES",
    "WORK_LIMIT",
    "BatchCycles",
    "CycleError",
    "CycleReport",
    "Deadlock",
    "EndlessTransfer",
    "MissingFinish",
    "OvertakenLoad",
    "TooManyCycles",
    "UndecodableInstruction",
    "WorkLimitExceeded",
    "cycles",
    "simulate_batch",
    "simulate_program",
    "simulator_of",
]


def cycles(
    insn_bytes: bytes, spec: Mapping[str, object] | VtaSpec
) -> tuple[int, list[tuple[str, int, int]]]:
    """Total cycles, and (module, start, end) of each instruction in program order.

    A mapping may hold `insn_address`, the byte address of the first instruction (0 if absent).
    Raises `CycleError` for a program that never finishes.
    """
    address = 0 if isinstance(spec, VtaSpec) else int(str(spec.get("insn_address", 0)))
    report = simulate_program(words_of(insn_bytes), spec, address)
    events = zip(report.modules.tolist(), report.starts.tolist(), report.ends.tolist(), strict=True)
    return report.total, [(MODULE_NAMES[m], start, end) for m, start, end in events]
