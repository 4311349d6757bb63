"""State of the three modules (load, compute, store) and of the token queues between them.

The functions determine which state changes when an instruction starts or ends, and which activity
each cycle of a module is counted for. `breakdown`, shape (modules, BREAKDOWN_COLUMNS), counts the
cycles by activity. `total` is the cycle of FINISH, negative until it is known.

The rules are those of the Chisel RTL (Load, Compute, Store, Semaphore). A module that is idle in
cycle s takes the instruction at the head of its queue if two conditions hold: the instruction was
enqueued before s, and every token that it pops is available. The instruction executes from cycle s
+ 1 on. It takes `len` cycles; the cycle after these is its `end`, in which the module is idle
again. The tokens that the instruction pushes are available from its `end` on. A token that exceeds
the capacity of its queue is lost.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    PUSH_NEXT,
    PUSH_PREV,
)
from tilewright.targets.vta.numba_decorators import helper, rarely, stage
from tilewright.targets.vta.timing.load_cycles import MOVED, NEVER
from tilewright.targets.vta.timing.port_arbitration import Sharing
from tilewright.targets.vta.timing.simulator import (
    DECIDING,
    EXECUTING,
    START,
    STOP,
    TRANSFERRING,
    VISIBLE,
    WAITING_INSTRUCTION,
    WAITING_MEMORY,
    WAITING_TOKEN,
    Simulator,
)
from tilewright.targets.vta.timing.transfer_table import beats_in


@stage
def spend(
    breakdown: NDArray[np.int64], module: int, column: int, begin: int, end: int, total: int
) -> None:
    """Add a range of cycles of a module to the breakdown, without cycles after FINISH.

    Args:
        breakdown: cycles, shape (modules, BREAKDOWN_COLUMNS); changed in place.
        module: the module.
        column: activity of the module in these cycles.
        begin: first cycle.
        end: end cycle, exclusive.
        total: cycle of FINISH, negative if it is not known yet.
    """
    if total >= 0:
        end = min(end, total)
    if end > begin:
        breakdown[module, column] += end - begin


@helper
def account_wait(
    breakdown: NDArray[np.int64], module: int, first: int, first_since: int, second: int,
    second_since: int, idle_since: int, visible: int, now: int, total: int,
) -> int:  # fmt: skip
    """Add the cycles before the start of an instruction to the breakdown.

    The module waits for the instruction, then for its tokens, and then takes one cycle to decide.

    Args:
        breakdown: cycles, shape (modules, BREAKDOWN_COLUMNS); changed in place.
        module: the module.
        first: token queue from which the instruction pops, -1 for none.
        first_since: cycle since which this queue has had a token.
        second: another token queue from which the instruction pops, -1 for none.
        second_since: cycle since which the second queue has had a token.
        idle_since: first cycle in which the module was idle.
        visible: first cycle in which the module saw the instruction.
        now: cycle of the decision.
        total: cycle of FINISH, negative if it is not known yet.

    Returns:
        The cycle after the decision.
    """
    begin = max(idle_since, visible)
    spend(breakdown, module, WAITING_INSTRUCTION, idle_since, begin, total)
    if first >= 0 and first_since > begin:
        spend(breakdown, module, WAITING_TOKEN + first, begin, first_since, total)
        begin = first_since
    if second >= 0 and second_since > begin:
        spend(breakdown, module, WAITING_TOKEN + second, begin, second_since, total)
    spend(breakdown, module, DECIDING, now, now + 1, total)
    return now + 1


@helper
def account_end(
    breakdown: NDArray[np.int64], module: int, client: int, beats: int, begin: int, end: int,
    total: int,
) -> int:  # fmt: skip
    """Add the cycles in which an instruction executed to the breakdown.

    The cycles of a LOAD are divided into the cycles of its beats and the rest.

    Args:
        breakdown: cycles, shape (modules, BREAKDOWN_COLUMNS); changed in place.
        module: the module.
        client: client of the read port, -1 if the instruction loads nothing.
        beats: number of beats of the LOAD.
        begin: first cycle.
        end: end cycle, exclusive.
        total: cycle of FINISH, negative if it is not known yet.

    Returns:
        The cycle `end`.
    """
    if client < 0:
        spend(breakdown, module, EXECUTING, begin, end, total)
    else:
        moved = min(begin + beats, end)
        spend(breakdown, module, TRANSFERRING, begin, moved, total)
        spend(breakdown, module, WAITING_MEMORY, moved, end, total)
    return end


ASKS = NEVER + 1  # event of a module whose LOAD must still ask the read port for its end


class TimedRun(NamedTuple):
    """One simulation: the program, the requested outputs, and the simulator."""

    insns: NDArray[np.uint64]  # low and high words, shape (n, 2)
    times: NDArray[np.int64]  # shape (n, TIMES_COLUMNS), or (0, 0) if not requested
    breakdown: NDArray[np.int64]  # shape (3, BREAKDOWN_COLUMNS), or (0, 0) if not requested
    sim: Simulator


class TimingUnit(NamedTuple):
    """State of one module: load, compute or store."""

    head: int  # position of the head of its queue; an instruction stays there while it executes
    busy: bool  # whether an instruction executes
    event: int  # cycle of the next event: the end of the instruction, or a head becoming visible
    insn: int  # instruction that executes, or executed last
    client: int  # client of the read port, -1 if that instruction loads nothing
    accounted: int  # cycles before this one are already counted in the breakdown


class UnitTokens(NamedTuple):
    """State of a token queue: its number of tokens, and the cycle since which it has had any."""

    held: int
    since: int


class UnitEnds(NamedTuple):
    """The instructions that end in the current cycle.

    Attributes:
        any: True if at least one instruction ends.
        leaving: number of instructions that used the read port and end.
    """

    any: bool
    leaving: int


class Head(NamedTuple):
    """The instruction at the head of a module's queue, with the cycle from which it is visible."""

    insn: int
    visible: int  # first cycle in which the module sees it
    lo: int


