"""Simulates VTA's control logic register by register, one clock cycle at a time.

This simulator is the ground truth for the cycle simulator. It is written for comparison, not for
speed. It follows the Chisel modules (Fetch, Load, Compute, Store, TensorLoad with GenVMECmd and
ZeroPadding, VME, VTAMemDPI) and shares no code with `targets.vta.timing`, which jumps from event to
event. GEMM, ALU and STORE are modelled as counters, because their cycles depend only on their own
instruction fields.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

Registers = NDArray[np.int64]
uncounted = nb.njit(cache=True, _nrt=False)
"""Numba decorator without reference counting, because each cycle passes all registers to dozens of
functions."""

FETCH, UOP_PORT, INP_PORT, WGT_PORT, ACC_PORT = range(5)
IDLE, SYNC, EXE = range(3)
PAD_IDLE, PAD_TOP, PAD_LEFT, PAD_RIGHT, PAD_BOTH, PAD_SKIP, PAD_BOTTOM = range(7)
NEVER_FINISHES, UNDECODABLE, TOO_LONG = -1, -2, -3
TOTAL, RD_BEATS, RD_BURSTS, WR_BEATS, WR_BURSTS, OVERFLOW = range(6)

# Indices of the registers of one load engine.
(
    BUSY, COMMANDS_DONE, ROW, ROW_ADDRESS, ADDRESS, REMAINING, PAD_ROWS, IN_FLIGHT,
    PAD_STATE, PAD_ROW, PAD_COLUMN, INSTRUCTION, STARTED, ENGINE_REGISTERS,
) = range(14)  # fmt: skip
# Indices of the fetch unit's registers. FETCHED counts the instructions of earlier batches, and
# LEFT counts those in the local memory.
(
    FETCHED, BATCH_SIZE, FETCH_STATE, WORDS, LEFT, NEXT, POSITION, END, FETCH_IN_FLIGHT,
    FETCH_COMMANDS_DONE, PAUSE, PIPE_COUNT, MOVING, FETCH_REGISTERS,
) = range(14)  # fmt: skip
COMMAND, READ, DRAIN, DONE = range(4)
"""States of the fetch unit. With a wide bus, it reads without the state COMMAND."""
# Indices of the memory's registers, among them the ports that get the beats of this cycle and of
# the two cycles before.
(
    TAGS, FIFO_HEAD, FIFO_COUNT, LATENCY, SERVED, SERVING, DATA_AT, WRITE_AT, MEMORY_REGISTERS,
) = range(9)  # fmt: skip
FIFO = 512
MOVED, FINISHED, STARTED_LOAD, STARTED_COMPUTE, SIGNALS = range(5)
"""Signals of the current cycle: whether any register changed, the cycle of FINISH or -1, and the
read ports that the load and compute modules start, or -1."""


class Ports(NamedTuple):
    """Constants of each read port, int64 (5,).

    `element` is the number of bytes per element. `flight_modulus` is the number of values of the
    counter of beats in flight.
    """

    element: Registers
    flight_modulus: Registers


class Circuit(NamedTuple):
    """All registers of the machine, int64.

    Module registers have the shape (3,), semaphores (4,), and port registers (5, …).
    """

    state: Registers
    next_state: Registers
    timer: Registers
    current: Registers
    dequeued: Registers
    queue: Registers
    q_head: Registers
    q_count: Registers
    semaphore: Registers
    post: Registers
    wait: Registers
    engine: Registers
    command_valid: Registers
    command_beats: Registers
    port_full: Registers
    fifo_beats: Registers
    fifo_port: Registers
    fetch: Registers
    pipe: Registers
    memory: Registers
    signal: Registers


@uncounted
def _field(word, offset, width):
    return nb.int64((word >> nb.uint64(offset & 63)) & nb.uint64((1 << width) - 1))


@uncounted
def _ceil_log2(value):
    bits = 0
    while (1 << bits) < value:
        bits += 1
    return bits


@uncounted
def _port_of(lo):
    """Return the read port of a LOAD instruction, or -1 for other instructions."""
    if _field(lo, 0, 3) != 0:
        return -1
    memory = _field(lo, 7, 3)
    if memory == 0:
        return UOP_PORT
    if memory == 1:
        return WGT_PORT
    return INP_PORT if memory == 2 else ACC_PORT


@uncounted
def _module(lo, hi, lay):
    """Return the module that runs an instruction: 0 load, 1 compute, 2 store, -1 undecodable."""
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


@uncounted
def _loop_iterations(lo, hi, lay):
    bgn = _field(lo if lay.uop_bgn < 64 else hi, lay.uop_bgn, lay.uop_index_bits)
    end = _field(lo if lay.uop_end < 64 else hi, lay.uop_end, lay.uop_index_bits + 1)
    out = _field(lo if lay.iter_out < 64 else hi, lay.iter_out, 14)
    inner = _field(lo if lay.iter_in < 64 else hi, lay.iter_in, 14)
    # The counters run from begin to end - 1.
    count, index = 1, bgn
    while index != (end - 1) % (1 << (lay.uop_index_bits + 1)):
        index = (index + 1) % (1 << (lay.uop_index_bits + 1))
        count += 1
    return (out or 16384) * (inner or 16384) * count


@uncounted
def _store_cycles(lo, hi, machine, counters):
    """Return the execution cycles of a STORE, added burst by burst, or 0 if it never ends."""
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
def _ports(machine):
    bus, beats = machine.bus_bytes, machine.max_burst_beats
    element = np.array(
        [8, machine.uop_bytes, machine.inp_bytes, machine.wgt_bytes, machine.acc_bytes], np.int64
    )
    depth = np.array(
        [2 * beats, machine.uop_built, machine.inp_built, machine.wgt_built, machine.acc_built],
        np.int64,
    )
    modulus = np.zeros(5, np.int64)
    for p in range(5):
        if bus >= element[p]:
            modulus[p] = 1 << (_ceil_log2(depth[p] // (bus // element[p])) + 1)
        else:
            modulus[p] = 1 << _ceil_log2(depth[p] * (element[p] // bus))
    return Ports(element, modulus)


@nb.njit(cache=True)
def _reset(n, insn_address, machine, tokens):
    """Return all registers in their state at launch."""
    bus = machine.bus_bytes
    engine = np.zeros((5, ENGINE_REGISTERS), np.int64)
    engine[:, COMMANDS_DONE] = 1
    engine[:, INSTRUCTION] = -1
    engine[:, STARTED] = -1
    fetch = np.zeros(FETCH_REGISTERS, np.int64)
    fetch[BATCH_SIZE] = min(n, _fetch_batch(machine))
    fetch[FETCH_STATE] = READ if bus >= 16 else COMMAND
    fetch[POSITION] = insn_address - insn_address % bus
    fetch[END] = insn_address + 16 * fetch[BATCH_SIZE]
    memory = np.zeros(MEMORY_REGISTERS, np.int64)
    memory[TAGS] = machine.read_tags
    memory[SERVING], memory[DATA_AT], memory[WRITE_AT] = -1, -1, -1
    signal = np.full(SIGNALS, -1, np.int64)
    return Circuit(
        np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64),
        np.zeros(3, np.int64), np.zeros((3, machine.queue_entries + 1), np.int64),
        np.zeros(3, np.int64), np.zeros(3, np.int64),
        tokens.copy(), np.zeros(4, np.int64), np.zeros(4, np.int64),
        engine, np.zeros(5, np.int64), np.zeros(5, np.int64), np.zeros(5, np.int64),
        np.zeros(FIFO, np.int64), np.zeros(FIFO, np.int64), fetch, np.zeros(2, np.int64),
        memory, signal,
    )  # fmt: skip


@uncounted
def _fetch_batch(machine):
    beats = machine.max_burst_beats
    return beats if machine.bus_bytes >= 16 else max(1, beats // 2)


@uncounted
def _begin_cycle(c):
    c.post[:] = 0
    c.wait[:] = 0
    c.dequeued[:] = 0
    for m in range(3):
        c.next_state[m] = c.state[m]
    for p in range(5):
        c.port_full[p] = c.command_valid[p]  # one-entry client queues, at the start of the cycle
    c.signal[MOVED] = 0
    c.signal[STARTED_LOAD] = -1
    c.signal[STARTED_COMPUTE] = -1


@uncounted
def _start_head(c, m, t, insns, machine, lay, starts, counters):
    """Let an idle module start the head of its queue, if the required tokens are present."""
    if c.q_count[m] == 0:
        return
    i = c.queue[m, c.q_head[m]]
    lo, hi = insns[i, 0], insns[i, 1]
    pop_prev = (lo >> nb.uint64(3)) & nb.uint64(1)
    pop_next = (lo >> nb.uint64(4)) & nb.uint64(1)
    semaphore = c.semaphore
    if m == 0:
        ready = not (pop_next and semaphore[1] == 0)
    elif m == 1:
        ready = not (pop_prev and semaphore[0] == 0) and not (pop_next and semaphore[3] == 0)
    else:
        ready = not (pop_prev and semaphore[2] == 0)
    if not ready:
        return
    c.signal[MOVED] = 1
    if m == 0:
        c.wait[1] = pop_next
    elif m == 1:
        c.wait[0], c.wait[3] = pop_prev, pop_next
    else:
        c.wait[2] = pop_prev
    c.current[m] = i
    starts[i] = t + 1
    opcode = _field(lo, 0, 3)
    if opcode <= 1 and _field(hi, 16, 16) == 0:
        c.next_state[m] = SYNC
        return
    c.next_state[m] = EXE
    if opcode == 1:
        c.timer[m] = _store_cycles(lo, hi, machine, counters)
    elif opcode == 2:
        c.timer[m] = _loop_iterations(lo, hi, lay) + 6
    elif opcode == 3:
        c.timer[m] = 1
    elif opcode == 4:
        word = lo if lay.alu_use_imm < 64 else hi
        per = 1 if _field(word, lay.alu_use_imm, 1) else 2
        c.timer[m] = per * _loop_iterations(lo, hi, lay) + 6
    else:
        c.timer[m] = -1
        c.signal[STARTED_LOAD if m == 0 else STARTED_COMPUTE] = _port_of(lo)


@uncounted
def _work_on(c, m, t, insns, ends):
    """Step a busy module: count down or wait for its engine, and push tokens at the end."""
    i = c.current[m]
    lo = insns[i, 0]
    done = False
    if c.state[m] == SYNC:
        done = True
    elif c.timer[m] > 0:
        c.timer[m] -= 1
        done = c.timer[m] == 0
    elif c.timer[m] == -1:
        engine = c.engine[_port_of(lo)]
        done = (
            engine[BUSY] == 1
            and engine[IN_FLIGHT] == 0
            and engine[COMMANDS_DONE] == 1
            and engine[PAD_STATE] == PAD_IDLE
        )
        if done:
            engine[BUSY] = 2  # leaves at the end of the cycle
    if c.timer[m] > 0 or done:
        c.signal[MOVED] = 1
    if not done:
        return
    c.dequeued[m] = 1
    c.next_state[m] = IDLE
    ends[i] = t + 1
    push_prev = (lo >> nb.uint64(5)) & nb.uint64(1)
    push_next = (lo >> nb.uint64(6)) & nb.uint64(1)
    if m == 0:
        c.post[0] = push_next
    elif m == 1:
        c.post[1], c.post[2] = push_prev, push_next
    else:
        c.post[3] = push_prev
    if _field(lo, 0, 3) == 3 and c.signal[FINISHED] < 0:
        c.signal[FINISHED] = t


@uncounted
def _count_tokens(c, machine):
    for k in range(4):
        if c.post[k] and not c.wait[k] and c.semaphore[k] != machine.token_limit:
            c.semaphore[k] += 1
        elif c.wait[k] and not c.post[k]:
            c.semaphore[k] -= 1


@uncounted
def _load_engine(c, p, t, insns, machine, ports, counters):
    """Step the load engine of one port: commands, data and padding."""
    engine = c.engine[p]
    started = p == c.signal[STARTED_LOAD] or p == c.signal[STARTED_COMPUTE]
    if started:
        engine[INSTRUCTION] = c.current[0 if p == c.signal[STARTED_LOAD] else 1]
    i = engine[INSTRUCTION]
    if i < 0:
        return
    lo, hi = insns[i, 0], insns[i, 1]
    wide = machine.bus_bytes >= ports.element[p]
    # Narrow engines register data once more.
    data = c.memory[DATA_AT if wide else WRITE_AT] == p
    _pad(c, engine, hi, started if wide else engine[STARTED] == t - 1, data)
    _read_rows(c, p, hi, data, machine, ports, counters)
    if engine[BUSY] == 2:
        engine[BUSY] = 0
    if started:
        base = _field(lo, 26, 32) * ports.element[p]
        engine[STARTED], engine[BUSY], engine[COMMANDS_DONE] = t, 1, 0
        engine[ROW], engine[PAD_ROWS], engine[IN_FLIGHT] = 0, 0, 0
        _begin_row(engine, base, _field(hi, 16, 16) * ports.element[p], machine.bus_bytes)


@uncounted
def _begin_row(engine, base, size, bus):
    engine[ROW_ADDRESS], engine[ADDRESS] = base, base - base % bus
    engine[REMAINING] = (base % bus + size + bus - 1) // bus


@uncounted
def _pad(c, engine, hi, begins, data):
    """Step ZeroPadding by one cycle. It writes zeros around the loaded data."""
    y_size, x_size = _field(hi, 0, 16), _field(hi, 16, 16)
    y_pad_0, y_pad_1 = _field(hi, 48, 4), _field(hi, 52, 4)
    x_pad_0, x_pad_1 = _field(hi, 56, 4), _field(hi, 60, 4)
    s, row, col = engine[PAD_STATE], engine[PAD_ROW], engine[PAD_COLUMN]
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
    if begins:
        row = 0
        s = PAD_TOP if y_pad_0 else side
        col = 0 if y_pad_0 else side_col
    elif s == PAD_SKIP:
        if row == y_pad_0 + y_size - 1:
            s, col = PAD_BOTTOM, 0
        row += 1
    elif s != PAD_IDLE and not data:
        width = x_pad_0 + x_size + x_pad_1
        if col == (x_pad_0 - 1 if s == PAD_LEFT else width - 1):  # end of the line
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
    if s != engine[PAD_STATE] or row != engine[PAD_ROW] or col != engine[PAD_COLUMN]:
        c.signal[MOVED] = 1
    engine[PAD_STATE], engine[PAD_ROW], engine[PAD_COLUMN] = s, row, col


@uncounted
def _read_rows(c, p, hi, data, machine, ports, counters):
    """Step GenVMECmd by one cycle: issue a command if the queue is free, and count beats."""
    engine = c.engine[p]
    if engine[BUSY] != 1:
        return
    bus = machine.bus_bytes
    window = bus * machine.max_burst_beats
    y_size = _field(hi, 0, 16)
    fired = 0
    if engine[PAD_ROWS] < _field(hi, 48, 4):
        engine[PAD_ROWS] += 1
        c.signal[MOVED] = 1
    elif engine[COMMANDS_DONE] == 0 and y_size > 0 and not c.port_full[p]:
        fired = min(engine[REMAINING], (window - engine[ADDRESS] % window) // bus)
        c.command_valid[p], c.command_beats[p] = 1, fired
        engine[REMAINING] -= fired
        engine[ADDRESS] += fired * bus
        if engine[REMAINING] == 0:
            engine[ROW] += 1
            if engine[ROW] == y_size:
                engine[COMMANDS_DONE] = 1
            else:
                element = ports.element[p]
                base = engine[ROW_ADDRESS] + _field(hi, 32, 16) * element
                _begin_row(engine, base, _field(hi, 16, 16) * element, bus)
        c.signal[MOVED] = 1
    if fired or data:
        if data and not fired and engine[IN_FLIGHT] == 0:
            counters[OVERFLOW] = 1  # the RTL's assertion blocksInFlight > 0
        change = fired - (1 if data else 0)
        engine[IN_FLIGHT] = (engine[IN_FLIGHT] + change) % ports.flight_modulus[p]


@uncounted
def _fetch_narrow(c, t, n, machine):
    """Step fetch by one cycle, on buses below 128 bits.

    Return the instruction at the end of the local memory, or -1.
    """
    f = c.fetch
    if f[FETCH_STATE] == COMMAND and t > 0:
        if not c.port_full[FETCH]:
            c.command_valid[FETCH], c.command_beats[FETCH] = 1, 2 * f[BATCH_SIZE]
            f[FETCH_STATE], f[WORDS] = READ, 0
            c.signal[MOVED] = 1
    elif f[FETCH_STATE] == READ:
        if c.memory[DATA_AT] == FETCH:
            f[WORDS] += 1
            if f[WORDS] == 2 * f[BATCH_SIZE]:
                f[FETCH_STATE], f[LEFT] = DRAIN, f[BATCH_SIZE]
    elif f[FETCH_STATE] == DRAIN:
        if f[LEFT] > 0:
            return f[NEXT]
        _next_batch(c, n, machine)
        f[FETCH_STATE] = COMMAND if f[BATCH_SIZE] > 0 else DONE
    return -1


@uncounted
def _fetch_wide(c, t, n, insn_address, machine):
    """Step fetch by one cycle, on buses of 128 bits and more.

    Return the instruction at the end of the two registers after the local memory, or -1.
    """
    f = c.fetch
    f[MOVING] = 0
    if f[FETCH_STATE] == READ and t > 0:
        if f[PAUSE]:  # the start cycle of a later batch
            f[PAUSE] = 0
            c.signal[MOVED] = 1
        else:
            _read_batch(c, machine)
    elif f[FETCH_STATE] == DRAIN and f[LEFT] == 0:
        _next_batch(c, n, machine)
        f[FETCH_STATE] = DONE
        if f[BATCH_SIZE] > 0:
            f[FETCH_STATE], f[PAUSE], f[FETCH_COMMANDS_DONE] = READ, 1, 0
            begin = insn_address + 16 * f[FETCHED]
            f[POSITION] = begin - begin % machine.bus_bytes
            f[END] = begin + 16 * f[BATCH_SIZE]
    elif f[FETCH_STATE] == DRAIN and f[PIPE_COUNT] < 2:
        f[LEFT] -= 1
        f[MOVING] = 1
        c.signal[MOVED] = 1
    return c.pipe[0] if f[PIPE_COUNT] > 0 else -1


@uncounted
def _next_batch(c, n, machine):
    f = c.fetch
    f[FETCHED] += f[BATCH_SIZE]
    f[BATCH_SIZE] = min(n - f[FETCHED], _fetch_batch(machine))
    c.signal[MOVED] = 1


@uncounted
def _read_batch(c, machine):
    f = c.fetch
    bus = machine.bus_bytes
    window = bus * machine.max_burst_beats
    fired = 0
    done = f[FETCH_COMMANDS_DONE] and f[FETCH_IN_FLIGHT] == 0
    if not f[FETCH_COMMANDS_DONE] and not c.port_full[FETCH]:
        stop = min(f[POSITION] - f[POSITION] % window + window, f[END])
        fired = (stop - f[POSITION] + bus - 1) // bus
        c.command_valid[FETCH], c.command_beats[FETCH] = 1, fired
        f[POSITION] = stop
        f[FETCH_COMMANDS_DONE] = stop == f[END]
        c.signal[MOVED] = 1
    f[FETCH_IN_FLIGHT] += fired - (1 if c.memory[WRITE_AT] == FETCH else 0)
    if done:
        f[FETCH_STATE], f[LEFT] = DRAIN, f[BATCH_SIZE]
        c.signal[MOVED] = 1


@uncounted
def _route(c, leaving, insns, machine, lay):
    """Return the module whose queue takes the instruction that leaves fetch, or -1 for none.

    Return `UNDECODABLE` if no module runs the instruction. This is checked only before FINISH.
    """
    if leaving < 0:
        return -1
    m = _module(insns[leaving, 0], insns[leaving, 1], lay)
    if m < 0:
        return UNDECODABLE if c.signal[FINISHED] < 0 else -1
    if c.q_count[m] == machine.queue_entries:
        return -1
    c.signal[MOVED] = 1
    return m


@uncounted
def _leave_fetch(c, enters, machine):
    """Advance the registers between the local memory and the queues."""
    f = c.fetch
    if machine.bus_bytes < 16:
        if enters >= 0:
            f[NEXT] += 1
            f[LEFT] -= 1
        return
    if enters >= 0:
        c.pipe[0] = c.pipe[1]
        f[PIPE_COUNT] -= 1
    if f[MOVING]:
        c.pipe[f[PIPE_COUNT]] = f[NEXT]
        f[PIPE_COUNT] += 1
        f[NEXT] += 1


@uncounted
def _move_queues(c, leaving, enters):
    entries = c.queue.shape[1]
    for m in range(3):
        if c.dequeued[m]:
            c.q_head[m] = (c.q_head[m] + 1) % entries
            c.q_count[m] -= 1
        if enters == m:
            c.queue[m, (c.q_head[m] + c.q_count[m]) % entries] = leaving
            c.q_count[m] += 1


@uncounted
def _serve_memory(c, machine, counters):
    """Step the arbiter and the memory behind it by one cycle.

    The arbiter grants client queues that were full at the start of the cycle.
    """
    v = c.memory
    beat = v[SERVING] if v[SERVED] > 0 else -1
    last = v[SERVED] == 1
    granted = -1
    if not last and v[TAGS] > 0:
        for p in range(5):
            if c.port_full[p]:
                granted = p
                break
    slowest = machine.memory_latency_cycles
    accept = v[FIFO_COUNT] > 0 and v[LATENCY] == slowest and v[SERVED] <= 1
    v[LATENCY] = min(v[LATENCY] + 1, slowest) if v[FIFO_COUNT] > 0 else 0
    v[WRITE_AT], v[DATA_AT] = v[DATA_AT], beat
    if v[SERVED] > 0:
        v[SERVED] -= 1
        c.signal[MOVED] = 1
    if accept:
        v[SERVED], v[SERVING] = c.fifo_beats[v[FIFO_HEAD]], c.fifo_port[v[FIFO_HEAD]]
        counters[RD_BEATS] += v[SERVED]
        counters[RD_BURSTS] += 1
        v[FIFO_HEAD] = (v[FIFO_HEAD] + 1) % FIFO
        v[FIFO_COUNT] -= 1
    if last:
        v[TAGS] += 1
    if granted >= 0:
        tail = (v[FIFO_HEAD] + v[FIFO_COUNT]) % FIFO
        c.fifo_beats[tail], c.fifo_port[tail] = c.command_beats[granted], granted
        v[FIFO_COUNT] += 1
        v[TAGS] -= 1
        c.command_valid[granted] = 0


@uncounted
def _is_reading(c):
    return c.memory[FIFO_COUNT] > 0 or c.memory[DATA_AT] >= 0 or c.memory[WRITE_AT] >= 0


@nb.njit(cache=True)
def step(insns, insn_address, machine, lay, tokens, starts, ends, counters, limit):
    """Run a program until no register changes any more, or for `limit` cycles.

    Args:
        insns: instructions, uint64 (n, 2).
        insn_address: address of the first instruction in bytes.
        machine: the machine.
        lay: layout of the instruction fields.
        tokens: initial tokens of the queues l2g, g2l, g2s and s2g, int64 (4,).
        starts: output, start cycle of each instruction, int64 (n,); -1 if it never started.
        ends: output, end cycle of each instruction, int64 (n,); -1 if it never ended.
        counters: output, int64 (6,).
        limit: maximum number of cycles.

    Returns:
        The cycle of FINISH, or a negative error code.
    """
    ports = _ports(machine)
    c = _reset(insns.shape[0], insn_address, machine, tokens)
    starts[:] = -1
    ends[:] = -1
    counters[:] = 0
    return _run(c, insns, insn_address, machine, ports, lay, starts, ends, counters, limit)


@uncounted
def _run(c, insns, insn_address, machine, ports, lay, starts, ends, counters, limit):
    n = insns.shape[0]
    quiet = 0
    t = 0
    while t < limit:
        _begin_cycle(c)
        for m in range(3):
            if c.state[m] == IDLE:
                _start_head(c, m, t, insns, machine, lay, starts, counters)
            else:
                _work_on(c, m, t, insns, ends)
        _count_tokens(c, machine)
        for p in range(1, 5):
            _load_engine(c, p, t, insns, machine, ports, counters)
        if machine.bus_bytes >= 16:
            leaving = _fetch_wide(c, t, n, insn_address, machine)
        else:
            leaving = _fetch_narrow(c, t, n, machine)
        enters = _route(c, leaving, insns, machine, lay)
        if enters == UNDECODABLE:
            counters[TOTAL] = leaving
            return UNDECODABLE
        _leave_fetch(c, enters, machine)
        _move_queues(c, leaving, enters)
        _serve_memory(c, machine, counters)
        for m in range(3):
            c.state[m] = c.next_state[m]
        if c.signal[MOVED] or _is_reading(c):
            quiet = 0
        else:
            quiet += 1
            if quiet > 64:
                break
        t += 1
    if t >= limit:
        return TOO_LONG
    return c.signal[FINISHED] if c.signal[FINISHED] >= 0 else NEVER_FINISHES
