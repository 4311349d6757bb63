"""Computes from dependency tokens which instructions certainly finish before which others.

Each token queue has one module that pushes and one module that pops, and both work in program
order. Therefore, the k-th pop waits for exactly the k-th push. The clock of an instruction follows
from this: for each module, it is the number of instructions that have certainly finished before.
Two accesses are ordered if and only if their clocks show it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.functional.execution_order import modules_of, wanted_queue
from tilewright.targets.vta.instruction_format import (
    FINISH,
    FLAG_QUEUES,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    get,
)
from tilewright.targets.vta.lint import findings as c
from tilewright.targets.vta.lint.findings import Log, note
from tilewright.targets.vta.numba_decorators import allocating_helper, helper, kernel
from tilewright.targets.vta.spec import VtaSpec
from tilewright.targets.vta.timing import CycleError, simulate_program

CONSUMERS = np.array([MODULE_COMPUTE, MODULE_LOAD, MODULE_STORE, MODULE_COMPUTE], np.int64)
"""Modules that pop tokens from the queues l2g, g2l, g2s and s2g, in this order."""


@kernel
def clocks_of(
    insns: NDArray[np.uint64], order: NDArray[np.int64], queues_of_flags: NDArray[np.int64],
    consumers: NDArray[np.int64], tokens: NDArray[np.int64], token_limit: int, log: Log,
) -> NDArray[np.int32]:  # fmt: skip
    """Compute the clock of each instruction: how many instructions have certainly finished then.

    The function also logs tokens that are left over, and queues in which more than `token_limit`
    tokens can accumulate if instructions take arbitrarily long.

    Args:
        insns: instructions, shape (n, 2).
        order: indices of the instructions in the order in which they run, shape (k,).
        queues_of_flags: queue of each module and flag, shape (3, 4).
        consumers: module that pops from each queue, shape (4,).
        tokens: number of tokens in each queue at the start, shape (4,).
        token_limit: capacity of the hardware's token counters.
        log: log of findings; changed in place.

    Returns:
        Clocks, int32, shape (n, 3): number of instructions of each module that have certainly
        finished when the instruction has finished, including the instruction itself.
    """
    size = len(insns)
    modules = modules_of(insns)
    lists = _instructions_by_module(modules)
    clocks = np.zeros((size, 3), np.int32)
    now = np.zeros((3, 3), np.int32)  # clock of each module
    pushers = np.full((4, size + max(tokens[0], tokens[1], tokens[2], tokens[3])), -1, np.int32)
    pushes, pops = tokens.copy(), np.zeros(4, np.int64)
    # number of pops, by the number of the popping module's instructions
    pops_until = np.zeros((4, size + 1), np.int32)
    overflowed = np.zeros(4, np.uint8)
    for n in order:
        module, lo = modules[n], insns[n, 0]
        for flag in (0, 1):
            queue = wanted_queue(lo, queues_of_flags[module], flag)
            if queue >= 0:
                pusher = pushers[queue, pops[queue]]
                for other in range(3):
                    if pusher >= 0:
                        now[module, other] = max(now[module, other], clocks[pusher, other])
                pops[queue] += 1
        now[module, module] += 1
        clocks[n] = now[module]
        for queue in range(4):
            if consumers[queue] == module:
                pops_until[queue, now[module, module]] = pops[queue]
        for flag in (2, 3):
            queue = wanted_queue(lo, queues_of_flags[module], flag)
            if queue >= 0:
                pushers[queue, pushes[queue]] = n
                pushes[queue] += 1
                popper = consumers[queue]
                popped = pops_until[queue, now[module, popper]]
                popped += _started_pops(
                    insns, lists[popper], now[module], queue, queues_of_flags[popper],
                    pushers, pushes, pops_until[:, now[module, popper]], modules, clocks, n,
                )  # fmt: skip
                waiting = pushes[queue] - popped
                if waiting > token_limit and not overflowed[queue]:
                    overflowed[queue] = 1
                    note(log, c.TOKEN_OVERFLOW, n, waiting, token_limit, queue)
    if len(order) == size:
        for queue in range(4):
            left = pushes[queue] - pops[queue]
            if left > 0:
                note(log, c.LEFTOVER_TOKENS, pushers[queue, pushes[queue] - 1], left, 0, queue)
    return clocks


@helper
def _started_pops(
    insns: NDArray[np.uint64], instructions: NDArray[np.int32], clock: NDArray[np.int32],
    queue: int, popper_queues: NDArray[np.int64], pushers: NDArray[np.int32],
    pushes: NDArray[np.int64], popped: NDArray[np.int32], modules: NDArray[np.int8],
    clocks: NDArray[np.int32], n: int,
) -> int:  # fmt: skip
    """Count the tokens of a queue that the popping module's next instruction has certainly taken.

    A module is idle only if tokens are missing. Its next instruction has therefore started and
    taken its tokens if two conditions hold: it was fetched before instruction `n`, and all of its
    tokens were certainly pushed before `n` completes.

    Args:
        insns: instructions, shape (k, 2).
        instructions: instructions of the popping module in order, padded with -1.
        clock: number of instructions of each module that have certainly finished, shape (3,).
        queue: index of the token queue.
        popper_queues: queues of the flags of the popping module, shape (4,).
        pushers: instruction that pushes each token, shape (4, tokens); -1 for initial tokens.
        pushes: number of tokens of each queue so far, shape (4,).
        popped: number of pops from each queue before the popping module's next instruction, shape
            (4,).
        modules: module that executes each instruction, shape (k,).
        clocks: clocks of the instructions so far, shape (k, 3).
        n: index of the current instruction.
    """
    done = clock[modules[instructions[0]]] if instructions[0] >= 0 else 0
    following = instructions[done] if done < len(instructions) else -1
    if following < 0 or following > n:
        return 0
    taken = 0
    for flag in (0, 1):
        wanted = wanted_queue(insns[following, 0], popper_queues, flag)
        if wanted >= 0:
            if pushes[wanted] <= popped[wanted]:
                return 0
            pusher = pushers[wanted, popped[wanted]]
            if pusher == n:
                return 0
            if pusher >= 0:
                module = modules[pusher]
                if clocks[pusher, module] > clock[module]:
                    return 0
            taken += wanted == queue
    return taken


@allocating_helper
def _instructions_by_module(modules: NDArray[np.int8]) -> NDArray[np.int32]:
    """List the instructions of each module in order.

    Args:
        modules: module that executes each instruction, shape (n,).

    Returns:
        Indices of instructions, int32, shape (3, n), padded with -1.
    """
    lists = np.full((3, len(modules)), -1, np.int32)
    filled = np.zeros(3, np.int64)
    for n in range(len(modules)):
        lists[modules[n], filled[modules[n]]] = n
        filled[modules[n]] += 1
    return lists


@kernel
def check_finish(
    insns: NDArray[np.uint64], order: NDArray[np.int64], clocks: NDArray[np.int32], log: Log
) -> None:
    """Log the instructions for which FINISH does not wait, or a missing FINISH.

    In the log, `extra` is 1 for transfers without elements.

    Args:
        insns: instructions, shape (n, 2).
        order: indices of the instructions in the order in which they run, shape (k,).
        clocks: clocks of `clocks_of`, shape (n, 3).
        log: log of findings; changed in place.
    """
    modules = modules_of(insns)
    finish = -1
    for n in range(len(insns)):
        if get(insns[n, 0], insns[n, 1], 0, 3) == FINISH:
            finish = n
            break
    if finish < 0:
        note(log, c.MISSING_FINISH, -1, 0, 0, 0)
        return
    if clocks[finish, MODULE_COMPUTE] == 0:  # FINISH is never reached
        return
    for n in order:
        late = clocks[n, modules[n]] > clocks[finish, modules[n]]
        opcode = get(insns[n, 0], insns[n, 1], 0, 3)
        if late and opcode != FINISH:
            idle = modules[n] != MODULE_COMPUTE and get(insns[n, 0], insns[n, 1], 80, 16) == 0
            note(log, c.INSTRUCTION_AFTER_FINISH, n, finish, 0, int(idle))


@kernel
def blocked_dispatch(
    insns: NDArray[np.uint64],
    queues_of_flags: NDArray[np.int64],
    tokens: NDArray[np.int64],
    entries: int,
) -> int:
    """Return the instruction at which the fetch unit waits forever for a full queue, or -1.

    The fetch unit dispatches instructions in program order. An instruction for a full queue blocks
    all later instructions, including the instruction that would free the queue (Chisel RTL, Fetch).

    Args:
        insns: instructions, shape (n, 2).
        queues_of_flags: queue of each module and flag, shape (3, 4).
        tokens: number of tokens in each queue at the start, shape (4,).
        entries: capacity of a queue, including the instruction that is running.
    """
    size = len(insns)
    modules = modules_of(insns)
    queued = np.zeros((3, size), np.int32)
    first, last = np.zeros(3, np.int64), np.zeros(3, np.int64)
    tokens = tokens.copy()
    fetched, moved = 0, True
    while moved:
        moved = False
        while fetched < size and last[modules[fetched]] - first[modules[fetched]] < entries:
            module = modules[fetched]
            queued[module, last[module]] = fetched
            last[module] += 1
            fetched += 1
            moved = True
        for module in range(3):
            while first[module] < last[module]:
                lo = insns[queued[module, first[module]], 0]
                a = wanted_queue(lo, queues_of_flags[module], 0)
                b = wanted_queue(lo, queues_of_flags[module], 1)
                if (a >= 0 and tokens[a] == 0) or (b >= 0 and tokens[b] == 0):
                    break
                for queue in (a, b):
                    if queue >= 0:
                        tokens[queue] -= 1
                for flag in (2, 3):
                    queue = wanted_queue(lo, queues_of_flags[module], flag)
                    if queue >= 0:
                        tokens[queue] += 1
                first[module] += 1
                moved = True
    return fetched if fetched < size else -1


def loses_tokens(
    insns: NDArray[np.uint64], spec: VtaSpec, tokens: tuple[int, int, int, int]
) -> bool:
    """Return whether a token counter exceeds its capacity when a program runs on a machine.

    The result is also True if the program deadlocks or cannot be timed, because lost tokens cannot
    be ruled out then.

    Args:
        insns: instructions, shape (n, 2).
        spec: the machine.
        tokens: number of tokens in the queues l2g, g2l, g2s and s2g at the start.
    """
    try:
        report = simulate_program(insns, spec, tokens=tokens)
    except CycleError:
        return True
    for queue in range(4):
        pops, pushes = (_with_flag(insns, report.modules, queue, first) for first in (0, 2))
        # tokens are pushed in the cycle before `end` and popped in the cycle before `start`; -1
        # means never
        pushed, popped = report.ends[pushes], report.starts[pops]
        pushed, popped = pushed[pushed >= 0], popped[popped >= 0]
        times = np.concatenate([pushed, popped])
        steps = np.repeat([1, -1], [len(pushed), len(popped)])
        in_time = np.lexsort((steps, times))  # a pop precedes a push in the same cycle
        most = np.cumsum(steps[in_time]).max(initial=0)
        if tokens[queue] + most > spec.machine.token_limit:
            return True
    return False


def _with_flag(
    insns: NDArray[np.uint64], modules: NDArray[np.int8], queue: int, first: int
) -> NDArray[np.bool_]:
    """Return a mask of the instructions that pop from, or push to, a token queue, shape (n,).

    Args:
        insns: instructions, shape (n, 2).
        modules: module that executes each instruction, shape (n,).
        queue: index of the queue.
        first: 0 for pops, 2 for pushes.
    """
    flags, chosen = insns[:, 0], np.zeros(len(insns), np.bool_)
    for module, queues in enumerate(FLAG_QUEUES):
        for flag in (first, first + 1):
            if queues[flag] == queue:
                chosen |= (modules == module) & (flags >> np.uint64(3 + flag) & np.uint64(1) > 0)
    return chosen
