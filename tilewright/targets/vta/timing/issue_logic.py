"""Determines in which cycle a module starts the first instruction of its queue.

If the module cannot start the instruction yet, the functions determine when to try again. Each
`start_…` function knows which tokens the instruction pops and how long it takes. It returns the new
states of the module, of the queues from which the instruction pops, and of `IssueProgress`. If the
end of a LOAD depends on the read port of the memory, the next event of the module is set to ASKS.
The caller must then add the LOAD to the port.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb

from tilewright.targets.vta.instruction_format import (
    ALU,
    FINISH,
    GEMM,
    INP,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    POP_NEXT,
    POP_PREV,
    UOP,
    get,
)
from tilewright.targets.vta.numba_decorators import rarely, stage
from tilewright.targets.vta.timing.load_cycles import (
    ACC_CLIENT,
    INP_CLIENT,
    NEVER,
    UOP_CLIENT,
    WGT_CLIENT,
)
from tilewright.targets.vta.timing.simulator import FINISHED_AT, WR_BEATS, WR_BURSTS, Simulator
from tilewright.targets.vta.timing.store_and_gemm_cycles import loop_iterations
from tilewright.targets.vta.timing.transfer_table import (
    STORE_KEY,
    beats_in,
    bursts_in,
    overflows,
    place_of,
    row_of,
    time_store,
)
from tilewright.targets.vta.timing.units import (
    ASKS,
    Head,
    TimedRun,
    TimingUnit,
    UnitTokens,
    account_start,
    has_head,
    head_of,
    high,
    pop,
    start,
    until,
)

_X_SIZE, _Y_SIZE = 0xFFFF0000, 0xFFFF  # masks of the fields in the high word of a transfer


class IssueProgress(NamedTuple):
    """Progress of a simulated program: cycle of FINISH, endless instruction, written bytes."""

    total: int  # cycle in which FINISH executes, -1 before
    endless: int  # an instruction that never ends, -1 if there is none
    written: int  # traffic of STOREs, `packed`, in addition to `Simulator.outcome`


@stage
def start_load(
    run: TimedRun, load: TimingUnit, g2l: UnitTokens, progress: IssueProgress, now: int
) -> tuple[TimingUnit, UnitTokens, IssueProgress]:
    """Start the next instruction of the load module, a LOAD of inputs or weights, if possible.

    Args:
        run: the simulation.
        load: state of the load module.
        g2l: queue of tokens from compute to load.
        progress: results that accumulate while instructions are started.
        now: current cycle.

    Returns:
        The new states of the module, of the token queue and of the progress.
    """
    if not has_head(run, MODULE_LOAD, load):
        return load, g2l, progress
    head = head_of(run, MODULE_LOAD, load)
    pops = (head.lo & nb.uint64(POP_NEXT)) != 0
    if head.visible > now:
        return until(load, head.visible), g2l, progress
    if pops and g2l.held == 0:
        return until(load, NEVER), g2l, progress
    load = account_start(
        run, MODULE_LOAD, load, head, -1, 0, 1 if pops else -1, g2l.since, now, progress.total
    )
    end, client, endless = end_of_load(
        head, high(run, head.insn), INP, INP_CLIENT, WGT_CLIENT, now, progress.endless
    )
    load = start(run, load, head, end, client, now)
    return load, pop(g2l, pops), IssueProgress(progress.total, endless, progress.written)


@stage
def end_of_load(
    head: Head, hi: int, memory: int, client: int, other: int, now: int, endless: int
) -> tuple[int, int, int]:
    """Return the cycle in which a LOAD ends, as far as its own fields determine it.

    A LOAD without elements only passes tokens and ends in cycle `now + 2`. A LOAD with elements but
    without rows never ends, so its end is NEVER. The end of any other LOAD depends on the read
    port, so its end is ASKS.

    Args:
        head: the instruction.
        hi: high word of the instruction.
        memory: memory type that is loaded through `client`.
        client: client of the read port for this memory type.
        other: client of the read port for other memory types.
        now: current cycle, in which the LOAD starts.
        endless: index of the instruction that is known never to end, -1 for none.

    Returns:
        The end (a cycle, NEVER or ASKS), the client of the read port (-1 if the end is not ASKS),
        and the new value of `endless`.
    """
    if (hi & nb.uint64(_X_SIZE)) == 0:
        return now + 2, -1, endless
    if rarely((hi & nb.uint64(_Y_SIZE)) == 0):
        return NEVER, -1, head.insn
    loaded = nb.int64((head.lo >> nb.uint64(7)) & nb.uint64(7))
    return ASKS, client if loaded == memory else other, endless


@stage
def start_compute(
    run: TimedRun,
    compute: TimingUnit,
    l2g: UnitTokens,
    s2g: UnitTokens,
    progress: IssueProgress,
    now: int,
) -> tuple[TimingUnit, UnitTokens, UnitTokens, IssueProgress]:
    """Start the next instruction of the compute module, if possible.

    The instruction is a GEMM, an ALU operation, a LOAD of micro-ops or accumulators, or FINISH.

    Args:
        run: the simulation.
        compute: state of the compute module.
        l2g: queue of tokens from load to compute.
        s2g: queue of tokens from store to compute.
        progress: results that accumulate while instructions are started.
        now: current cycle.

    Returns:
        The new states of the module, of the two token queues and of the progress.
    """
    if not has_head(run, MODULE_COMPUTE, compute):
        return compute, l2g, s2g, progress
    head = head_of(run, MODULE_COMPUTE, compute)
    pops = (head.lo & nb.uint64(POP_PREV)) != 0
    pops_next = (head.lo & nb.uint64(POP_NEXT)) != 0
    if head.visible > now:
        return until(compute, head.visible), l2g, s2g, progress
    if (pops and l2g.held == 0) or (pops_next and s2g.held == 0):
        return until(compute, NEVER), l2g, s2g, progress
    compute = account_start(
        run, MODULE_COMPUTE, compute, head, 0 if pops else -1, l2g.since,
        3 if pops_next else -1, s2g.since, now, progress.total,
    )  # fmt: skip
    end, client, progress = end_of_compute(run, head, progress, now)
    compute = start(run, compute, head, end, client, now)
    return compute, pop(l2g, pops), pop(s2g, pops_next), progress


@stage
def end_of_compute(
    run: TimedRun, head: Head, progress: IssueProgress, now: int
) -> tuple[int, int, IssueProgress]:
    """Return the cycle in which a compute instruction that starts now ends.

    The end of a LOAD may also be NEVER or ASKS (see `end_of_load`). The first FINISH is recorded in
    the progress.

    Args:
        run: the simulation.
        head: the instruction at the head of the module's queue.
        progress: results that accumulate while instructions are started.
        now: current cycle.

    Returns:
        The end of the instruction, its client of the read port (-1 for none), and the new progress.
    """
    lay, lo, hi = run.sim.layout, head.lo, high(run, head.insn)
    opcode = nb.int64(lo & nb.uint64(7))
    if opcode == GEMM:
        return now + 7 + loop_iterations(lo, hi, lay), -1, progress
    if opcode == ALU:
        per = 2 - get(lo, hi, lay.alu_use_imm, 1)
        return now + 7 + per * loop_iterations(lo, hi, lay), -1, progress
    if opcode == FINISH:
        if progress.total < 0:
            run.sim.outcome[FINISHED_AT] = head.insn
            progress = IssueProgress(now + 1, progress.endless, progress.written)
        return now + 2, -1, progress
    end, client, endless = end_of_load(head, hi, UOP, UOP_CLIENT, ACC_CLIENT, now, progress.endless)
    return end, client, IssueProgress(progress.total, endless, progress.written)


@stage
def start_store(
    run: TimedRun, store: TimingUnit, g2s: UnitTokens, progress: IssueProgress, now: int
) -> tuple[TimingUnit, UnitTokens, IssueProgress]:
    """Start the next STORE, if possible.

    Only STOREs use the write port, so the end of the STORE is known.

    Args:
        run: the simulation.
        store: state of the store module.
        g2s: queue of tokens from compute to store.
        progress: results that accumulate while instructions are started.
        now: current cycle.

    Returns:
        The new states of the module, of the token queue and of the progress.
    """
    if not has_head(run, MODULE_STORE, store):
        return store, g2s, progress
    head = head_of(run, MODULE_STORE, store)
    pops = (head.lo & nb.uint64(POP_PREV)) != 0
    if head.visible > now:
        return until(store, head.visible), g2s, progress
    if pops and g2s.held == 0:
        return until(store, NEVER), g2s, progress
    store = account_start(
        run, MODULE_STORE, store, head, 2 if pops else -1, g2s.since, -1, 0, now, progress.total
    )
    end, progress = end_of_store(run.sim, head, high(run, head.insn), progress, now)
    return start(run, store, head, end, -1, now), pop(g2s, pops), progress


@stage
def end_of_store(
    sim: Simulator, head: Head, hi: int, progress: IssueProgress, now: int
) -> tuple[int, IssueProgress]:
    """Return the cycle in which a STORE that starts now ends.

    A STORE without elements only passes tokens and ends in cycle `now + 2`. The end of a STORE that
    never ends (see `store_length`) is NEVER.

    Args:
        sim: the simulator.
        head: the instruction at the head of the module's queue.
        hi: high word of the instruction.
        progress: results that accumulate while instructions are started.
        now: current cycle.

    Returns:
        The cycle, and the progress with the bytes that the STORE writes.
    """
    if (hi & nb.uint64(_X_SIZE)) == 0:
        return now + 2, progress
    table = sim.table
    place = place_of(head.lo, sim.machine.out_bytes, sim.bus.window, STORE_KEY)
    row = row_of(hi, place)
    if rarely(table[row, 0] != hi or table[row, 1] != place):
        time_store(sim, head.lo, hi, row, place)
    end, endless = now + 1 + nb.int64(table[row, 2]), progress.endless
    if rarely(table[row, 2] == 0):
        end, endless = NEVER, head.insn
    written = progress.written + table[row, 3]
    if rarely(overflows(written)):
        count_written(sim, written)
        written = nb.uint64(0)
    return end, IssueProgress(progress.total, endless, written)


@stage
def count_written(sim: Simulator, traffic: int) -> None:
    """Add to the total numbers of written beats and bursts.

    Args:
        sim: the simulator.
        traffic: numbers of beats and bursts, packed into one word by `transfer_table.packed`.
    """
    sim.outcome[WR_BEATS] += beats_in(traffic)
    sim.outcome[WR_BURSTS] += bursts_in(traffic)