@stage
def low(run: TimedRun, insn: int) -> int:
    """Return the low word of an instruction.

    The index is unsigned so that the compiled code need not check for a negative index.

    Args:
        run: the simulation.
        insn: index of the instruction.
    """
    return run.insns[nb.uint64(insn), 0]


@stage
def high(run: TimedRun, insn: int) -> int:
    """Return the high word of an instruction.

    Args:
        run: the simulation.
        insn: index of the instruction.
    """
    return run.insns[nb.uint64(insn), 1]


@stage
def idle() -> TimingUnit:
    """Return the state of a module before its first instruction."""
    return TimingUnit(0, False, NEVER, 0, -1, 0)


@stage
def until(unit: TimingUnit, event: int) -> TimingUnit:
    """Return the state of a module with another cycle for its next event.

    Args:
        unit: state of the module.
        event: cycle of the next event.
    """
    return TimingUnit(unit.head, unit.busy, event, unit.insn, unit.client, unit.accounted)


@stage
def ends(unit: TimingUnit, now: int) -> bool:
    """Return whether the instruction of a module ends in the current cycle.

    Args:
        unit: state of the module.
        now: current cycle.
    """
    return unit.busy and unit.event == now


@stage
def after(ended: UnitEnds, unit: TimingUnit) -> UnitEnds:
    """Add the ended instruction of a module to the summary of the current cycle.

    Args:
        ended: summary of the instructions that end in this cycle.
        unit: state of the module.

    Returns:
        The new summary.
    """
    return UnitEnds(True, ended.leaving + (1 if unit.client >= 0 else 0))


@stage
def end_load(
    run: TimedRun, load: TimingUnit, l2g: UnitTokens, sharing: Sharing, ended: UnitEnds, now: int,
    total: int,
) -> tuple[TimingUnit, UnitTokens, UnitEnds]:  # fmt: skip
    """Process the end of the load module's instruction in this cycle, if any.

    Args:
        run: the simulation.
        load: state of the load module.
        l2g: queue of tokens from load to compute.
        sharing: state of the read port.
        ended: summary of the instructions that end in this cycle.
        now: current cycle.
        total: cycle of FINISH, negative if it is not known yet.

    Returns:
        The new states of the module, of the token queue and of the summary.
    """
    if not ends(load, now):
        return load, l2g, ended
    l2g = push(run, l2g, low(run, load.insn) & nb.uint64(PUSH_NEXT), now)
    return end(run, MODULE_LOAD, load, sharing, now, total), l2g, after(ended, load)


@stage
def end_compute(
    run: TimedRun, compute: TimingUnit, g2l: UnitTokens, g2s: UnitTokens, sharing: Sharing,
    ended: UnitEnds, now: int, total: int,
) -> tuple[TimingUnit, UnitTokens, UnitTokens, UnitEnds]:  # fmt: skip
    """Process the end of the compute module's instruction in this cycle, if any.

    Args:
        run: the simulation.
        compute: state of the compute module.
        g2l: queue of tokens from compute to load.
        g2s: queue of tokens from compute to store.
        sharing: state of the read port.
        ended: summary of the instructions that end in this cycle.
        now: current cycle.
        total: cycle of FINISH, negative if it is not known yet.

    Returns:
        The new states of the module, of the two token queues and of the summary.
    """
    if not ends(compute, now):
        return compute, g2l, g2s, ended
    lo = low(run, compute.insn)
    g2l = push(run, g2l, lo & nb.uint64(PUSH_PREV), now)
    g2s = push(run, g2s, lo & nb.uint64(PUSH_NEXT), now)
    return end(run, MODULE_COMPUTE, compute, sharing, now, total), g2l, g2s, after(ended, compute)


