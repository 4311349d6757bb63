"""Chooses the order in which instructions run: three in-order modules and four token queues.

Load and store run as far as their tokens let them, then compute takes one step, and so on. A
program without data races gives the same result in every order the tokens allow. In this one
transfers come as early as they can: a missing token shows as wrong data. What still runs after
FINISH here would do so in every order. Nothing here depends on data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    FLAG_QUEUES,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    get,
    module_of,
)
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, kernel

QUEUES_OF_FLAGS = np.array(FLAG_QUEUES, np.int64)  # module, flag → queue or -1


@allocating_helper
def modules_of(insns: NDArray[np.uint64]) -> NDArray[np.int8]:
    """The module of each instruction, shape (n,)."""
    modules = np.empty(len(insns), np.int8)
    for n in range(len(insns)):
        lo, hi = insns[n, 0], insns[n, 1]
        modules[n] = module_of(get(lo, hi, 0, 3), get(lo, hi, 7, 3))
    return modules


@kernel
def issue_order(
    insns: NDArray[np.uint64],
    queues_of_flags: NDArray[np.int64],
    tokens: NDArray[np.int64],
    heads: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The instructions `insns` (n, 2) in the order they run; shorter if the program deadlocks.

    `queues_of_flags` (3, 4) are queues by module and flag. `tokens` (4,) holds the tokens of each
    queue before and after; `heads` (3,) receives the instruction each module is stuck at, or -1.
    Flags towards a missing neighbour are ignored.
    """
    size = len(insns)
    modules = modules_of(insns)
    following = np.full(size, -1, np.int64)  # the next instruction of the same module
    heads[:] = -1
    for n in range(size - 1, -1, -1):
        following[n] = heads[modules[n]]
        heads[modules[n]] = n
    order = np.empty(size, np.int64)
    done, moved = 0, True
    while moved:
        moved = False
        for module in (MODULE_LOAD, MODULE_STORE, MODULE_COMPUTE):
            n = heads[module]
            while n >= 0 and _take_tokens(insns[n, 0], queues_of_flags[module], tokens):
                _give_tokens(insns[n, 0], queues_of_flags[module], tokens)
                order[done] = n
                n = heads[module] = following[n]
                done += 1
                moved = True
                if module == MODULE_COMPUTE:
                    break
    return order[:done]


@helper
def wanted_queue(lo: int, queues: NDArray[np.int64], flag: int) -> int:
    """The queue that flag number `flag` (0-1 pop, 2-3 push) of an instruction names, or -1.

    `lo` is the instruction's low word, `queues` (4,) the queues of its module's flags.
    """
    return queues[flag] if get(lo, np.uint64(0), 3 + flag, 1) else -1


@helper
def _take_tokens(lo: int, queues: NDArray[np.int64], tokens: NDArray[np.int64]) -> bool:
    first, second = wanted_queue(lo, queues, 0), wanted_queue(lo, queues, 1)
    if (first >= 0 and tokens[first] == 0) or (second >= 0 and tokens[second] == 0):
        return False
    for queue in (first, second):
        if queue >= 0:
            tokens[queue] -= 1
    return True


@helper
def _give_tokens(lo: int, queues: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
    for flag in (2, 3):
        queue = wanted_queue(lo, queues, flag)
        if queue >= 0:
            tokens[queue] += 1
