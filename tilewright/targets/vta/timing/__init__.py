"""Cycle simulator of the VTA: the exact time of each instruction, in clock cycles.

`simulate_program` returns a report on one program, `simulate_batch` the cycles of many programs,
and `cycles` plain numbers for one program. Compiled code calls `kernel.simulate` with the working
memory that `simulator_of` allocates for a specification.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.targets.vta.instruction_format import MODULE_NAMES
from tilewright.targets.vta.program import words_of
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing.errors import (
    WORK_LIMIT,
    CycleError,
    CycleLimitExceeded,
    Deadlock,
    EndlessTransfer,
    MissingFinish,
    OvertakenLoad,
    TooManyCycles,
    UndecodableStream,
)
from tilewright.targets.vta.timing.simulate import (
    BatchCycles,
    CycleReport,
    simulate_batch,
    simulate_program,
)
from tilewright.targets.vta.timing.simulator import ACTIVITIES, simulator_of

__all__ = [
    "ACTIVITIES", "WORK_LIMIT", "BatchCycles", "CycleError", "CycleLimitExceeded", "CycleReport",
    "Deadlock", "EndlessTransfer", "MissingFinish", "OvertakenLoad", "TooManyCycles",
    "UndecodableStream", "cycles", "simulate_batch", "simulate_program", "simulator_of",
]  # fmt: skip


def cycles(
    insn_bytes: bytes, spec: Mapping[str, object] | VtaSpec
) -> tuple[int, list[tuple[str, int, int]]]:
    """Simulate the timing of a program; see `vta.cycles`.

    Args:
        insn_bytes: instructions, 16 bytes each.
        spec: the machine, or a mapping with its keys. The mapping may also contain `insn_address`,
            the byte address of the first instruction (default 0).

    Returns:
        The total cycles, and one tuple (module, start cycle, end cycle) per instruction in program
        order.

    Raises:
        CycleError: the program never finishes.
    """
    address = 0 if isinstance(spec, VtaSpec) else int(str(spec.get("insn_address", 0)))
    report = simulate_program(words_of(insn_bytes), spec, address)
    events = zip(report.modules.tolist(), report.starts.tolist(), report.ends.tolist(), strict=True)
    return report.total, [(MODULE_NAMES[m], start, end) for m, start, end in events]
