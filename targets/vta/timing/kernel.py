"""The event loop: one pass over the ends of instructions, exact to the cycle.

Rules of the Chisel RTL (Load, Compute, Store, FetchVME64, FetchWideVME, Semaphore), in cycles from
launch. A module that is idle in cycle s takes the head of its queue if it was enqueued before s and
every token it pops is there; it executes from s + 1 and is idle again `len` cycles later. That
cycle is its `end`: the tokens it pushes are there from then on. The fetch unit reads a batch of
instructions, then hands them out in order, one a cycle, into queues that count the executing
instruction.

Time advances from event to event: the end of an instruction, a head that becomes visible, a batch
that has arrived or a batch to be asked for. A load that has the read port for itself ends after a
time that depends on its shape alone and is looked up. When a second client turns up while it is
under way, its end is taken back, its commands are replayed up to now, and the port is simulated
burst by burst (`port.advance`) until it is quiet again.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from targets.vta.isa import (
    ACC,
    ALU,
    FINISH,
    GEMM,
    INP,
    LOAD,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    STORE,
    UOP,
    WGT,
    Layout,
    get,
)  # fmt: skip
from targets.vta.spec import Machine
from targets.vta.timing.port import (
    ACC_CLIENT,
    AHEAD,
    END,
    ENDED,
    FETCH_CLIENT,
    INP_CLIENT,
    MOVED,
    NEVER,
    OPEN,
    READ_BEATS,
    READ_BURSTS,
    STALE,
    UNCLEAR,
    UOP_CLIENT,
    WGT_CLIENT,
    Bus,
    add_fetch,
    add_load,
    advance,
    reset_port,
)  # fmt: skip
from targets.vta.timing.shapes import loop_iterations, memo_place, store_length

# Results other than a number of cycles
MISSING_FINISH, DEADLOCK, UNDECODABLE, ENDLESS, OVERTAKEN = -1, -2, -3, -4, -5

# `outcome`
(
    CODE, CULPRIT, HEAD, MISSING, RD_BEATS, RD_BURSTS, WR_BEATS, WR_BURSTS, FINISHED_AT,
    AHEAD_LOADS,
) = 0, 1, 2, 5, 8, 9, 10, 11, 12, 13  # fmt: skip
OUTCOME_FIELDS = 16

# Columns of `breakdown`
(
    EXECUTING, TRANSFERRING, WAITING_MEMORY, WAITING_INSTRUCTION, WAITING_TOKEN, DECIDING, DONE,
) = 0, 1, 2, 3, 4, 8, 9  # fmt: skip
BREAKDOWN_COLUMNS = 10

STORE_KEY = 7  # stands for the client in the key of a STORE


class Simulator(NamedTuple):
    """A machine and the memory one simulation at a time works in; one for each thread."""

    machine: Machine
    layout: Layout
    bus: Bus
    element_bytes: NDArray[np.int64]  # by read client
    flight_limits: NDArray[np.int64]  # by read client: beats the in-flight counter cannot hold
    memo: NDArray[np.uint64]  # (MEMO_ROWS, MEMO_FIELDS)
    queues: NDArray[np.int64]  # (3, power of two ≥ entries, 2): instruction, cycle it is visible
    clients: NDArray[np.int64]
    port: NDArray[np.int64]
    bursts: NDArray[np.int64]
    outcome: NDArray[np.int64]


@nb.njit(cache=True, nogil=True)
def _replay(sim: Simulator, client: int, begin: int, lo: int, hi: int, cycle: int) -> bool:
    """Bring the port to the state it has in `cycle`, from the only client that used it so far.

    True if that client's end is open again. A fetch has its address and count in `lo` and `hi`.
    """
    reset_port(sim.clients, sim.port)
    if client == FETCH_CLIENT:
        add_fetch(sim.clients, begin, nb.int64(lo), nb.int64(hi), sim.bus)
    else:
        _add_load(sim, client, begin, lo, hi)
    return advance(sim.clients, sim.port, sim.bursts, cycle + 1, sim.bus) < 0


@nb.njit(cache=True, nogil=True)
def _add_load(sim: Simulator, client: int, begin: int, lo: int, hi: int) -> int:
    return add_load(
        sim.clients, client, begin, lo, hi,
        sim.element_bytes[client], sim.flight_limits[client], sim.bus,
    )  # fmt: skip


@nb.njit(cache=True, nogil=True)
def _time_load(sim: Simulator, client: int, lo: int, hi: int, row: int, place: int) -> bool:
    """Enter a load that has the port for itself into the table.

    False, and no entry, if it ends before the port is quiet again.
    """
    reset_port(sim.clients, sim.port)
    if _add_load(sim, client, 0, lo, hi) == OPEN:
        advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
    if sim.clients[client, AHEAD] > 0:
        reset_port(sim.clients, sim.port)
        return False
    sim.memo[row, 0] = hi
    sim.memo[row, 1] = place
    sim.memo[row, 2] = sim.clients[client, END]
    sim.memo[row, 3] = sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS]
    return True


@nb.njit(cache=True, nogil=True)
def _time_store(sim: Simulator, lo: int, hi: int, row: int, place: int) -> None:
    """Enter a STORE into the table."""
    cycles, beats, bursts = store_length(lo, hi, sim.machine)
    sim.memo[row, 0] = hi
    sim.memo[row, 1] = place
    sim.memo[row, 2] = cycles
    sim.memo[row, 3] = beats << 32 | bursts


@nb.njit(cache=True, nogil=True)
def _time_fetch(sim: Simulator, cycle: int, address: int, count: int) -> int:
    """The end of a batch that has the port for itself."""
    reset_port(sim.clients, sim.port)
    add_fetch(sim.clients, cycle, address, count, sim.bus)
    advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
    return sim.clients[FETCH_CLIENT, END]


@nb.njit(inline="always")
def _place(lo: int, element_bytes: int, window: int, client: int) -> int:
    """Where the first row lies in the burst window, and whose it is: the second word of a key."""
    address = ((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * nb.uint64(element_bytes)
    return (address & nb.uint64(window - 1)) << nb.uint64(3) | nb.uint64(client)


@nb.njit(inline="always")
def _module(lo: int, hi: int, lay: Layout) -> int:
    """The module an instruction goes to, -1 if the fetch unit cannot decode it."""
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


@nb.njit(inline="always")
def _spend(
    breakdown: NDArray[np.int64], module: int, column: int, begin: int, end: int, total: int
) -> None:
    """Account the cycles [begin, end) of a module, as far as they lie before FINISH."""
    if total >= 0:
        end = min(end, total)
    if end > begin:
        breakdown[module, column] += end - begin


@nb.njit(cache=True, nogil=True)
def _account_wait(
    breakdown: NDArray[np.int64],
    module: int,
    first: int,
    first_since: int,
    second: int,
    second_since: int,
    idle_since: int,
    visible: int,
    now: int,
    total: int,
) -> int:
    """Account the cycles before a decision: for the instruction, then for its tokens, the cycle of
    the decision itself. `first` and `second` are the token queues popped, -1 for none."""
    begin = max(idle_since, visible)
    _spend(breakdown, module, WAITING_INSTRUCTION, idle_since, begin, total)
    if first >= 0 and first_since > begin:
        _spend(breakdown, module, WAITING_TOKEN + first, begin, first_since, total)
        begin = first_since
    if second >= 0 and second_since > begin:
        _spend(breakdown, module, WAITING_TOKEN + second, begin, second_since, total)
    _spend(breakdown, module, DECIDING, now, now + 1, total)
    return now + 1


@nb.njit(cache=True, nogil=True)
def _account_end(
    breakdown: NDArray[np.int64],
    module: int,
    client: int,
    beats: int,
    begin: int,
    end: int,
    total: int,
) -> None:
    """Account the execute cycles of an instruction; a load's are its beats and waiting for them."""
    if client < 0:
        _spend(breakdown, module, EXECUTING, begin, end, total)
    else:
        moved = min(begin + beats, end)
        _spend(breakdown, module, TRANSFERRING, begin, moved, total)
        _spend(breakdown, module, WAITING_MEMORY, moved, end, total)


