"""Timing of the fetch unit, which moves instructions from memory to the queues of the modules.

The fetch unit requests a batch of instructions, waits for the whole batch, and dispatches the
instructions in order, one per cycle. If an instruction's queue is full at the start of the cycle,
the instruction blocks those that follow. The next batch is requested when the unit's local memory
is empty. With a bus of 128 bits or more, there are two pipeline registers between the local memory
and the queues (Chisel RTL, FetchVME64 and FetchWideVME).
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    ACC,
    ALU,
    INP,
    LOAD,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    STORE,
    UOP,
    WGT,
    Layout,
    get,
)
from tilewright.targets.vta.numba_decorators import stage
from tilewright.targets.vta.timing.load_cycles import NEVER

# Indices into the state of the fetch unit
DISPATCHED = 0  # number of instructions that entered the queues
ARRIVED = 1  # number of instructions that arrived from main memory
# first instruction of the last batch, and the cycle from which it can be dispatched
BATCH_FIRST, BATCH_READY = 2, 3
LEFT_MEMORY = 4  # cycle in which the last dispatched instruction left the local memory
LEFT, LEFT_BEFORE = 5, 6  # cycles in which the last two instructions entered their queues
UNDECODABLE, UNDECODABLE_AT = 7, 8  # instruction at which the fetch unit stops, and the cycle
FETCH_FIELDS = 9

QUEUE_FIELDS = 2  # fields of a queue: instruction, and first cycle in which the module sees it


class Fetching(NamedTuple):
    """The next event of the fetch unit: the request of a batch of instructions, or its arrival."""

    # whether the next event is the request of a batch; otherwise it is the arrival of one
    asks: bool
    event: int  # cycle of the event, NEVER if unknown


@stage
def batch_size(max_burst_beats: int, pipelined: bool) -> int:
    """Return the number of instructions that the fetch unit requests at once.

    Args:
        max_burst_beats: largest number of beats of a memory burst.
        pipelined: whether the unit has two registers between its local memory and the queues.
    """
    return max_burst_beats if pipelined else max(1, max_burst_beats // 2)


@stage
def first_batch(fetch: NDArray[np.int64], n: int) -> Fetching:
    """Reset the fetch unit for a new program. The first batch is requested at once.

    Args:
        fetch: state of the unit, shape (FETCH_FIELDS,); changed in place.
        n: number of instructions of the program.

    Returns:
        The next event of the unit.
    """
    fetch[:] = 0
    fetch[LEFT_MEMORY] = -NEVER
    fetch[LEFT] = -NEVER
    fetch[LEFT_BEFORE] = -NEVER
    fetch[UNDECODABLE] = -1
    fetch[UNDECODABLE_AT] = NEVER
    return Fetching(n > 0, 0 if n > 0 else NEVER)


@stage
def arrive(fetch: NDArray[np.int64], n: int, batch: int, now: int) -> Fetching:
    """Process the arrival of a batch of instructions at the fetch unit.

    The cycle of the next request is unknown until `dispatch` has emptied the unit.

    Args:
        fetch: state of the unit, shape (FETCH_FIELDS,); changed in place.
        n: number of instructions of the program.
        batch: number of instructions per batch.
        now: current cycle.

    Returns:
        The next event of the unit.
    """
    fetch[BATCH_FIRST] = fetch[ARRIVED]
    fetch[BATCH_READY] = now
    fetch[ARRIVED] += min(batch, n - fetch[ARRIVED])
    return Fetching(fetch[ARRIVED] < n, NEVER)


@stage
def destination(lo: int, hi: int, lay: Layout) -> int:
    """Return the module to which the fetch unit dispatches an instruction.

    Args:
        lo: low word of the instruction.
        hi: high word of the instruction.
        lay: bit positions of the instruction fields.

    Returns:
        Number of the module; -1 if the instruction cannot be decoded.
    """
    opcode = nb.int64(lo & nb.uint64(7))
    if opcode == LOAD:
        memory = nb.int64((lo >> nb.uint64(7)) & nb.uint64(7))
        if memory == INP or memory == WGT:
            return MODULE_LOAD
        return MODULE_COMPUTE if memory == UOP or memory == ACC else -1
    if opcode == STORE:
        return MODULE_STORE
    if opcode == ALU:
        return MODULE_COMPUTE if get(lo, hi, lay.alu_opcode, 3) < 4 else -1
    return MODULE_COMPUTE if opcode < ALU else -1


@stage
def dispatch(
    insns: NDArray[np.uint64], lay: Layout, pipelined: bool, entries: int, now: int,
    fetch: NDArray[np.int64], queues: NDArray[np.int64], heads: tuple[int, int, int],
    tails: NDArray[np.int64],
) -> int:  # fmt: skip
    """Move arrived instructions to their queues, as long as the queues certainly have space.

    The function is called when a batch has arrived. If instructions remain in the unit after that,
    it is called again whenever an instruction has ended.

    Args:
        insns: instructions, shape (n, 2).
        lay: bit positions of the instruction fields.
        pipelined: whether the unit has two registers before the queues.
        entries: capacity of a queue.
        now: the current cycle.
        fetch: state of the unit, shape (FETCH_FIELDS,); updated in place.
        queues: the queues, shape (3, power of two ≥ entries, 2); updated in place.
        heads: number of instructions that have left each queue.
        tails: number of instructions that have entered each queue, shape (3,); updated in place.

    Returns:
        The cycle in which the next batch can be requested; NEVER if it is not known yet.
    """
    mask = queues.shape[1] - 1
    arrived = fetch[ARRIVED]
    memory, left, before = fetch[LEFT_MEMORY], fetch[LEFT], fetch[LEFT_BEFORE]
    held, leaves_memory = False, 0
    insn = fetch[DISPATCHED]
    while insn < arrived:
        module = destination(insns[nb.uint64(insn), 0], insns[nb.uint64(insn), 1], lay)
        enters = max(left + 1, now)
        if pipelined:
            leaves_memory = max(memory, before) + 1
            if insn >= fetch[BATCH_FIRST]:
                leaves_memory = max(leaves_memory, fetch[BATCH_READY])
            enters = max(enters, leaves_memory + 1)
        if module < 0 and fetch[UNDECODABLE] < 0:
            fetch[UNDECODABLE], fetch[UNDECODABLE_AT] = insn, enters
        held = module < 0 or tails[module] - heads[module] >= entries
        if held:
            break
        place = nb.uint64(tails[module] & mask)
        queues[module, place, 0] = insn
        queues[module, place, 1] = enters + 1
        tails[module] += 1
        memory, before, left = leaves_memory, left, enters
        insn += 1
    fetch[DISPATCHED] = insn
    fetch[LEFT_MEMORY], fetch[LEFT], fetch[LEFT_BEFORE] = memory, left, before
    if not pipelined:
        return NEVER if held else left + 1
    # The two pipeline registers take the rest of the batch even if the queue of its module is full.
    if not held:
        return memory + 2
    if insn == arrived - 1:
        return leaves_memory + 2
    if insn == arrived - 2:
        return max(max(leaves_memory, left) + 1, fetch[BATCH_READY]) + 2
    return NEVER
