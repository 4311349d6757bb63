"""Finds which modules wait for which in a deadlock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.kernel import ExecutionOutcome
from tilewright.targets.vta.isa import FLAG_QUEUES, MODULE_NAMES, QUEUE_NAMES


def stuck_modules(
    insns: NDArray[np.uint64], result: ExecutionOutcome
) -> list[tuple[int, int, list[int]]]:
    """(module, instruction, empty queues it would pop) of each module with instructions left."""
    stuck = []
    for module, instruction in enumerate(result.heads.tolist()):
        if instruction >= 0:
            flags = int(insns[instruction, 0]) >> 3
            wanted = [FLAG_QUEUES[module][flag] for flag in (0, 1) if flags >> flag & 1]
            lacking = [queue for queue in wanted if queue >= 0 and result.tokens[queue] == 0]
            stuck.append((module, instruction, lacking))
    return stuck


def deadlock_detail(stuck: list[tuple[int, int, list[int]]]) -> str:
    """One clause a module: where it is stuck and for which queue's token."""
    parts = []
    for module, instruction, queues in stuck:
        tokens = " and ".join(QUEUE_NAMES[queue] for queue in queues)
        parts.append(f"{MODULE_NAMES[module]} waits at instruction {instruction} for {tokens}")
    return f"deadlock: {'; '.join(parts)}"
