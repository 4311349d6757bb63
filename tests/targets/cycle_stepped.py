"""Simulates every register of VTA's control, clock by clock: the ground truth of the cycle
simulator.

Written for comparison, not for speed: it follows the Chisel modules (Fetch, Load, Compute, Store,
TensorLoad with GenVMECmd and ZeroPadding, VME, VTAMemDPI) register by register and shares no
reasoning with `targets.vta.timing`, which jumps from event to event. GEMM, ALU and STORE, which
depend on nothing but their own fields, are counters.
"""

from __future__ import annotations

import numba as nb
import numpy as np

FETCH, UOP_PORT, INP_PORT, WGT_PORT, ACC_PORT = range(5)
IDLE, SYNC, EXE = range(3)
PAD_IDLE, PAD_TOP, PAD_LEFT, PAD_RIGHT, PAD_BOTH, PAD_SKIP, PAD_BOTTOM = range(7)
NEVER_FINISHES, UNDECODABLE, TOO_LONG = -1, -2, -3
TOTAL, RD_BEATS, RD_BURSTS, WR_BEATS, WR_BURSTS, OVERFLOW = range(6)

# registers of one load engine
(
    BUSY, COMMANDS_DONE, ROW, ROW_ADDRESS, ADDRESS, REMAINING, PAD_ROWS, IN_FLIGHT,
    PAD_STATE, PAD_ROW, PAD_COLUMN, ENGINE_REGISTERS,
) = range(12)  # fmt: skip


@nb.njit(cache=True)
def _field(word, offset, width):
    return nb.int64((word >> nb.uint64(offset & 63)) & nb.uint64((1 << width) - 1))


@nb.njit(cache=True)
def _ceil_log2(value):
    bits = 0
    while (1 << bits) < value:
        bits += 1
    return bits


@nb.njit(cache=True)
def _port_of(lo):
    """The read port of an instruction that reads memory, or -1."""
    if _field(lo, 0, 3) != 0:
        return -1
    memory = _field(lo, 7, 3)
    if memory == 0:
        return UOP_PORT
    if memory == 1:
        return WGT_PORT
    return INP_PORT if memory == 2 else ACC_PORT


@nb.njit(cache=True)
def _module(lo, hi, lay):
    """0 load, 1 compute, 2 store, -1 not decodable."""
    opcode, memory = _field(lo, 0, 3), _field(lo, 7, 3)
    if opcode == 0:
        return -1 if memory > 3 else 0 if memory in (1, 2) else 1
    if opcode == 1:
        return 2
    if opcode in (2, 3):
        return 1
    if opcode == 4:
        word = lo if lay.alu_opcode < 64 else hi
        return 1 if _field(word, lay.alu_opcode, 3) < 4 else -1
    return -1


@nb.njit(cache=True)
def _loop_iterations(lo, hi, lay):
    bgn = _field(lo if lay.uop_bgn < 64 else hi, lay.uop_bgn, lay.uop_index_bits)
    end = _field(lo if lay.uop_end < 64 else hi, lay.uop_end, lay.uop_index_bits + 1)
    out = _field(lo if lay.iter_out < 64 else hi, lay.iter_out, 14)
    inner = _field(lo if lay.iter_in < 64 else hi, lay.iter_in, 14)
    # the counters run from begin until they equal end - 1
    count, index = 1, bgn
    while index != (end - 1) % (1 << (lay.uop_index_bits + 1)):
        index = (index + 1) % (1 << (lay.uop_index_bits + 1))
        count += 1
    return (out or 16384) * (inner or 16384) * count


