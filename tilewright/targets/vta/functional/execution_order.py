"""Determines the order in which instructions run: three in-order modules and four token queues.

The load and store modules run as far as their tokens allow. Then the compute module executes one
instruction, and this is repeated. A program without data races has the same result in every order
that the tokens allow. In the chosen order, transfers happen as early as possible, so that a missing
token leads to wrong data. If the order runs an instruction after FINISH, then every order does. The
order does not depend on data.
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

QUEUES_OF_FLAGS = np.array(FLAG_QUEUES, np.int64)  # queue of each module and flag, or -1


@allocating_helper
def modules_of(insns: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Return the module that executes each instruction, int8, shape (n,).

    Args:
        insns: instructions, uint64, shape (n, 2).
    """
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
    """Determine the order in which the instructions of a program run.

    Flags towards a neighbour that does not exist are ignored.

    Args:
        insns: instructions, shape (n, 2).
        queues_of_flags: queue of each module and flag, shape (3, 4).
        tokens: number of tokens in each queue, shape (4,); updated in place.
        heads: filled with the instruction at which each module is stuck, or -1, shape (3,).

    Returns:
        Indices of the instructions, shape (n,); fewer than n if the program deadlocks.
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
    """Return the queue to which a flag of an instruction refers, or -1 if the flag is not set.

    Args:
        lo: low word of the instruction.
        queues: queues of the flags of the instruction's module, shape (4,).
        flag: index of the flag; 0 and 1 pop, 2 and 3 push.
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
