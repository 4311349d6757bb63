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
    END,
    FETCH_CLIENT,
    INP_CLIENT,
    MOVED,
    NEVER,
    READ_BEATS,
    READ_BURSTS,
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
MISSING_FINISH, DEADLOCK, UNDECODABLE, ENDLESS = -1, -2, -3, -4

# `outcome`
(
    CODE, CULPRIT, HEAD, MISSING, RD_BEATS, RD_BURSTS, WR_BEATS, WR_BURSTS, FINISHED_AT,
) = 0, 1, 2, 5, 8, 9, 10, 11, 12  # fmt: skip
OUTCOME_FIELDS = 16

# Columns of `breakdown`
(
    EXECUTING, TRANSFERRING, WAITING_MEMORY, WAITING_INSTRUCTION, WAITING_TOKEN, DECIDING, DONE,
) = 0, 1, 2, 3, 4, 8, 9  # fmt: skip
BREAKDOWN_COLUMNS = 10

# `share`: who uses the read port
USERS, LIVE, ALONE, ALONE_FROM, ALONE_LO, ALONE_HI, ALONE_BEATS, ALONE_BURSTS, REVOKED = range(9)
SHARE_FIELDS = 16


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
    share: NDArray[np.int64]
    outcome: NDArray[np.int64]


@nb.njit(cache=True, nogil=True)
def _replay(sim: Simulator, cycle: int) -> None:
    """Bring the port to the state it has in `cycle`, from the only user it had so far."""
    share = sim.share
    client, begin = share[ALONE], share[ALONE_FROM]
    reset_port(sim.clients, sim.port)
    if client == FETCH_CLIENT:
        add_fetch(sim.clients, begin, share[ALONE_LO], share[ALONE_HI], sim.bus)
    else:
        add_load(
            sim.clients, client, begin, nb.uint64(share[ALONE_LO]), nb.uint64(share[ALONE_HI]),
            sim.element_bytes[client], sim.flight_limits[client], sim.bus,
        )  # fmt: skip
    if advance(sim.clients, sim.port, sim.bursts, cycle + 1, sim.bus) < 0:
        share[REVOKED] = client
    share[LIVE] = 1


