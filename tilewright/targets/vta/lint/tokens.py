"""Decides by the cycle simulator whether the RTL loses tokens, because it depends on time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import FLAG_QUEUES
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import CycleError, simulate_program


def loses_tokens(
    insns: NDArray[np.uint64], spec: VtaSpec, tokens: tuple[int, int, int, int]
) -> bool:
    """Whether a token counter ever exceeds `spec.token_limit` when `insns` (n, 2) run on `spec`.

    `tokens` are in the queues l2g, g2l, g2s, s2g at the start.
    A deadlock in time counts as lost tokens, and so does a program that cannot be timed: neither
    can be ruled out then.
    """
    try:
        report = simulate_program(insns, spec, tokens=tokens)
    except CycleError:
        return True
    for queue in range(4):
        pops, pushes = (_with_flag(insns, report.modules, queue, first) for first in (0, 2))
        # pushed in the cycle before `end`, popped in the cycle before `start`; -1: never
        pushed, popped = report.ends[pushes], report.starts[pops]
        pushed, popped = pushed[pushed >= 0], popped[popped >= 0]
        times = np.concatenate([pushed, popped])
        steps = np.repeat([1, -1], [len(pushed), len(popped)])
        in_time = np.lexsort((steps, times))  # a pop first where both meet
        most = np.cumsum(steps[in_time]).max(initial=0)
        if tokens[queue] + most > spec.machine.token_limit:
            return True
    return False


def _with_flag(
    insns: NDArray[np.uint64], modules: NDArray[np.int8], queue: int, first: int
) -> NDArray[np.bool_]:
    """The instructions, shape (n,), that pop (`first` = 0) or push (2) a queue."""
    flags, chosen = insns[:, 0], np.zeros(len(insns), np.bool_)
    for module, queues in enumerate(FLAG_QUEUES):
        for flag in (first, first + 1):
            if queues[flag] == queue:
                chosen |= (modules == module) & (flags >> np.uint64(3 + flag) & np.uint64(1) > 0)
    return chosen