@nb.njit(cache=True, nogil=True)
def simulate(
    insns: NDArray[np.uint64],
    insn_address: int,
    tokens: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    breakdown: NDArray[np.int64],
    sim: Simulator,
) -> int:
    """Cycles from launch to the execution of FINISH, or a negative code (`sim.outcome` says more).

    insns: (n, 2), low and high word, C-contiguous, `insn_address` the first one's byte address;
    tokens: (4,), initial l2g, g2l, g2s, s2g; starts, ends: (n,) cycles, -1 where it did not happen,
    or (0,) if not wanted; breakdown: (3, BREAKDOWN_COLUMNS) cycles of each module, or (0, 0).
    """
    lay, bus = sim.layout, sim.bus
    outcome, queues, memo = sim.outcome, sim.queues, sim.memo
    n = insns.shape[0]
    timed = starts.shape[0] > 0
    explained = breakdown.shape[0] > 0
    outcome[:] = 0
    outcome[HEAD : HEAD + 3] = -1
    if timed:
        starts[:] = -1
        ends[:] = -1
    if explained:
        breakdown[:] = 0

    entries, mask = sim.machine.queue_entries, queues.shape[1] - 1
    limit = sim.machine.token_limit
    l2g, g2l, g2s, s2g = tokens[0], tokens[1], tokens[2], tokens[3]
    l2g_since, g2l_since, g2s_since, s2g_since = 0, 0, 0, 0
    total = -1

    # Each module: queue (counters; the executing instruction stays in it), time of its next event
    l_head, l_tail, l_busy, l_time, l_insn, l_client, l_account = 0, 0, False, NEVER, 0, -1, 0
    c_head, c_tail, c_busy, c_time, c_insn, c_client, c_account = 0, 0, False, NEVER, 0, -1, 0
    s_head, s_tail, s_busy, s_time, s_insn, s_account = 0, 0, False, NEVER, 0, 0
    endless = -1

    # Fetch. `dispatched` instructions are in the queues, `arrived` in the fetch unit.
    pipelined = bus.bytes >= 16  # two more registers between its memory and the queues
    batch = sim.machine.max_burst_beats if pipelined else max(1, sim.machine.max_burst_beats // 2)
    dispatched, arrived, batch_first, batch_ready = 0, 0, 0, 0
    asking = n > 0  # the fetch unit's next event is to ask for a batch, not its arrival
    left_memory, left_before, left = -NEVER, -NEVER, -NEVER  # of the instruction(s) before
    f_time = 0 if n > 0 else NEVER
    undecodable, undecodable_at = -1, NEVER
    ready, blocked = 0, False
    row = 0

    # The read port: how many use it, and the one that has it alone unless it is `live`
    users, live = 0, False
    alone, alone_from, alone_lo, alone_hi = 0, 0, nb.uint64(0), nb.uint64(0)
    alone_read, read, written = nb.uint64(0), nb.uint64(0), nb.uint64(0)  # beats << 32 | bursts
    beats = 0
    uop_bytes, inp_bytes = sim.element_bytes[UOP_CLIENT], sim.element_bytes[INP_CLIENT]
    wgt_bytes, acc_bytes = sim.element_bytes[WGT_CLIENT], sim.element_bytes[ACC_CLIENT]
    out_bytes = sim.machine.out_bytes

    while True:
        now = min(min(l_time, c_time), min(s_time, f_time))
        if live:
            client = advance(
                sim.clients, sim.port, sim.bursts, NEVER if now == NEVER else now + 1, bus
            )
            if client >= 0:
                end = sim.clients[client, END]
                if sim.clients[client, AHEAD] > 0:
                    if sim.clients[client, AHEAD] == UNCLEAR:
                        outcome[CULPRIT] = (
                            l_insn if client == INP_CLIENT or client == WGT_CLIENT else c_insn
                        )
                        outcome[CODE] = OVERTAKEN
                        return OVERTAKEN
                    # It leaves its data behind: the port is not to be taken for quiet again.
                    users += 1
                    outcome[AHEAD_LOADS] += 1
                if client == FETCH_CLIENT:
                    f_time = end
                elif client == INP_CLIENT or client == WGT_CLIENT:
                    l_time = end
                else:
                    c_time = end
                continue
        if now == NEVER:
            break
        dispatch = False

        # ---- ends, and the tokens they push
        if l_time == now and l_busy:
            l_busy = False
            l_head += 1
            l_time = NEVER
            dispatch = dispatched < arrived
            if l_client >= 0:
                users -= 1
                beats = (
                    sim.clients[l_client, MOVED] if live else nb.int64(alone_read >> nb.uint64(32))
                )
                if live and users == 0:
                    live = False
                    read += nb.uint64(sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS])
            if insns[l_insn, 0] & nb.uint64(PUSH_NEXT):
                if l2g == 0:
                    l2g_since = now
                if l2g < limit:
                    l2g += 1
            if timed:
                ends[l_insn] = now
            if explained:
                _account_end(breakdown, MODULE_LOAD, l_client, beats, l_account, now, total)
                l_account = now
        if c_time == now and c_busy:
            c_busy = False
            c_head += 1
            c_time = NEVER
            dispatch = dispatched < arrived
            if c_client >= 0:
                users -= 1
                beats = (
                    sim.clients[c_client, MOVED] if live else nb.int64(alone_read >> nb.uint64(32))
                )
                if live and users == 0:
                    live = False
                    read += nb.uint64(sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS])
            lo = insns[c_insn, 0]
            if lo & nb.uint64(PUSH_PREV):
                if g2l == 0:
                    g2l_since = now
                if g2l < limit:
                    g2l += 1
            if lo & nb.uint64(PUSH_NEXT):
                if g2s == 0:
                    g2s_since = now
                if g2s < limit:
                    g2s += 1
            if timed:
                ends[c_insn] = now
            if explained:
                _account_end(breakdown, MODULE_COMPUTE, c_client, beats, c_account, now, total)
                c_account = now
        if s_time == now and s_busy:
            s_busy = False
            s_head += 1
            s_time = NEVER
            dispatch = dispatched < arrived
            if insns[s_insn, 0] & nb.uint64(PUSH_PREV):
                if s2g == 0:
                    s2g_since = now
                if s2g < limit:
                    s2g += 1
            if timed:
                ends[s_insn] = now
            if explained:
                _account_end(breakdown, MODULE_STORE, -1, 0, s_account, now, total)
                s_account = now

        # ---- fetch
        if f_time == now:
            f_time = NEVER
            if asking:
                asking = False
                address, count = insn_address + 16 * arrived, min(batch, n - arrived)
                if users == 0:
                    f_time = _time_fetch(sim, now, address, count)
                    alone, alone_from = FETCH_CLIENT, now
                    alone_lo, alone_hi = nb.uint64(address), nb.uint64(count)
                    alone_read = nb.uint64(sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS])
                    read += alone_read
                else:
                    if not live:
                        live = True
                        read -= alone_read
                        if _replay(sim, alone, alone_from, alone_lo, alone_hi, now):
                            if alone == INP_CLIENT or alone == WGT_CLIENT:
                                l_time = NEVER
                            else:
                                c_time = NEVER
                    add_fetch(sim.clients, now, address, count, bus)
                users += 1
            else:
                users -= 1
                if live and users == 0:
                    live = False
                    read += nb.uint64(sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS])
                batch_first = arrived
                batch_ready = now
                arrived += min(batch, n - arrived)
                asking = arrived < n
                dispatch = True
        if dispatch:
            blocked = False
            while dispatched < arrived:
                lo = insns[dispatched, 0]
                module = _module(lo, insns[dispatched, 1], lay)
                if pipelined:
                    ready = max(left_memory, left_before) + 1
                    if dispatched >= batch_first:
                        ready = max(ready, batch_ready)
                    leaves = max(ready + 1, max(left + 1, now))
                else:
                    ready = 0
                    leaves = max(left + 1, now)
                if module == MODULE_LOAD:
                    if l_tail - l_head >= entries:
                        blocked = True
                        break
                    queues[MODULE_LOAD, l_tail & mask, 0] = dispatched
                    queues[MODULE_LOAD, l_tail & mask, 1] = leaves + 1
                    l_tail += 1
                elif module == MODULE_COMPUTE:
                    if c_tail - c_head >= entries:
                        blocked = True
                        break
                    queues[MODULE_COMPUTE, c_tail & mask, 0] = dispatched
                    queues[MODULE_COMPUTE, c_tail & mask, 1] = leaves + 1
                    c_tail += 1
                elif module == MODULE_STORE:
                    if s_tail - s_head >= entries:
                        blocked = True
                        break
                    queues[MODULE_STORE, s_tail & mask, 0] = dispatched
                    queues[MODULE_STORE, s_tail & mask, 1] = leaves + 1
                    s_tail += 1
                else:
                    if undecodable < 0:
                        undecodable, undecodable_at = dispatched, leaves
                    blocked = True
                    break
                left_memory = ready
                left_before = left
                left = leaves
                dispatched += 1
            if asking and f_time == NEVER:
                if not pipelined:
                    if not blocked:
                        f_time = left + 1
                elif not blocked:
                    f_time = left_memory + 2
                elif dispatched == arrived - 1:
                    f_time = ready + 2
                elif dispatched == arrived - 2:
                    f_time = max(max(ready, left) + 1, batch_ready) + 2

        # ---- decisions
        if not l_busy and l_head < l_tail:
            insn = queues[MODULE_LOAD, l_head & mask, 0]
            visible = queues[MODULE_LOAD, l_head & mask, 1]
            lo = insns[insn, 0]
            pop = (lo & nb.uint64(POP_NEXT)) != 0
            if visible > now:
                l_time = visible
            elif pop and g2l == 0:
                l_time = NEVER
            else:
                if explained:
                    l_account = _account_wait(
                        breakdown, MODULE_LOAD, -1, 0, 1 if pop else -1, g2l_since,
                        l_account, visible, now, total,
                    )  # fmt: skip
                if pop:
                    g2l -= 1
                hi = insns[insn, 1]
                l_client = -1
                l_busy = True
                l_insn = insn
                if timed:
                    starts[insn] = now + 1
                if (hi & nb.uint64(0xFFFF0000)) == 0:
                    l_time = now + 2
                elif (hi & nb.uint64(0xFFFF)) == 0:
                    l_time = NEVER
                    endless = insn
                else:
                    memory = nb.int64((lo >> nb.uint64(7)) & nb.uint64(7))
                    l_client, element_bytes = INP_CLIENT, inp_bytes
                    if memory == WGT:
                        l_client, element_bytes = WGT_CLIENT, wgt_bytes
                    if users == 0:
                        place = _place(lo, element_bytes, bus.window, l_client)
                        row = memo_place(hi, place)
                        if memo[row, 0] != hi or memo[row, 1] != place:
                            live = not _time_load(sim, l_client, lo, hi, row, place)
                    elif not live:
                        live = True
                        read -= alone_read
                        if _replay(sim, alone, alone_from, alone_lo, alone_hi, now):
                            if alone == FETCH_CLIENT:
                                f_time = NEVER
                            else:
                                c_time = NEVER
                    if not live:
                        alone, alone_from, alone_lo, alone_hi = l_client, now, lo, hi
                        alone_read = memo[row, 3]
                        read += alone_read
                        l_time = now + nb.int64(memo[row, 2])
                    else:
                        l_time = NEVER
                        added = _add_load(sim, l_client, now, lo, hi)
                        if added == STALE or sim.clients[l_client, AHEAD] == UNCLEAR:
                            outcome[CODE], outcome[CULPRIT] = OVERTAKEN, insn
                            return OVERTAKEN
                        if added == ENDED:
                            l_time = sim.clients[l_client, END]
                            users += 1
                            outcome[AHEAD_LOADS] += 1
                    users += 1
        if not c_busy and c_head < c_tail:
            insn = queues[MODULE_COMPUTE, c_head & mask, 0]
            visible = queues[MODULE_COMPUTE, c_head & mask, 1]
            lo = insns[insn, 0]
            pop = (lo & nb.uint64(POP_PREV)) != 0
            pop_next = (lo & nb.uint64(POP_NEXT)) != 0
            if visible > now:
                c_time = visible
            elif (pop and l2g == 0) or (pop_next and s2g == 0):
                c_time = NEVER
            else:
                if explained:
                    c_account = _account_wait(
                        breakdown, MODULE_COMPUTE, 0 if pop else -1, l2g_since,
                        3 if pop_next else -1, s2g_since, c_account, visible, now, total,
                    )  # fmt: skip
                if pop:
                    l2g -= 1
                if pop_next:
                    s2g -= 1
                hi = insns[insn, 1]
                c_client = -1
                c_busy = True
                c_insn = insn
                if timed:
                    starts[insn] = now + 1
                opcode = nb.int64(lo & nb.uint64(7))
                if opcode == GEMM:
                    c_time = now + 7 + loop_iterations(lo, hi, lay)
                elif opcode == ALU:
                    per = 2 - get(lo, hi, lay.alu_use_imm, 1)
                    c_time = now + 7 + per * loop_iterations(lo, hi, lay)
                elif opcode == FINISH:
                    c_time = now + 2
                    if total < 0:
                        total = now + 1
                        outcome[FINISHED_AT] = insn
                elif (hi & nb.uint64(0xFFFF0000)) == 0:
                    c_time = now + 2
                elif (hi & nb.uint64(0xFFFF)) == 0:
                    c_time = NEVER
                    endless = insn
                else:
                    memory = nb.int64((lo >> nb.uint64(7)) & nb.uint64(7))
                    c_client, element_bytes = UOP_CLIENT, uop_bytes
                    if memory == ACC:
                        c_client, element_bytes = ACC_CLIENT, acc_bytes
                    if users == 0:
                        place = _place(lo, element_bytes, bus.window, c_client)
                        row = memo_place(hi, place)
                        if memo[row, 0] != hi or memo[row, 1] != place:
                            live = not _time_load(sim, c_client, lo, hi, row, place)
                    elif not live:
                        live = True
                        read -= alone_read
                        if _replay(sim, alone, alone_from, alone_lo, alone_hi, now):
                            if alone == FETCH_CLIENT:
                                f_time = NEVER
                            else:
                                l_time = NEVER
                    if not live:
                        alone, alone_from, alone_lo, alone_hi = c_client, now, lo, hi
                        alone_read = memo[row, 3]
                        read += alone_read
                        c_time = now + nb.int64(memo[row, 2])
                    else:
                        c_time = NEVER
                        added = _add_load(sim, c_client, now, lo, hi)
                        if added == STALE or sim.clients[c_client, AHEAD] == UNCLEAR:
                            outcome[CODE], outcome[CULPRIT] = OVERTAKEN, insn
                            return OVERTAKEN
                        if added == ENDED:
                            c_time = sim.clients[c_client, END]
                            users += 1
                            outcome[AHEAD_LOADS] += 1
                    users += 1
        if not s_busy and s_head < s_tail:
            insn = queues[MODULE_STORE, s_head & mask, 0]
            visible = queues[MODULE_STORE, s_head & mask, 1]
            lo = insns[insn, 0]
            pop = (lo & nb.uint64(POP_PREV)) != 0
            if visible > now:
                s_time = visible
            elif pop and g2s == 0:
                s_time = NEVER
            else:
                if explained:
                    s_account = _account_wait(
                        breakdown, MODULE_STORE, 2 if pop else -1, g2s_since, -1, 0,
                        s_account, visible, now, total,
                    )  # fmt: skip
                if pop:
                    g2s -= 1
                hi = insns[insn, 1]
                s_busy = True
                s_insn = insn
                if timed:
                    starts[insn] = now + 1
                if (hi & nb.uint64(0xFFFF0000)) == 0:
                    s_time = now + 2
                else:
                    place = _place(lo, out_bytes, bus.window, STORE_KEY)
                    row = memo_place(hi, place)
                    if memo[row, 0] != hi or memo[row, 1] != place:
                        _time_store(sim, lo, hi, row, place)
                    written += memo[row, 3]
                    s_time = now + 1 + nb.int64(memo[row, 2])
                    if memo[row, 2] == 0:
                        s_time = NEVER
                        endless = insn
    if live:
        read += nb.uint64(sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS])
    outcome[RD_BEATS], outcome[RD_BURSTS] = read >> nb.uint64(32), read & nb.uint64(0xFFFFFFFF)
    outcome[WR_BEATS], outcome[WR_BURSTS] = (
        written >> nb.uint64(32), written & nb.uint64(0xFFFFFFFF)
    )  # fmt: skip
    if total >= 0 and (undecodable < 0 or undecodable_at >= total):
        if explained:
            _spend(breakdown, MODULE_LOAD, DONE, l_account, total, total)
            _spend(breakdown, MODULE_STORE, DONE, s_account, total, total)
        return total

    # ---- why it never got there
    if undecodable >= 0:
        outcome[CODE], outcome[CULPRIT] = UNDECODABLE, undecodable
    elif endless >= 0:
        outcome[CODE], outcome[CULPRIT] = ENDLESS, endless
    elif dispatched == n and l_head == l_tail and c_head == c_tail and s_head == s_tail:
        outcome[CODE] = MISSING_FINISH
    else:
        outcome[CODE] = DEADLOCK
        if l_head < l_tail:
            outcome[HEAD] = queues[MODULE_LOAD, l_head & mask, 0]
            outcome[MISSING] = 2
        if c_head < c_tail:
            insn = queues[MODULE_COMPUTE, c_head & mask, 0]
            lo = insns[insn, 0]
            outcome[HEAD + 1] = insn
            outcome[MISSING + 1] = 0
            if lo & nb.uint64(POP_PREV) and l2g == 0:
                outcome[MISSING + 1] += 1
            if lo & nb.uint64(POP_NEXT) and s2g == 0:
                outcome[MISSING + 1] += 8
        if s_head < s_tail:
            outcome[HEAD + 2] = queues[MODULE_STORE, s_head & mask, 0]
            outcome[MISSING + 2] = 4
    return outcome[CODE]
