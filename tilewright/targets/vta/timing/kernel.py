"""Simulates the execution of a program in one event loop, exact to the cycle.

Time advances from event to event and is counted in cycles from launch. An event is the end of an
instruction, the cycle in which a module first sees the head of its queue, the arrival of a batch of
instructions, or the request of the next batch. `units` processes the end of an instruction,
`issue_logic` the start of an instruction, and `port_arbitration` the users of the read port. FINISH
ends the program only if the fetch unit has not stopped at an undecodable instruction before.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.instruction_format import (
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    POP_NEXT,
    POP_PREV,
)
from tilewright.targets.vta.numba_decorators import helper, rarely, stage
from tilewright.targets.vta.timing.instruction_fetch import (
    ARRIVED,
    DISPATCHED,
    QUEUE_FIELDS,
    UNDECODABLE_AT,
    Fetching,
    arrive,
    batch_size,
    dispatch,
    first_batch,
)
from tilewright.targets.vta.timing.instruction_fetch import UNDECODABLE as FETCH_UNDECODABLE
from tilewright.targets.vta.timing.issue_logic import (
    IssueProgress,
    count_written,
    start_compute,
    start_load,
    start_store,
)
from tilewright.targets.vta.timing.load_cycles import (
    ACC_CLIENT,
    AHEAD,
    BURST_FIELDS,
    CLIENT_FIELDS,
    END,
    FETCH_CLIENT,
    NEVER,
    UNCLEAR,
    UOP_CLIENT,
    advance,
)
from tilewright.targets.vta.timing.port_arbitration import (
    NOBODY,
    PortRequest,
    count_episode,
    count_packed,
    join,
    leave,
    nobody,
    overtaken,
    stay,
)
from tilewright.targets.vta.timing.simulator import (
    CODE,
    CULPRIT,
    DEADLOCK,
    DONE,
    ENDLESS,
    HEAD,
    MISSING,
    MISSING_FINISH,
    OVERTAKEN,
    TABLE_FIELDS,
    UNDECODABLE,
    Simulator,
)
from tilewright.targets.vta.timing.units import (
    ASKS,
    TimedRun,
    TimingUnit,
    UnitEnds,
    UnitTokens,
    end_compute,
    end_load,
    end_store,
    high,
    idle,
    low,
    spend,
    until,
)


@helper
def simulate(
    insns: NDArray[np.uint64], insn_address: int, tokens: NDArray[np.int64],
    times: NDArray[np.int64], breakdown: NDArray[np.int64], sim: Simulator,
) -> int:  # fmt: skip
    """Simulate the timing of a program.

    Args:
        insns: low and high words, uint64, shape (n, 2), C-contiguous.
        insn_address: byte address of the first instruction.
        tokens: initial number of tokens in l2g, g2l, g2s and s2g, shape (4,).
        times: filled with cycles, -1 for events that do not happen, shape (n, TIMES_COLUMNS); pass
            an array of shape (0, 0) if not wanted.
        breakdown: filled with the cycles of each module, shape (3, BREAKDOWN_COLUMNS); pass an
            array of shape (0, 0) if not wanted.
        sim: the machine, with its working memory.

    Returns:
        The cycles from launch to the execution of FINISH, or a negative code. `sim.outcome` then
        has the details.
    """
    known_rows(insns.shape[1] == 2, sim)
    run = TimedRun(insns, times, breakdown, sim)
    clear(run)
    load, compute, store = idle(), idle(), idle()
    l2g, g2l = UnitTokens(tokens[0], 0), UnitTokens(tokens[1], 0)
    g2s, s2g = UnitTokens(tokens[2], 0), UnitTokens(tokens[3], 0)
    fetching = first_batch(sim.fetch, insns.shape[0])
    sharing, progress = nobody(), IssueProgress(-1, -1, nb.uint64(0))
    while True:
        now = min(min(load.event, compute.event), min(store.event, fetching.event))
        if sharing.live:
            client = advance(sim.clients, sim.port, sim.bursts, now + 1, sim.bus)
            if client >= 0:
                end = sim.clients[client, END]
                load, compute, fetching = with_end(client, end, load, compute, fetching)
                if rarely(sim.clients[client, AHEAD] > 0):
                    sharing = stay(sim, sharing)
                    if sim.clients[client, AHEAD] == UNCLEAR:
                        return overtaken(sim, whose(client, load, compute).insn)
                continue
        if now == NEVER:
            break
        asked = fetching.event == now and fetching.asks
        arrived = fetching.event == now and not fetching.asks
        ended = UnitEnds(False, 1 if arrived else 0)
        load, l2g, ended = end_load(run, load, l2g, sharing, ended, now, progress.total)
        compute, g2l, g2s, ended = end_compute(
            run, compute, g2l, g2s, sharing, ended, now, progress.total
        )
        store, s2g, ended = end_store(run, store, s2g, sharing, ended, now, progress.total)
        sharing = leave(sim, sharing, ended.leaving)
        if arrived:
            fetching = arrive(sim.fetch, insns.shape[0], batch_of(sim), now)
        if arrived or (ended.any and sim.fetch[DISPATCHED] < sim.fetch[ARRIVED]):
            fetching = hand_out(run, (load.head, compute.head, store.head), fetching, now)
        load, g2l, progress = start_load(run, load, g2l, progress, now)
        compute, l2g, s2g, progress = start_compute(run, compute, l2g, s2g, progress, now)
        store, g2s, progress = start_store(run, store, g2s, progress, now)
        while asked or load.event == ASKS or compute.event == ASKS:
            request = next_request(run, insn_address, asked, load, compute)
            asked = False
            sharing, end, reopened = join(sim, sharing, request, now)
            if rarely(end == OVERTAKEN):
                return OVERTAKEN
            load, compute, fetching = with_end(reopened, NEVER, load, compute, fetching)
            load, compute, fetching = with_end(request.client, end, load, compute, fetching)
    if sharing.live:
        count_episode(sim)
    count_packed(sim, sharing.read)
    count_written(sim, progress.written)
    if finished(run, progress.total):
        account_rest(run, load, store, progress.total)
        return progress.total
    return failure(run, load, compute, store, l2g, s2g, progress)


@stage
def known_rows(words: bool, sim: Simulator) -> None:
    """Tell the compiler the row lengths of arrays as constants, which makes indexing cheaper.

    Args:
        words: whether the array of instructions has rows of two words.
        sim: the simulator, whose arrays are checked.
    """
    if not words or sim.table.shape[1] != TABLE_FIELDS or sim.queues.shape[2] != QUEUE_FIELDS:
        raise ValueError("rows of instructions, table or queues")
    if sim.clients.shape[1] != CLIENT_FIELDS or sim.bursts.shape[1] != BURST_FIELDS:
        raise ValueError("rows of clients or bursts")


@stage
def clear(run: TimedRun) -> None:
    """Reset the state that an earlier program left in a simulator.

    All entries of `times` become -1, which remains for events that never happen.

    Args:
        run: the simulation.
    """
    run.sim.outcome[:] = 0
    run.sim.outcome[HEAD : HEAD + 3] = -1
    run.sim.tails[:] = 0
    if run.times.shape[0] > 0:
        run.times[:] = -1
    if run.breakdown.shape[0] > 0:
        run.breakdown[:] = 0


@stage
def of_compute(client: int) -> bool:
    """Return whether the compute module, not the load module, loads through a port client.

    The read port of the memory has one client per memory type that is loaded.

    Args:
        client: client of the read port.
    """
    return client == UOP_CLIENT or client == ACC_CLIENT


@stage
def whose(client: int, load: TimingUnit, compute: TimingUnit) -> TimingUnit:
    """Return the state of the module that loads through a client of the read port.

    Args:
        client: client of the read port.
        load: state of the load module.
        compute: state of the compute module.
    """
    return compute if of_compute(client) else load


@stage
def with_end(
    client: int, end: int, load: TimingUnit, compute: TimingUnit, fetching: Fetching
) -> tuple[TimingUnit, TimingUnit, Fetching]:
    """Record the cycle in which a transfer of one client of the read port ends.

    Args:
        client: client of the read port; NOBODY if no end became known.
        end: the cycle.
        load: state of the load module.
        compute: state of the compute module.
        fetching: next event of the fetch unit.

    Returns:
        The new states of the load module and the compute module, and of the fetch unit.
    """
    if client == FETCH_CLIENT:
        fetching = Fetching(False, end)
    elif of_compute(client):
        compute = until(compute, end)
    elif client != NOBODY:
        load = until(load, end)
    return load, compute, fetching


@stage
def pipelined(sim: Simulator) -> bool:
    """Return whether the machine has the wide fetch unit, with two registers before the queues.

    Args:
        sim: the simulator.
    """
    return sim.bus.bytes >= 16


@stage
def batch_of(sim: Simulator) -> int:
    """Return the number of instructions that the fetch unit requests at once.

    Args:
        sim: the simulator.
    """
    return batch_size(sim.machine.max_burst_beats, pipelined(sim))


@stage
def hand_out(run: TimedRun, heads: tuple[int, int, int], fetching: Fetching, now: int) -> Fetching:
    """Dispatch fetched instructions to the queues of the modules.

    If the unit waits to request its next batch, the request is scheduled as soon as its cycle is
    known.

    Args:
        run: the simulation.
        heads: number of instructions that have left each module's queue.
        fetching: next event of the fetch unit.
        now: current cycle.

    Returns:
        The new next event of the fetch unit.
    """
    sim = run.sim
    ask_at = dispatch(
        run.insns, sim.layout, pipelined(sim), sim.machine.queue_entries, now, sim.fetch,
        sim.queues, heads, sim.tails,
    )  # fmt: skip
    if fetching.asks and fetching.event == NEVER:
        return Fetching(True, ask_at)
    return fetching


@stage
def next_request(
    run: TimedRun, insn_address: int, asked: bool, load: TimingUnit, compute: TimingUnit
) -> PortRequest:
    """Return the next request to the read port of the memory.

    The request is for a batch of instructions, or for a LOAD of the load or compute module.

    Args:
        run: the simulation.
        insn_address: byte address of the first instruction.
        asked: whether the fetch unit requests a batch of instructions.
        load: state of the load module.
        compute: state of the compute module.
    """
    if asked:
        first = run.sim.fetch[ARRIVED]
        count = min(batch_of(run.sim), run.insns.shape[0] - first)
        return PortRequest(
            FETCH_CLIENT, first, nb.uint64(insn_address + 16 * first), nb.uint64(count)
        )
    unit = load if load.event == ASKS else compute
    return PortRequest(unit.client, unit.insn, low(run, unit.insn), high(run, unit.insn))


@stage
def finished(run: TimedRun, total: int) -> bool:
    """Return whether FINISH was executed and the fetch unit did not stop before it.

    Args:
        run: the simulation.
        total: cycle of FINISH, negative if it is not known yet.
    """
    return total >= 0 and run.sim.fetch[UNDECODABLE_AT] >= total


@stage
def account_rest(run: TimedRun, load: TimingUnit, store: TimingUnit, total: int) -> None:
    """Count the cycles of the load and store modules from their last instruction to FINISH.

    Args:
        run: the simulation.
        load: state of the load module.
        store: state of the store module.
        total: cycle of FINISH, negative if it is not known yet.
    """
    if run.breakdown.shape[0] > 0:
        spend(run.breakdown, MODULE_LOAD, DONE, load.accounted, total, total)
        spend(run.breakdown, MODULE_STORE, DONE, store.accounted, total, total)


@stage
def failure(
    run: TimedRun, load: TimingUnit, compute: TimingUnit, store: TimingUnit, l2g: UnitTokens,
    s2g: UnitTokens, progress: IssueProgress,
) -> int:  # fmt: skip
    """Determine why a program never finishes, and return the negative code of the reason.

    Args:
        run: the simulation.
        load: state of the load module.
        compute: state of the compute module.
        store: state of the store module.
        l2g: queue of tokens from load to compute.
        s2g: queue of tokens from store to compute.
        progress: results that accumulate while instructions are started.
    """
    outcome, stopped_at = run.sim.outcome, run.sim.fetch[FETCH_UNDECODABLE]
    if stopped_at >= 0:
        outcome[CODE], outcome[CULPRIT] = UNDECODABLE, stopped_at
    elif progress.endless >= 0:
        outcome[CODE], outcome[CULPRIT] = ENDLESS, progress.endless
    elif load.head + compute.head + store.head == run.insns.shape[0]:
        outcome[CODE] = MISSING_FINISH
    else:
        outcome[CODE] = DEADLOCK
        report_heads(run, load, compute, store, l2g, s2g)
    return outcome[CODE]


@stage
def report_heads(
    run: TimedRun,
    load: TimingUnit,
    compute: TimingUnit,
    store: TimingUnit,
    l2g: UnitTokens,
    s2g: UnitTokens,
) -> None:
    """Record which instructions a deadlock blocks, and which tokens they wait for.

    The missing tokens of a module are one bit per token queue.

    Args:
        run: the simulation.
        load: state of the load module.
        compute: state of the compute module.
        store: state of the store module.
        l2g: queue of tokens from load to compute.
        s2g: queue of tokens from store to compute.
    """
    outcome, queues, tails = run.sim.outcome, run.sim.queues, run.sim.tails
    mask = queues.shape[1] - 1
    if load.head < tails[MODULE_LOAD]:
        outcome[HEAD] = queues[MODULE_LOAD, load.head & mask, 0]
        outcome[MISSING] = 2
    if compute.head < tails[MODULE_COMPUTE]:
        insn = queues[MODULE_COMPUTE, compute.head & mask, 0]
        outcome[HEAD + 1] = insn
        if run.insns[insn, 0] & nb.uint64(POP_PREV) and l2g.held == 0:
            outcome[MISSING + 1] += 1
        if run.insns[insn, 0] & nb.uint64(POP_NEXT) and s2g.held == 0:
            outcome[MISSING + 1] += 8
    if store.head < tails[MODULE_STORE]:
        outcome[HEAD + 2] = queues[MODULE_STORE, store.head & mask, 0]
        outcome[MISSING + 2] = 4
