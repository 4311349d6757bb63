"""The event loop: one pass over the ends of instructions, exact to the cycle.

Rules of the Chisel RTL (Load, Compute, Store, Semaphore), in cycles from launch. A module that is
idle in cycle s takes the head of its queue if it was enqueued before s and every token it pops is
there; it executes from s + 1 and is idle again `len` cycles later. That cycle is its `end`: the
tokens it pushes are there from then on. A counter that is full loses the token.

Time advances from event to event: the end of an instruction, a head that becomes visible, a batch
of instructions that has arrived or is to be asked for. A load that has the read port for itself
ends after a time that depends on its shape alone and is looked up. When a second client turns up
while it is under way, its end is taken back, its commands are replayed up to now, and the port is
simulated burst by burst (`port.advance`) until it is quiet again.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from targets.vta.isa import (
    ALU,
    FINISH,
    GEMM,
    INP,
    MODULE_COMPUTE,
    MODULE_LOAD,
    MODULE_STORE,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    UOP,
    get,
)
from targets.vta.timing.account import account_end, account_wait, spend
from targets.vta.timing.fetch import (
    ARRIVED,
    BATCH_FIRST,
    BATCH_READY,
    DISPATCHED,
    UNDECODABLE_AT,
    batch_size,
    dispatch,
    reset_fetch,
)
from targets.vta.timing.fetch import UNDECODABLE as FETCH_UNDECODABLE
from targets.vta.timing.lengths import (
    STORE_KEY,
    add,
    loop_iterations,
    place_of,
    replay,
    row_of,
    time_fetch,
    time_load,
    time_store,
)
from targets.vta.timing.outcome import (
    AHEAD_LOADS,
    CODE,
    CULPRIT,
    DEADLOCK,
    DONE,
    ENDLESS,
    FINISHED_AT,
    HEAD,
    MISSING,
    MISSING_FINISH,
    OVERTAKEN,
    RD_BEATS,
    RD_BURSTS,
    START,
    STOP,
    UNDECODABLE,
    VISIBLE,
    WR_BEATS,
    WR_BURSTS,
)
from targets.vta.timing.port import (
    ACC_CLIENT,
    AHEAD,
    END,
    ENDED,
    FETCH_CLIENT,
    INP_CLIENT,
    MOVED,
    NEVER,
    READ_BEATS,
    READ_BURSTS,
    STALE,
    UNCLEAR,
    UOP_CLIENT,
    WGT_CLIENT,
    add_fetch,
    advance,
    compiled,
)
from targets.vta.timing.simulator import Simulator

_LOW = 0xFFFFFFFF
_X_SIZE, _Y_SIZE = 0xFFFF0000, 0xFFFF  # in the high word of a transfer


@compiled
def simulate(
    insns: NDArray[np.uint64],
    insn_address: int,
    tokens: NDArray[np.int64],
    times: NDArray[np.int64],
    breakdown: NDArray[np.int64],
    sim: Simulator,
) -> int:
    """Cycles from launch to the execution of FINISH, or a negative code (`sim.outcome` says more).

    insns: (n, 2), low and high word, C-contiguous, `insn_address` the first one's byte address;
    tokens: (4,), initial l2g, g2l, g2s, s2g; times: (n, TIMES_COLUMNS) cycles, -1 where it did not
    happen, or (0, 0) if not wanted; breakdown: (3, BREAKDOWN_COLUMNS) cycles of each module, or
    (0, 0).
    """
    lay, bus, clients = sim.layout, sim.bus, sim.clients
    outcome, queues, table = sim.outcome, sim.queues, sim.table
    element_bytes, port, bursts = sim.element_bytes, sim.port, sim.bursts
    fetch, tails = sim.fetch, sim.tails
    out_bytes = sim.machine.out_bytes
    n = insns.shape[0]
    timed = times.shape[0] > 0
    explained = breakdown.shape[0] > 0
    outcome[:] = 0
    outcome[HEAD : HEAD + 3] = -1
    if timed:
        times[:] = -1
    if explained:
        breakdown[:] = 0

    entries, mask = sim.machine.queue_entries, queues.shape[1] - 1
    limit = sim.machine.token_limit
    l2g, g2l, g2s, s2g = tokens[0], tokens[1], tokens[2], tokens[3]
    l2g_since, g2l_since, g2s_since, s2g_since = 0, 0, 0, 0
    total = -1

    # Each module: head of its queue (the executing instruction stays in it), whether it executes,
    # its next event (an end, or a head that becomes visible), the instruction, the read client
    l_head, l_busy, l_time, l_insn, l_client, l_account = 0, False, NEVER, 0, -1, 0
    c_head, c_busy, c_time, c_insn, c_client, c_account = 0, False, NEVER, 0, -1, 0
    s_head, s_busy, s_time, s_insn, s_account = 0, False, NEVER, 0, 0
    endless = -1

    # The fetch unit: its next event is to ask for a batch, or the arrival of one
    reset_fetch(fetch)
    tails[:] = 0
    pipelined = bus.bytes >= 16
    batch = batch_size(sim.machine.max_burst_beats, pipelined)
    asking, f_time = n > 0, 0 if n > 0 else NEVER

    # The read port: how many use it, and who has it alone unless it is `live`
    users, live = 0, False
    alone, alone_from, alone_lo, alone_hi = 0, 0, nb.uint64(0), nb.uint64(0)
    alone_read, read, written = nb.uint64(0), nb.uint64(0), nb.uint64(0)  # beats << 32 | bursts
    joining, row = 0, 0

    while True:
        now = min(min(l_time, c_time), min(s_time, f_time))
        if live:
            client = advance(clients, port, bursts, now + 1, bus)
            if client >= 0:
                if client == FETCH_CLIENT:
                    f_time = clients[client, END]
                elif client == INP_CLIENT or client == WGT_CLIENT:
                    l_time = clients[client, END]
                else:
                    c_time = clients[client, END]
                if clients[client, AHEAD] > 0:
                    # It leaves its data behind: the port is not to be taken for quiet again.
                    users += 1
                    outcome[AHEAD_LOADS] += 1
                    if clients[client, AHEAD] == UNCLEAR:
                        outcome[CODE] = OVERTAKEN
                        outcome[CULPRIT] = l_insn
                        if client == UOP_CLIENT or client == ACC_CLIENT:
                            outcome[CULPRIT] = c_insn
                        return OVERTAKEN
                continue
        if now == NEVER:
            break
        leaving = 0

        # ---- ends, and the tokens they push
        ended = False
        if l_time == now and l_busy:
            ended = True
            l_busy = False
            l_head += 1
            l_time = NEVER
            leaving += 1 if l_client >= 0 else 0
            if insns[l_insn, 0] & nb.uint64(PUSH_NEXT):
                if l2g == 0:
                    l2g_since = now
                l2g = min(l2g + 1, limit)
            if timed:
                times[l_insn, STOP] = now
            if explained:
                beats = clients[l_client, MOVED] if live else nb.int64(alone_read >> nb.uint64(32))
                l_account = account_end(
                    breakdown, MODULE_LOAD, l_client, beats, l_account, now, total
                )
        if c_time == now and c_busy:
            ended = True
            c_busy = False
            c_head += 1
            c_time = NEVER
            leaving += 1 if c_client >= 0 else 0
            lo = insns[c_insn, 0]
            if lo & nb.uint64(PUSH_PREV):
                if g2l == 0:
                    g2l_since = now
                g2l = min(g2l + 1, limit)
            if lo & nb.uint64(PUSH_NEXT):
                if g2s == 0:
                    g2s_since = now
                g2s = min(g2s + 1, limit)
            if timed:
                times[c_insn, STOP] = now
            if explained:
                beats = clients[c_client, MOVED] if live else nb.int64(alone_read >> nb.uint64(32))
                c_account = account_end(
                    breakdown, MODULE_COMPUTE, c_client, beats, c_account, now, total
                )
        if s_time == now and s_busy:
            ended = True
            s_busy = False
            s_head += 1
            s_time = NEVER
            if insns[s_insn, 0] & nb.uint64(PUSH_PREV):
                if s2g == 0:
                    s2g_since = now
                s2g = min(s2g + 1, limit)
            if timed:
                times[s_insn, STOP] = now
            if explained:
                s_account = account_end(breakdown, MODULE_STORE, -1, 0, s_account, now, total)

        # ---- fetch
        asked = f_time == now and asking
        arrived = f_time == now and not asking
        if arrived:
            leaving += 1
            f_time = NEVER
            fetch[BATCH_FIRST] = fetch[ARRIVED]
            fetch[BATCH_READY] = now
            fetch[ARRIVED] += min(batch, n - fetch[ARRIVED])
            asking = fetch[ARRIVED] < n
        if leaving > 0:
            users -= leaving
            if live and users == 0:
                live = False
                read += nb.uint64(port[READ_BEATS] << 32 | port[READ_BURSTS])
        if arrived or (ended and fetch[DISPATCHED] < fetch[ARRIVED]):
            ask_at = dispatch(
                insns, lay, pipelined, entries, now, fetch, queues, (l_head, c_head, s_head), tails
            )
            if asking and f_time == NEVER:
                f_time = ask_at

        # ---- decisions
        if not l_busy and l_head < tails[MODULE_LOAD]:
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
                    l_account = account_wait(
                        breakdown, MODULE_LOAD, -1, 0, 1 if pop else -1, g2l_since,
                        l_account, visible, now, total,
                    )  # fmt: skip
                if pop:
                    g2l -= 1
                l_busy, l_insn, l_client = True, insn, -1
                if timed:
                    times[insn, VISIBLE], times[insn, START] = visible, now + 1
                hi = insns[insn, 1]
                if (hi & nb.uint64(_X_SIZE)) == 0:
                    l_time = now + 2
                elif (hi & nb.uint64(_Y_SIZE)) == 0:
                    l_time = NEVER
                    endless = insn
                else:
                    memory = nb.int64((lo >> nb.uint64(7)) & nb.uint64(7))
                    l_client = INP_CLIENT if memory == INP else WGT_CLIENT
                    joining += 1
        if not c_busy and c_head < tails[MODULE_COMPUTE]:
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
                    c_account = account_wait(
                        breakdown, MODULE_COMPUTE, 0 if pop else -1, l2g_since,
                        3 if pop_next else -1, s2g_since, c_account, visible, now, total,
                    )  # fmt: skip
                if pop:
                    l2g -= 1
                if pop_next:
                    s2g -= 1
                c_busy, c_insn, c_client = True, insn, -1
                if timed:
                    times[insn, VISIBLE], times[insn, START] = visible, now + 1
                hi = insns[insn, 1]
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
                elif (hi & nb.uint64(_X_SIZE)) == 0:
                    c_time = now + 2
                elif (hi & nb.uint64(_Y_SIZE)) == 0:
                    c_time = NEVER
                    endless = insn
                else:
                    memory = nb.int64((lo >> nb.uint64(7)) & nb.uint64(7))
                    c_client = UOP_CLIENT if memory == UOP else ACC_CLIENT
                    joining += 2
        if not s_busy and s_head < tails[MODULE_STORE]:
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
                    s_account = account_wait(
                        breakdown, MODULE_STORE, 2 if pop else -1, g2s_since, -1, 0,
                        s_account, visible, now, total,
                    )  # fmt: skip
                if pop:
                    g2s -= 1
                s_busy, s_insn = True, insn
                if timed:
                    times[insn, VISIBLE], times[insn, START] = visible, now + 1
                hi = insns[insn, 1]
                s_time = now + 2
                if (hi & nb.uint64(_X_SIZE)) != 0:
                    place = place_of(lo, out_bytes, bus.window, STORE_KEY)
                    row = row_of(hi, place)
                    if table[row, 0] != hi or table[row, 1] != place:
                        time_store(sim, lo, hi, row, place)
                    written += table[row, 3]
                    s_time = now + 1 + nb.int64(table[row, 2])
                    if table[row, 2] == 0:
                        s_time = NEVER
                        endless = insn

        # ---- new users of the read port: a batch, a load of the load unit, one of the compute unit
        if asked:
            joining += 4
        while joining > 0:
            if joining >= 4:
                client, insn = FETCH_CLIENT, fetch[ARRIVED]
                address = insn_address + 16 * insn
                lo, hi = nb.uint64(address), nb.uint64(min(batch, n - insn))
                asking = False
                joining -= 4
            elif joining & 1:
                client, insn = l_client, l_insn
                joining -= 1
                lo, hi = insns[insn, 0], insns[insn, 1]
            else:
                client, insn = c_client, c_insn
                joining -= 2
                lo, hi = insns[insn, 0], insns[insn, 1]
            if users == 0:
                if client != FETCH_CLIENT:
                    place = place_of(lo, element_bytes[client], bus.window, client)
                    row = row_of(hi, place)
                    if table[row, 0] != hi or table[row, 1] != place:
                        live = not time_load(sim, client, lo, hi, row, place)
            elif not live:
                live = True
                read -= alone_read
                if replay(sim, alone, alone_from, alone_lo, alone_hi, now):
                    if alone == FETCH_CLIENT:
                        f_time = NEVER
                    elif alone == INP_CLIENT or alone == WGT_CLIENT:
                        l_time = NEVER
                    else:
                        c_time = NEVER
            users += 1
            end = NEVER
            if not live:
                alone, alone_from, alone_lo, alone_hi = client, now, lo, hi
                if client == FETCH_CLIENT:
                    end = time_fetch(sim, now, nb.int64(lo), nb.int64(hi))
                    alone_read = nb.uint64(port[READ_BEATS] << 32 | port[READ_BURSTS])
                else:
                    end = now + nb.int64(table[row, 2])
                    alone_read = table[row, 3]
                read += alone_read
            elif client == FETCH_CLIENT:
                add_fetch(clients, now, nb.int64(lo), nb.int64(hi), bus)
            else:
                added = add(sim, client, now, lo, hi)
                if added == STALE or clients[client, AHEAD] == UNCLEAR:
                    outcome[CODE], outcome[CULPRIT] = OVERTAKEN, insn
                    return OVERTAKEN
                if added == ENDED:
                    end = clients[client, END]
                    users += 1
                    outcome[AHEAD_LOADS] += 1
            if client == FETCH_CLIENT:
                f_time = end
            elif client == INP_CLIENT or client == WGT_CLIENT:
                l_time = end
            else:
                c_time = end

    if live:
        read += nb.uint64(port[READ_BEATS] << 32 | port[READ_BURSTS])
    outcome[RD_BEATS], outcome[RD_BURSTS] = read >> nb.uint64(32), read & nb.uint64(_LOW)
    outcome[WR_BEATS], outcome[WR_BURSTS] = written >> nb.uint64(32), written & nb.uint64(_LOW)
    if total >= 0 and fetch[UNDECODABLE_AT] >= total:
        if explained:
            spend(breakdown, MODULE_LOAD, DONE, l_account, total, total)
            spend(breakdown, MODULE_STORE, DONE, s_account, total, total)
        return total

    # ---- why it never got there
    if fetch[FETCH_UNDECODABLE] >= 0:
        outcome[CODE], outcome[CULPRIT] = UNDECODABLE, fetch[FETCH_UNDECODABLE]
    elif endless >= 0:
        outcome[CODE], outcome[CULPRIT] = ENDLESS, endless
    elif l_head + c_head + s_head == n:
        outcome[CODE] = MISSING_FINISH
    else:
        outcome[CODE] = DEADLOCK
        if l_head < tails[MODULE_LOAD]:
            outcome[HEAD] = queues[MODULE_LOAD, l_head & mask, 0]
            outcome[MISSING] = 2
        if c_head < tails[MODULE_COMPUTE]:
            insn = queues[MODULE_COMPUTE, c_head & mask, 0]
            outcome[HEAD + 1] = insn
            if insns[insn, 0] & nb.uint64(POP_PREV) and l2g == 0:
                outcome[MISSING + 1] += 1
            if insns[insn, 0] & nb.uint64(POP_NEXT) and s2g == 0:
                outcome[MISSING + 1] += 8
        if s_head < tails[MODULE_STORE]:
            outcome[HEAD + 2] = queues[MODULE_STORE, s_head & mask, 0]
            outcome[MISSING + 2] = 4
    return outcome[CODE]