@nb.njit(cache=True)
def _store_cycles(lo, hi, machine, counters):
    """Execute cycles of a STORE, burst by burst; 0 if it never ends."""
    bus, window = machine.bus_bytes, machine.bus_bytes * machine.max_burst_beats
    rows, x_size, stride = _field(hi, 0, 16), _field(hi, 16, 16), _field(hi, 32, 16)
    wide = bus >= machine.out_bytes
    if rows == 0:
        if wide:
            return 0
        rows = 65536
    pitch = machine.out_bytes if wide else machine.batch * machine.block_out
    row_beats_of_sram = max(1, machine.block_out * machine.inp_bits // 8 // bus)
    start = _field(lo, 26, 32) * machine.out_bytes
    cycles = 0
    for row in range(rows):
        address = start + row * stride * pitch
        end = address + x_size * machine.out_bytes
        position = address - address % bus
        while position < end:
            stop = min(position - position % window + window, end)
            beats = (stop - position + bus - 1) // bus
            cycles += 4 + beats
            if not wide:
                cycles += (beats - 1) // row_beats_of_sram
            counters[WR_BEATS] += beats
            counters[WR_BURSTS] += 1
            position = stop
    return cycles


@nb.njit(cache=True)
def step(insns, insn_address, machine, lay, tokens, starts, ends, counters, limit):
    """Run until nothing moves any more (or for `limit` cycles).

    insns: uint64 (n, 2); tokens: int64 (4,) initial l2g, g2l, g2s, s2g; starts, ends: int64 (n,),
    -1 where it did not happen; counters: int64 (6,). Returns the cycle of FINISH or a negative
    code.
    """
    n = insns.shape[0]
    bus, max_beats = machine.bus_bytes, machine.max_burst_beats
    window = bus * max_beats
    element = np.array(
        [8, machine.uop_bytes, machine.inp_bytes, machine.wgt_bytes, machine.acc_bytes], np.int64
    )
    depth = np.array(
        [2 * max_beats, machine.uop_built, machine.inp_built, machine.wgt_built, machine.acc_built],
        np.int64,
    )
    flight_modulus = np.zeros(5, np.int64)
    for p in range(5):
        if bus >= element[p]:
            flight_modulus[p] = 1 << (_ceil_log2(depth[p] // (bus // element[p])) + 1)
        else:
            flight_modulus[p] = 1 << _ceil_log2(depth[p] * (element[p] // bus))
    starts[:] = -1
    ends[:] = -1
    counters[:] = 0

    # fetch
    wide_fetch = bus >= 16
    batch = max_beats if wide_fetch else max(1, max_beats // 2)
    fetched = 0  # instructions of earlier batches
    batch_size = min(n, batch)
    f_state = (
        1 if not wide_fetch else 0
    )  # narrow: 0 idle 1 command 2 read 3 drain; wide: 0 read 1 drain 2 idle
    f_words = 0
    f_left = 0  # instructions in the local memory
    f_next = 0  # next instruction to leave the local memory
    f_position = insn_address - insn_address % bus  # wide: next command
    f_end = insn_address + 16 * batch_size
    f_in_flight = 0
    f_commands_done = False
    f_pause = False  # wide: the start cycle of a later batch
    pipe = np.zeros(2, np.int64)
    pipe_count = 0
    f_ret2 = False

    # modules
    queue = np.zeros((3, machine.queue_entries + 1), np.int64)
    q_head, q_count = np.zeros(3, np.int64), np.zeros(3, np.int64)
    state, timer, current = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
    sem = tokens.copy()
    post, wait = np.zeros(4, np.int64), np.zeros(4, np.int64)

    # engines and read port
    eng = np.zeros((5, ENGINE_REGISTERS), np.int64)
    eng[:, COMMANDS_DONE] = 1
    lo_of, hi_of = np.zeros(5, np.uint64), np.zeros(5, np.uint64)
    started = np.full(5, -1, np.int64)  # cycle in which io.start was high
    cq_valid, cq_len = np.zeros(5, np.int64), np.zeros(5, np.int64)
    tags = machine.read_tags
    fifo_len, fifo_port = np.zeros(512, np.int64), np.zeros(512, np.int64)
    fifo_head, fifo_count, latency = 0, 0, 0
    served, serving = 0, -1
    ret1, ret2 = -1, -1
    total = -1
    quiet = 0

    t = 0
    while t < limit:
        moved = False
        # ---------------- registers visible in this cycle
        beat = serving if served > 0 else -1
        last = served == 1
        data_at = ret1  # client that sees data now
        write_at = ret2  # narrow engines and the wide fetch register it once more
        post[:] = 0
        wait[:] = 0
        start_port = -1
        start_port2 = -1

        # ---------------- modules: decide and finish
        deq = np.zeros(3, np.int64)
        start_now = np.full(3, -1, np.int64)
        next_state = state.copy()
        for m in range(3):
            if state[m] == IDLE:
                if q_count[m] > 0:
                    i = queue[m, q_head[m]]
                    lo, hi = insns[i, 0], insns[i, 1]
                    pop_prev = (lo >> nb.uint64(3)) & nb.uint64(1)
                    pop_next = (lo >> nb.uint64(4)) & nb.uint64(1)
                    ready = True
                    if m == 0:
                        ready = not (pop_next and sem[1] == 0)
                    elif m == 1:
                        ready = not (pop_prev and sem[0] == 0) and not (pop_next and sem[3] == 0)
                    else:
                        ready = not (pop_prev and sem[2] == 0)
                    if ready:
                        moved = True
                        if m == 0:
                            wait[1] = pop_next
                        elif m == 1:
                            wait[0], wait[3] = pop_prev, pop_next
                        else:
                            wait[2] = pop_prev
                        start_now[m] = i
                        current[m] = i
                        starts[i] = t + 1
                        opcode = _field(lo, 0, 3)
                        x_size = _field(hi, 16, 16)
                        if opcode <= 1 and x_size == 0:
                            next_state[m] = SYNC
                        else:
                            next_state[m] = EXE
                            if opcode == 1:
                                timer[m] = _store_cycles(lo, hi, machine, counters)
                            elif opcode == 2:
                                timer[m] = _loop_iterations(lo, hi, lay) + 6
                            elif opcode == 3:
                                timer[m] = 1
                            elif opcode == 4:
                                word = lo if lay.alu_use_imm < 64 else hi
                                per = 1 if _field(word, lay.alu_use_imm, 1) else 2
                                timer[m] = per * _loop_iterations(lo, hi, lay) + 6
                            else:
                                timer[m] = -1
                                if m == 0:
                                    start_port = _port_of(lo)
                                else:
                                    start_port2 = _port_of(lo)
            else:
                i = current[m]
                lo = insns[i, 0]
                done = False
                if state[m] == SYNC:
                    done = True
                elif timer[m] > 0:
                    timer[m] -= 1
                    done = timer[m] == 0
                elif timer[m] == -1:
                    p = _port_of(lo)
                    done = (
                        eng[p, BUSY] == 1
                        and eng[p, IN_FLIGHT] == 0
                        and eng[p, COMMANDS_DONE] == 1
                        and eng[p, PAD_STATE] == PAD_IDLE
                    )
                    if done:
                        eng[p, BUSY] = 2  # leaves at the end of the cycle
                if timer[m] > 0 or done:
                    moved = True
                if done:
                    deq[m] = 1
                    next_state[m] = IDLE
                    ends[i] = t + 1
                    push_prev = (lo >> nb.uint64(5)) & nb.uint64(1)
                    push_next = (lo >> nb.uint64(6)) & nb.uint64(1)
                    if m == 0:
                        post[0] = push_next
                    elif m == 1:
                        post[1], post[2] = push_prev, push_next
                    else:
                        post[3] = push_prev
                    if _field(lo, 0, 3) == 3 and total < 0:
                        total = t
        for k in range(4):
            if post[k] and not wait[k] and sem[k] != machine.token_limit:
                sem[k] += 1
            elif wait[k] and not post[k]:
                sem[k] -= 1

        # ---------------- load engines: commands, data, padding
        port_full = cq_valid.copy()  # one-entry client queues, at the start of the cycle
        for p in range(1, 5):
            if p == start_port or p == start_port2:
                i = current[0] if p == start_port else current[1]
                lo_of[p], hi_of[p] = insns[i, 0], insns[i, 1]
            hi = hi_of[p]
            y_size, x_size, x_stride = _field(hi, 0, 16), _field(hi, 16, 16), _field(hi, 32, 16)
            y_pad_0, y_pad_1 = _field(hi, 48, 4), _field(hi, 52, 4)
            x_pad_0, x_pad_1 = _field(hi, 56, 4), _field(hi, 60, 4)
            wide = bus >= element[p]
            fire_data = data_at == p if wide else write_at == p
            # padding
            pad_start = (start_port == p or start_port2 == p) if wide else started[p] == t - 1
            can_write = not fire_data
            width = x_pad_0 + x_size + x_pad_1
            s, row, col = eng[p, PAD_STATE], eng[p, PAD_ROW], eng[p, PAD_COLUMN]
            side = PAD_IDLE
            if x_pad_0 and x_pad_1:
                side = PAD_BOTH
            elif x_pad_0:
                side = PAD_LEFT
            elif x_pad_1:
                side = PAD_RIGHT
            elif y_pad_1:
                side = PAD_SKIP
            side_col = x_pad_0 + x_size if side == PAD_RIGHT else 0
            if pad_start:
                row = 0
                s = PAD_TOP if y_pad_0 else side
                col = 0 if y_pad_0 else side_col
            elif s == PAD_SKIP:
                if row == y_pad_0 + y_size - 1:
                    s, col = PAD_BOTTOM, 0
                row += 1
            elif s != PAD_IDLE and can_write:
                line_end = col == (x_pad_0 - 1 if s == PAD_LEFT else width - 1)
                if line_end:
                    if s == PAD_TOP:
                        col = 0
                        if row == y_pad_0 - 1:
                            s, col = side, side_col
                    elif s == PAD_BOTTOM:
                        col = 0
                        if row == y_pad_0 + y_size + y_pad_1 - 1:
                            s = PAD_IDLE
                    else:
                        col = side_col
                        if row == y_pad_0 + y_size - 1:
                            s, col = PAD_BOTTOM if y_pad_1 else PAD_IDLE, 0
                    row += 1
                elif s == PAD_BOTH and col == x_pad_0 - 1:
                    col += x_size + 1
                else:
                    col += 1
            if s != eng[p, PAD_STATE] or row != eng[p, PAD_ROW] or col != eng[p, PAD_COLUMN]:
                moved = True
            eng[p, PAD_STATE], eng[p, PAD_ROW], eng[p, PAD_COLUMN] = s, row, col
            # commands
            fired = 0
            if eng[p, BUSY] == 1:
                if eng[p, PAD_ROWS] < y_pad_0:
                    eng[p, PAD_ROWS] += 1
                    moved = True
                elif eng[p, COMMANDS_DONE] == 0 and y_size > 0 and not port_full[p]:
                    address = eng[p, ADDRESS]
                    fired = min(eng[p, REMAINING], (window - address % window) // bus)
                    cq_valid[p], cq_len[p] = 1, fired
                    eng[p, REMAINING] -= fired
                    eng[p, ADDRESS] += fired * bus
                    if eng[p, REMAINING] == 0:
                        eng[p, ROW] += 1
                        if eng[p, ROW] == y_size:
                            eng[p, COMMANDS_DONE] = 1
                        else:
                            eng[p, ROW_ADDRESS] += x_stride * element[p]
                            base = eng[p, ROW_ADDRESS]
                            eng[p, ADDRESS] = base - base % bus
                            eng[p, REMAINING] = (base % bus + x_size * element[p] + bus - 1) // bus
                    moved = True
                if fired or fire_data:
                    if fire_data and not fired and eng[p, IN_FLIGHT] == 0:
                        counters[OVERFLOW] = 1  # the RTL's assertion blocksInFlight > 0
                    change = fired - (1 if fire_data else 0)
                    eng[p, IN_FLIGHT] = (eng[p, IN_FLIGHT] + change) % flight_modulus[p]
            if eng[p, BUSY] == 2:
                eng[p, BUSY] = 0
            if p == start_port or p == start_port2:
                started[p] = t
                base = _field(lo_of[p], 26, 32) * element[p]
                eng[p, BUSY], eng[p, COMMANDS_DONE], eng[p, ROW], eng[p, PAD_ROWS] = 1, 0, 0, 0
                eng[p, IN_FLIGHT] = 0
                eng[p, ROW_ADDRESS], eng[p, ADDRESS] = base, base - base % bus
                eng[p, REMAINING] = (base % bus + x_size * element[p] + bus - 1) // bus

        # ---------------- fetch
        enq_module, enq_insn = -1, -1
        moving = False
        if not wide_fetch:
            if f_state == 1 and t > 0:
                if not port_full[FETCH]:
                    cq_valid[FETCH], cq_len[FETCH] = 1, 2 * batch_size
                    f_state, f_words = 2, 0
                    moved = True
            elif f_state == 2:
                if data_at == FETCH:
                    f_words += 1
                    if f_words == 2 * batch_size:
                        f_state, f_left = 3, batch_size
            elif f_state == 3:
                if f_left == 0:
                    fetched += batch_size
                    batch_size = min(n - fetched, batch)
                    f_state = 1 if batch_size > 0 else 0
                    moved = True
                else:
                    enq_insn = f_next
        else:
            if pipe_count > 0:
                enq_insn = pipe[0]
            if f_state == 0 and t > 0:
                fired = 0
                if f_pause:
                    f_pause = False
                    moved = True
                else:
                    done = f_commands_done and f_in_flight == 0
                    if not f_commands_done and not port_full[FETCH]:
                        stop = min(f_position - f_position % window + window, f_end)
                        fired = (stop - f_position + bus - 1) // bus
                        cq_valid[FETCH], cq_len[FETCH] = 1, fired
                        f_position = stop
                        f_commands_done = f_position == f_end
                        moved = True
                    f_in_flight += fired - (1 if f_ret2 else 0)
                    if done:
                        f_state, f_left = 1, batch_size
                        moved = True
            elif f_state == 1:
                if f_left == 0:
                    fetched += batch_size
                    batch_size = min(n - fetched, batch)
                    f_state = 2
                    moved = True
                    if batch_size > 0:
                        f_state, f_pause, f_commands_done = 0, True, False
                        begin = insn_address + 16 * fetched
                        f_position, f_end = begin - begin % bus, begin + 16 * batch_size
                elif pipe_count < 2:
                    f_left -= 1
                    moving = True
                    moved = True
        if enq_insn >= 0:
            m = _module(insns[enq_insn, 0], insns[enq_insn, 1], lay)
            if m < 0:
                if total < 0:
                    counters[TOTAL] = enq_insn
                    return UNDECODABLE
                enq_insn = -1
            elif q_count[m] < machine.queue_entries:
                enq_module = m
                moved = True
        if not wide_fetch:
            if enq_module >= 0:
                f_next += 1
                f_left -= 1
        else:
            if enq_module >= 0:
                pipe[0] = pipe[1]
                pipe_count -= 1
            if moving:
                pipe[pipe_count] = f_next
                pipe_count += 1
                f_next += 1

        # ---------------- queues
        for m in range(3):
            if deq[m]:
                q_head[m] = (q_head[m] + 1) % queue.shape[1]
                q_count[m] -= 1
            if enq_module == m:
                queue[m, (q_head[m] + q_count[m]) % queue.shape[1]] = enq_insn
                q_count[m] += 1

        # ---------------- arbiter: client queues that were full at the start of the cycle
        granted = -1
        if not last and tags > 0:
            for p in range(5):
                if port_full[p]:
                    granted = p
                    break
        # ---------------- memory
        accept = fifo_count > 0 and latency == machine.memory_latency_cycles and served <= 1
        latency = min(latency + 1, machine.memory_latency_cycles) if fifo_count > 0 else 0
        ret2 = ret1
        f_ret2 = ret1 == FETCH
        ret1 = beat
        if served > 0:
            served -= 1
            moved = True
        if accept:
            served, serving = fifo_len[fifo_head], fifo_port[fifo_head]
            counters[RD_BEATS] += served
            counters[RD_BURSTS] += 1
            fifo_head = (fifo_head + 1) % 512
            fifo_count -= 1
        if last:
            tags += 1
        if granted >= 0:
            tail = (fifo_head + fifo_count) % 512
            fifo_len[tail], fifo_port[tail] = cq_len[granted], granted
            fifo_count += 1
            tags -= 1
            cq_valid[granted] = 0
        state[:] = next_state
        if moved or fifo_count > 0 or ret1 >= 0 or ret2 >= 0:
            quiet = 0
        else:
            quiet += 1
            if quiet > 64:
                break
        t += 1
    if t >= limit:
        return TOO_LONG
    return total if total >= 0 else NEVER_FINISHES