@nb.njit(cache=True, nogil=True)
def _begin_load(sim: Simulator, client: int, cycle: int, lo: int, hi: int) -> int:
    """The end of a load decided in `cycle`, NEVER while it is not known."""
    share = sim.share
    if share[USERS] > 0:
        if share[LIVE] == 0:
            _replay(sim, cycle)
        add_load(
            sim.clients, client, cycle, lo, hi,
            sim.element_bytes[client], sim.flight_limits[client], sim.bus,
        )  # fmt: skip
        share[USERS] += 1
        return NEVER
    element = sim.element_bytes[client]
    address = ((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * nb.uint64(element)
    place = (address & nb.uint64(sim.bus.window - 1)) << nb.uint64(3) | nb.uint64(client)
    row = memo_place(hi, place)
    if sim.memo[row, 0] != hi or sim.memo[row, 1] != place:
        reset_port(sim.clients, sim.port)
        add_load(sim.clients, client, 0, lo, hi, element, sim.flight_limits[client], sim.bus)
        advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
        sim.memo[row, 0] = hi
        sim.memo[row, 1] = place
        sim.memo[row, 2] = sim.clients[client, END]
        sim.memo[row, 3] = sim.port[READ_BEATS] << 32 | sim.port[READ_BURSTS]
    share[USERS] = 1
    share[ALONE] = client
    share[ALONE_FROM] = cycle
    share[ALONE_LO] = nb.int64(lo)
    share[ALONE_HI] = nb.int64(hi)
    share[ALONE_BEATS] = nb.int64(sim.memo[row, 3] >> nb.uint64(32))
    share[ALONE_BURSTS] = nb.int64(sim.memo[row, 3] & nb.uint64(0xFFFFFFFF))
    return cycle + nb.int64(sim.memo[row, 2])


@nb.njit(cache=True, nogil=True)
def _begin_fetch(sim: Simulator, cycle: int, address: int, count: int) -> int:
    """The first cycle in which a batch asked for after `cycle` can leave, NEVER if not known."""
    share = sim.share
    if share[USERS] > 0:
        if share[LIVE] == 0:
            _replay(sim, cycle)
        add_fetch(sim.clients, cycle, address, count, sim.bus)
        share[USERS] += 1
        return NEVER
    reset_port(sim.clients, sim.port)
    add_fetch(sim.clients, cycle, address, count, sim.bus)
    advance(sim.clients, sim.port, sim.bursts, NEVER, sim.bus)
    share[USERS] = 1
    share[ALONE] = FETCH_CLIENT
    share[ALONE_FROM] = cycle
    share[ALONE_LO] = address
    share[ALONE_HI] = count
    share[ALONE_BEATS] = sim.port[READ_BEATS]
    share[ALONE_BURSTS] = sim.port[READ_BURSTS]
    return sim.clients[FETCH_CLIENT, END]


@nb.njit(cache=True, nogil=True)
def _leave_port(sim: Simulator, client: int) -> int:
    """A client has ended. Returns the beats it read."""
    share, outcome = sim.share, sim.outcome
    share[USERS] -= 1
    if share[LIVE] == 0:
        outcome[RD_BEATS] += share[ALONE_BEATS]
        outcome[RD_BURSTS] += share[ALONE_BURSTS]
        return share[ALONE_BEATS]
    if share[USERS] == 0:
        share[LIVE] = 0
        outcome[RD_BEATS] += sim.port[READ_BEATS]
        outcome[RD_BURSTS] += sim.port[READ_BURSTS]
    return sim.clients[client, MOVED]


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
        _spend(breakdown, module, TRANSFERRING, begin, begin + beats, total)
        _spend(breakdown, module, WAITING_MEMORY, begin + beats, end, total)


@nb.njit(cache=True, nogil=True)
def _store_cycles(sim: Simulator, lo: int, hi: int) -> int:
    """Execute cycles of a STORE with elements, 0 if it never ends; counts its beats."""
    address = ((lo >> nb.uint64(26)) & nb.uint64(0xFFFFFFFF)) * nb.uint64(sim.machine.out_bytes)
    place = (address & nb.uint64(sim.bus.window - 1)) << nb.uint64(3) | nb.uint64(7)
    row = memo_place(hi, place)
    if sim.memo[row, 0] != hi or sim.memo[row, 1] != place:
        cycles, beats, bursts = store_length(lo, hi, sim.machine)
        sim.memo[row, 0] = hi
        sim.memo[row, 1] = place
        sim.memo[row, 2] = cycles
        sim.memo[row, 3] = beats << 32 | bursts
    sim.outcome[WR_BEATS] += nb.int64(sim.memo[row, 3] >> nb.uint64(32))
    sim.outcome[WR_BURSTS] += nb.int64(sim.memo[row, 3] & nb.uint64(0xFFFFFFFF))
    return nb.int64(sim.memo[row, 2])


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
    outcome, share, queues = sim.outcome, sim.share, sim.queues
    n = insns.shape[0]
    timed = starts.shape[0] > 0
    explained = breakdown.shape[0] > 0
    outcome[:] = 0
    outcome[HEAD : HEAD + 3] = -1
    share[:] = 0
    share[REVOKED] = -1
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

    while True:
        now = min(min(l_time, c_time), min(s_time, f_time))
        if share[LIVE] != 0:
            client = advance(
                sim.clients, sim.port, sim.bursts, NEVER if now == NEVER else now + 1, bus
            )
            if client >= 0:
                end = sim.clients[client, END]
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
            beats = 0
            if l_client >= 0:
                beats = _leave_port(sim, l_client)
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
            beats = 0
            if c_client >= 0:
                beats = _leave_port(sim, c_client)
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
                first = arrived
                f_time = _begin_fetch(sim, now, insn_address + 16 * first, min(batch, n - first))
            else:
                _leave_port(sim, FETCH_CLIENT)
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
                    l_client = INP_CLIENT if memory == INP else WGT_CLIENT
                    l_time = _begin_load(sim, l_client, now, lo, hi)
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
                    c_client = UOP_CLIENT if memory == UOP else ACC_CLIENT
                    c_time = _begin_load(sim, c_client, now, lo, hi)
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
                    length = _store_cycles(sim, lo, hi)
                    s_time = now + 1 + length
                    if length == 0:
                        s_time = NEVER
                        endless = insn
        if share[REVOKED] >= 0:
            client = share[REVOKED]
            share[REVOKED] = -1
            if client == FETCH_CLIENT:
                f_time = NEVER
            elif client == INP_CLIENT or client == WGT_CLIENT:
                l_time = NEVER
            else:
                c_time = NEVER

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