@stage
def end_store(
    run: TimedRun, store: TimingUnit, s2g: UnitTokens, sharing: Sharing, ended: UnitEnds, now: int,
    total: int,
) -> tuple[TimingUnit, UnitTokens, UnitEnds]:  # fmt: skip
    """Process the end of the store module's instruction in this cycle, if any.

    Args:
        run: the simulation.
        store: state of the store module.
        s2g: queue of tokens from store to compute.
        sharing: state of the read port.
        ended: summary of the instructions that end in this cycle.
        now: current cycle.
        total: cycle of FINISH, negative if it is not known yet.

    Returns:
        The new states of the module, of the token queue and of the summary.
    """
    if not ends(store, now):
        return store, s2g, ended
    s2g = push(run, s2g, low(run, store.insn) & nb.uint64(PUSH_PREV), now)
    return end(run, MODULE_STORE, store, sharing, now, total), s2g, UnitEnds(True, ended.leaving)


@stage
def end(
    run: TimedRun, module: int, unit: TimingUnit, sharing: Sharing, now: int, total: int
) -> TimingUnit:
    """Return the state of a module after the end of its instruction.

    Args:
        run: the simulation; its times and its breakdown are updated.
        module: the module.
        unit: state of the module.
        sharing: state of the read port.
        now: current cycle.
        total: cycle of FINISH, negative if it is not known yet.
    """
    if rarely(run.times.shape[0] > 0):
        run.times[unit.insn, STOP] = now
    accounted = unit.accounted
    if rarely(run.breakdown.shape[0] > 0):
        beats = beats_in(sharing.alone_read)
        if sharing.live:
            beats = run.sim.clients[unit.client, MOVED]
        accounted = account_end(
            run.breakdown, module, unit.client, beats, unit.accounted, now, total
        )
    return TimingUnit(unit.head + 1, False, NEVER, unit.insn, unit.client, accounted)


@stage
def push(run: TimedRun, queue: UnitTokens, flag: int, now: int) -> UnitTokens:
    """Return the state of a token queue after an instruction has ended.

    Args:
        run: the simulation.
        queue: state of the queue.
        flag: push flag of the instruction. The instruction pushes a token if it is not 0.
        now: current cycle.
    """
    if flag == 0:
        return queue
    since = now if queue.held == 0 else queue.since
    return UnitTokens(min(queue.held + 1, run.sim.machine.token_limit), since)


@stage
def pop(queue: UnitTokens, pops: bool) -> UnitTokens:
    """Return the state of a token queue after an instruction has started.

    Args:
        queue: state of the queue.
        pops: whether the instruction pops a token.
    """
    return UnitTokens(queue.held - 1 if pops else queue.held, queue.since)


@stage
def has_head(run: TimedRun, module: int, unit: TimingUnit) -> bool:
    """Return whether an idle module has an instruction in its queue.

    Args:
        run: the simulation.
        module: number of the module.
        unit: state of the module.
    """
    return not unit.busy and unit.head < run.sim.tails[module]


@stage
def head_of(run: TimedRun, module: int, unit: TimingUnit) -> Head:
    """Return the instruction at the head of a module's queue.

    Args:
        run: the simulation.
        module: number of the module.
        unit: state of the module.
    """
    place = nb.uint64(unit.head & (run.sim.queues.shape[1] - 1))
    insn = run.sim.queues[module, place, 0]
    return Head(insn, run.sim.queues[module, place, 1], low(run, insn))


@stage
def start(
    run: TimedRun, unit: TimingUnit, head: Head, event: int, client: int, now: int
) -> TimingUnit:
    """Return the state of a module that starts an instruction, which executes from the next cycle.

    Args:
        run: the simulation; its times are updated.
        unit: state of the module.
        head: the instruction.
        event: cycle in which the instruction ends, or ASKS.
        client: client of the read port, -1 if the instruction loads nothing.
        now: current cycle.
    """
    if rarely(run.times.shape[0] > 0):
        run.times[head.insn, VISIBLE], run.times[head.insn, START] = head.visible, now + 1
    return TimingUnit(unit.head, True, event, head.insn, client, unit.accounted)


@stage
def account_start(
    run: TimedRun, module: int, unit: TimingUnit, head: Head, first: int, first_since: int,
    second: int, second_since: int, now: int, total: int,
) -> TimingUnit:  # fmt: skip
    """Add the cycles before an instruction's start to the breakdown, if a breakdown is requested.

    Args:
        run: the simulation; its breakdown is changed.
        module: number of the module.
        unit: state of the module.
        head: the instruction.
        first: token queue from which the instruction pops, -1 for none.
        first_since: cycle since which this queue has had a token.
        second: another token queue from which the instruction pops, -1 for none.
        second_since: cycle since which the second queue has had a token.
        now: current cycle.
        total: cycle of FINISH, negative if it is not known yet.

    Returns:
        The state of the module, whose cycles are accounted up to the start.
    """
    if not rarely(run.breakdown.shape[0] > 0):
        return unit
    accounted = account_wait(
        run.breakdown, module, first, first_since, second, second_since, unit.accounted,
        head.visible, now, total,
    )  # fmt: skip
    return TimingUnit(unit.head, unit.busy, unit.event, unit.insn, unit.client, accounted)
