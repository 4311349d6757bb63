"""Runs several programs one after the other with the same scratchpads, as a board does.

The module also describes why a program stopped before its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.execution_order import QUEUES_OF_FLAGS
from tilewright.targets.vta.functional.faults import DEADLOCK, Fault, error_of, fault_of
from tilewright.targets.vta.functional.kernel import ExecutionOutcome, outcome, run
from tilewright.targets.vta.functional.scratchpads import allocate
from tilewright.targets.vta.functional.semantics import FUNCTIONAL, rules_of
from tilewright.targets.vta.instruction_format import (
    FLAG_QUEUES,
    MODULE_NAMES,
    QUEUE_NAMES,
    layout_of,
)
from tilewright.targets.vta.numba_decorators import as_record
from tilewright.targets.vta.spec import VtaSpec


def stuck_modules(
    insns: NDArray[np.uint64], result: ExecutionOutcome
) -> list[tuple[int, int, list[int]]]:
    """List the modules that have instructions left after a program has stopped.

    Args:
        insns: instructions, shape (n, 2).
        result: outcome of the run.

    Returns:
        One tuple per stuck module: the module, the index of its next instruction, and the empty
        queues from which this instruction pops.
    """
    stuck = []
    for module, instruction in enumerate(result.heads.tolist()):
        if instruction >= 0:
            flags = int(insns[instruction, 0]) >> 3
            wanted = [FLAG_QUEUES[module][flag] for flag in (0, 1) if flags >> flag & 1]
            lacking = [queue for queue in wanted if queue >= 0 and result.tokens[queue] == 0]
            stuck.append((module, instruction, lacking))
    return stuck


def deadlock_detail(stuck: list[tuple[int, int, list[int]]]) -> str:
    """Describe a deadlock: where each module is stuck, and for which tokens it waits.

    Args:
        stuck: one tuple per stuck module, from `stuck_modules`.
    """
    parts = []
    for module, instruction, queues in stuck:
        tokens = " and ".join(QUEUE_NAMES[queue] for queue in queues)
        parts.append(f"{MODULE_NAMES[module]} waits at instruction {instruction} for {tokens}")
    return f"deadlock: {'; '.join(parts)}"


class SimulationSession:
    """Simulated accelerator whose scratchpads keep their content from one program to the next."""

    def __init__(self, spec: VtaSpec) -> None:
        m = spec.machine
        rules = rules_of(FUNCTIONAL, m)
        self._records = as_record(m), as_record(layout_of(spec)), as_record(rules)
        self._pads = allocate(m, rules)

    def run(
        self,
        insns: NDArray[np.uint64],
        dram: NDArray[np.uint8],
        base: int,
        tokens: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> tuple[int, int, int, int]:
        """Run a program on a memory image.

        Args:
            insns: instructions, uint64, shape (n, 2).
            dram: memory image, uint8, shape (bytes,); changed in place.
            base: byte address of the memory image.
            tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start.

        Returns:
            The number of tokens that are left in each of these queues.

        Raises:
            FunctionalError: the program is invalid, or does not finish.
        """
        result = outcome(tokens)
        insns = np.ascontiguousarray(insns)
        code = run(insns, dram, base, *self._records, self._pads, QUEUES_OF_FLAGS, result)
        if code:
            raise error_of(code, fault(insns, result))
        l2g, g2l, g2s, s2g = result.tokens.tolist()
        return l2g, g2l, g2s, s2g


def fault(insns: NDArray[np.uint64], result: ExecutionOutcome) -> Fault:
    """Describe the fault that stopped a program.

    Args:
        insns: instructions of the program, shape (n, 2).
        result: outcome of the run.
    """
    instruction, number, value, limit, extra = result.fault.tolist()
    opcode = int(insns[instruction, 0]) & 7 if instruction >= 0 else 0
    detail = deadlock_detail(stuck_modules(insns, result)) if number == DEADLOCK else ""
    return fault_of(number, instruction, opcode, value, limit, extra, detail)
