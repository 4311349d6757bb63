"""Timing of the reservation station and of the queues in front of it.

Commands move from the port to the station through four short queues. The station
(ReservationStation.scala) consists of three parts, one each for the load, execute and store
controller. Each part issues its commands in order. A command waits for commands of the other two
parts that access overlapping rows of the local memories.

`s` is the state of all units, shape (STATE_WORDS,). `c` is the table of commands, shape
(COMMAND_ROWS, n). An entry of the station is identified by its part and its index within the part.
"""

from __future__ import annotations

import numba as nb

from tilewright.targets.gemmini.isa import (
    CONFIG,
    CONFIG_EX,
    CONFIG_LD,
    FENCE,
    FLUSH,
    MVOUT,
    PRELOAD,
    bits,
    columns,
    in_accumulator,
    is_compute,
    is_garbage,
    is_mvin,
    load_state,
    local_address,
    move_columns,
    rows,
)
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import DIM, MOST_ENTRIES, GemminiMachine
from tilewright.targets.gemmini.timing.dma import forget_pages
from tilewright.targets.gemmini.timing.loop_unit import step_loops
from tilewright.targets.gemmini.timing.state import (
    ACCEPT,
    ALLOC,
    COMPLETE,
    COMPLETED,
    CONV_Q,
    COUNT,
    DISPATCH_Q,
    EX_COMPLETES,
    EXECUTE_PART,
    FRONT_ENTRIES,
    FUNCT,
    ISSUE,
    ISSUE_Q,
    ISSUES,
    LAST_Q,
    LD_Q,
    LD_RETURNED,
    LD_RETURNED_BYTES,
    LD_SLOT_TABLE,
    LD_SLOTS,
    LOAD_PART,
    LOOP_Q,
    LW_CONFIGURED,
    MEMORY_Q,
    NEXT_COMMAND,
    NORM_Q,
    NOW,
    PORT_Q,
    PROGRESS_AT,
    RS1,
    RS2,
    RS_A,
    RS_A_VALID,
    RS_B,
    RS_B_VALID,
    RS_COMMAND,
    RS_CONFIG,
    RS_FIELDS,
    RS_WAITS,
    RS_WRITES_FIRST,
    SCALE_Q,
    SLOT_ENTRY,
    SLOT_FIELDS,
    SLOT_LEFT,
    SLOT_VALID,
    SOLITARY_PRELOAD,
    ST_Q,
    ST_RETURNED,
    ST_SLOT_ENTRY,
    ST_SLOT_LEFT,
    ST_SLOT_VALID,
    STATION,
    STATION_A_STRIDE,
    STATION_A_TRANSPOSED,
    STATION_BLOCK_STRIDE,
    STATION_C_STRIDE,
    STATION_COUNT,
    STATION_PIXEL_REPEATS,
    STATION_POOLS,
    STATION_VALID,
    STORE_PART,
    UN_ENTRIES,
    UN_Q,
    UNISSUED,
    UNISSUED_WORDS,
    WAIT_UNTIL,
    WR_STATE,
    WR_XACTS_BUSY,
    XACT_COUNT,
    Commands,
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)

PARTS = 3
IN_SCRATCHPAD, IN_ACCUMULATOR, NOWHERE = 0, 1, 2


@stage
def station_entry(part: int, n: int) -> int:
    """Return the position in the state array of an entry of the reservation station.

    Args:
        part: part of the station: 0 to 2 for load, execute and store.
        n: index of the entry within the part.
    """
    return STATION + (part * MOST_ENTRIES + n) * RS_FIELDS


@stage
def unissued(part: int) -> int:
    """Return the position in the state array of the queue of entries that wait to be issued.

    Args:
        part: part of the reservation station that the queue belongs to: load, execute or store.
    """
    return UNISSUED + part * UNISSUED_WORDS


@stage
def part_entries(m: GemminiMachine, part: int) -> int:
    """Return the capacity of a part of the station.

    Args:
        m: the machine.
        part: part of the station: load, execute or store.
    """
    if part == LOAD_PART:
        return m.load_entries
    return m.execute_entries if part == EXECUTE_PART else m.store_entries


@stage
def step_station(s: UnitState, m: GemminiMachine, c: Commands) -> None:
    """Simulate one cycle: allocate a command, issue up to one per part, and complete up to one.

    The commands to issue and to complete are chosen before a new command is allocated, so that they
    depend only on the state at the start of the cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
    """
    for part in range(PARTS):
        s[ISSUES + part] = choose_issue(s, m, part)
    s[COMPLETED] = completed_entry(s)
    if s[LAST_Q + COUNT] > 0:
        command = s[entry_at(s, LAST_Q, FRONT_ENTRIES, 1, 0)]
        if c[FUNCT, command] == FLUSH:
            forget_pages(s)
            remove(s, LAST_Q, FRONT_ENTRIES)
        elif allocate(s, m, c, command):
            remove(s, LAST_Q, FRONT_ENTRIES)
    for part in range(PARTS):
        if s[ISSUES + part] >= 0:
            issue(s, m, c, part, s[ISSUES + part])
    if s[COMPLETED] >= 0:
        complete(s, m, c, s[COMPLETED] // MOST_ENTRIES, s[COMPLETED] % MOST_ENTRIES)
    return_rows(s)


@stage
def choose_issue(s: UnitState, m: GemminiMachine, part: int) -> int:
    """Return the index of the entry that a part of the station issues in this cycle, or -1.

    Only the oldest entry that was not issued is considered. It is issued if it waits for no other
    command and its controller's queue has room.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        part: part of the station: load, execute or store.
    """
    queue = unissued(part)
    if s[queue + COUNT] == 0:
        return -1
    n = s[entry_at(s, queue, MOST_ENTRIES, 1, 0)]
    e = station_entry(part, n)
    if s[e + RS_WAITS] | s[e + RS_WAITS + 1] | s[e + RS_WAITS + 2]:
        return -1
    if part == LOAD_PART:
        room = has_room(s, LD_Q, m.load_queue)
    elif part == STORE_PART:
        room = has_room(s, ST_Q, m.store_queue)
    else:
        room = has_room(s, UN_Q, UN_ENTRIES)
    return n if room else -1


@stage
def completed_entry(s: UnitState) -> int:
    """Choose the entry that completes in this cycle. A load or store leaves its controller's slot.

    The array has priority over loads, and loads have priority over stores.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.

    Returns:
        The entry, encoded as part · `MOST_ENTRIES` + index; -1 if no entry completes.
    """
    if s[EX_COMPLETES] >= 0:
        return EXECUTE_PART * MOST_ENTRIES + s[EX_COMPLETES]
    for n in range(LD_SLOTS):
        slot = LD_SLOT_TABLE + n * SLOT_FIELDS
        if s[slot + SLOT_VALID] and s[slot + SLOT_LEFT] == 0:
            s[slot + SLOT_VALID] = 0
            return LOAD_PART * MOST_ENTRIES + s[slot + SLOT_ENTRY]
    for n in range(LD_SLOTS):
        if s[ST_SLOT_VALID + n] and s[ST_SLOT_LEFT + n] == 0:
            s[ST_SLOT_VALID + n] = 0
            return STORE_PART * MOST_ENTRIES + s[ST_SLOT_ENTRY + n]
    return -1


@stage
def return_rows(s: UnitState) -> None:
    """Count the data that arrived in this cycle for the MVINs and MVOUTs in progress.

    The transferred amount is subtracted from what each command still expects. This happens at the
    end of the cycle, so a command completes in the next cycle at the earliest.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    if s[LD_RETURNED] > 0:
        slot = LD_SLOT_TABLE + (s[LD_RETURNED] - 1) * SLOT_FIELDS
        s[slot + SLOT_LEFT] -= s[LD_RETURNED_BYTES]
        s[LD_RETURNED] = 0
    if s[ST_RETURNED] > 0:
        s[ST_SLOT_LEFT + s[ST_RETURNED] - 1] -= 1
        s[ST_RETURNED] = 0


@stage
def issue(s: UnitState, m: GemminiMachine, c: Commands, part: int, n: int) -> None:
    """Pass a command from the reservation station to its controller.

    A CONFIG of the load or store unit completes when it is issued.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        part: part of the station: load, execute or store.
        n: index of the entry within the part.
    """
    e = station_entry(part, n)
    command = s[e + RS_COMMAND]
    remove(s, unissued(part), MOST_ENTRIES)
    c[ISSUE, command] = s[NOW]
    s[PROGRESS_AT] = s[NOW]
    if part == EXECUTE_PART:
        to = new_entry(s, UN_Q, UN_ENTRIES, 4)
        s[to] = c[FUNCT, command]
        s[to + 1], s[to + 2] = nb.int64(c[RS1, command]), nb.int64(c[RS2, command])
        s[to + 3] = n
    elif part == LOAD_PART:
        to = new_entry(s, LD_Q, m.load_queue, 2)
        s[to], s[to + 1] = command, n
    else:
        to = new_entry(s, ST_Q, m.store_queue, 2)
        s[to], s[to + 1] = command, n
    if s[e + RS_CONFIG] == 1 and part != EXECUTE_PART:
        free(s, part, n)
        c[COMPLETE, command] = s[NOW]


@stage
def complete(s: UnitState, m: GemminiMachine, c: Commands, part: int, n: int) -> None:
    """Mark a command as complete in this cycle, and free its entry in the reservation station.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, in which the cycle is recorded, shape (COMMAND_ROWS, n).
        part: part of the station: load, execute or store.
        n: index of the entry within the part.
    """
    e = station_entry(part, n)
    free(s, part, n)
    c[COMPLETE, s[e + RS_COMMAND]] = s[NOW]
    s[PROGRESS_AT] = s[NOW]


@stage
def free(s: UnitState, part: int, n: int) -> None:
    """Remove an entry from the reservation station, so that no other entry waits for it.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        part: part of the station: load, execute or store.
        n: index of the entry within the part.
    """
    s[STATION_VALID + part] &= ~(1 << n)
    s[STATION_COUNT + part] -= 1
    for other in range(PARTS):
        if other == part:
            continue
        queue = unissued(other)
        for k in range(s[queue + COUNT]):
            e = station_entry(other, s[entry_at(s, queue, MOST_ENTRIES, 1, k)])
            s[e + RS_WAITS + part] &= ~(1 << n)


@stage
def allocate(s: UnitState, m: GemminiMachine, c: Commands, command: int) -> bool:
    """Put a command into its part of the reservation station.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        command: index of the command.

    Returns:
        Whether the part had a free entry.
    """
    funct, a, b = c[FUNCT, command], c[RS1, command], c[RS2, command]
    unit = bits(a, 0, 2)
    part = EXECUTE_PART
    if is_mvin(funct) or (funct == CONFIG and unit == CONFIG_LD):
        part = LOAD_PART
    elif funct == MVOUT or (funct == CONFIG and unit != CONFIG_EX):
        part = STORE_PART
    if s[STATION_COUNT + part] == part_entries(m, part):
        return False
    n, valid = 0, s[STATION_VALID + part]
    while valid >> n & 1:
        n += 1
    e = station_entry(part, n)
    for field in range(RS_FIELDS):
        s[e + field] = 0
    s[e + RS_COMMAND], s[e + RS_CONFIG] = command, 1 if funct == CONFIG else 0
    set_ranges(s, m, e, funct, a, b)
    set_waits(s, m, e, part)
    s[STATION_VALID + part] |= 1 << n
    s[STATION_COUNT + part] += 1
    s[new_entry(s, unissued(part), MOST_ENTRIES, 1)] = n
    configure_station(s, funct, part, a, b)
    c[ALLOC, command] = s[NOW]
    s[PROGRESS_AT] = s[NOW]
    return True


@stage
def configure_station(s: UnitState, funct: int, part: int, a: int, b: int) -> None:
    """Record the settings and the state of a command on which later commands depend.

    The strides and repetitions that a CONFIG sets determine the row ranges of later commands. A
    PRELOAD is recorded until its COMPUTE arrives, because `is_idle` ignores it.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        funct: function code of the command.
        part: part of the station that the command belongs to: load, execute or store.
        a: first operand of the command.
        b: second operand of the command.
    """
    if funct == CONFIG:
        if part == EXECUTE_PART:
            s[STATION_A_STRIDE], s[STATION_C_STRIDE] = bits(a, 16, 16), bits(b, 48, 16)
            if bits(a, 7, 1) == 0:
                s[STATION_A_TRANSPOSED] = bits(a, 8, 1)
        elif part == LOAD_PART:
            state = bits(a, 3, 2)
            if state < 3:
                s[STATION_BLOCK_STRIDE + state] = bits(a, 16, 16)
                s[STATION_PIXEL_REPEATS + state] = max(bits(a, 8, 5), 1) - 1
        elif bits(a, 0, 2) != 3:
            s[STATION_POOLS] = 1 if bits(a, 4, 2) != 0 else 0
    elif funct == PRELOAD:
        s[SOLITARY_PRELOAD] = 1
    elif is_compute(funct):
        s[SOLITARY_PRELOAD] = 0


@stage
def set_range(s: UnitState, m: GemminiMachine, at: int, start: int, n_rows: int) -> None:
    """Write the range of local rows that an operand covers into an entry of the station.

    The fields are the memory, the first row, the end row, and whether the range wraps around.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        at: position of the range in the state.
        start: local address of the operand.
        n_rows: number of rows.
    """
    row = start & m.address_mask
    size = m.accumulator_rows if in_accumulator(start) else m.scratchpad_rows
    s[at] = memory_of(m, start)
    s[at + 1] = row & (size - 1)
    s[at + 2] = (row + n_rows) & m.address_mask & (size - 1)
    s[at + 3] = 1 if (row + n_rows) & size else 0


@stage
def memory_of(m: GemminiMachine, start: int) -> int:
    """Return which memory a local address belongs to.

    Args:
        m: the machine.
        start: local address.

    Returns:
        `IN_SCRATCHPAD` or `IN_ACCUMULATOR`; `NOWHERE` for the garbage address, which stands for an
        absent operand.
    """
    if is_garbage(m, start):
        return NOWHERE
    return IN_ACCUMULATOR if in_accumulator(start) else IN_SCRATCHPAD


@stage
def set_ranges(s: UnitState, m: GemminiMachine, e: int, funct: int, a: int, b: int) -> None:
    """Write the ranges of local rows that a command reads and writes into its station entry.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        e: position of the entry in the state.
        funct: function code of the command.
        a: first operand of the command.
        b: second operand of the command.
    """
    if is_mvin(funct):
        state = load_state(funct)
        start, n_columns = local_address(b), move_columns(b)
        blocks = (n_columns + DIM - 1) // DIM
        if not in_accumulator(start):
            start = without_pixels(m, start, s[STATION_PIXEL_REPEATS + state])
        total = (blocks - 1) * s[STATION_BLOCK_STRIDE + state] + rows(b)
        set_range(s, m, e + RS_A, start, total)
        s[e + RS_A_VALID] = s[e + RS_WRITES_FIRST] = 1
    elif funct == MVOUT:
        start = local_address(b)
        if s[STATION_POOLS]:
            bank = (start & (m.accumulator_rows - 1)) // m.accumulator_bank_rows + 1
            # A row of the scratchpad is never below an end in the accumulator.
            set_range(s, m, e + RS_A, start, 0)
            end = bank * m.accumulator_bank_rows
            in_rows = end & m.address_mask & (m.accumulator_rows - 1)
            s[e + RS_A + 2] = in_rows if in_accumulator(start) else -1
            s[e + RS_A + 3] = 1 if end >= m.accumulator_rows else 0
        else:
            blocks = (move_columns(b) + DIM - 1) // DIM
            set_range(s, m, e + RS_A, start, (blocks - 1) * DIM + rows(b))
        s[e + RS_A_VALID] = 1
    elif funct == PRELOAD:
        set_range(s, m, e + RS_A, local_address(b), rows(b) * s[STATION_C_STRIDE])
        set_range(s, m, e + RS_B, local_address(a), rows(a))
        s[e + RS_A_VALID] = s[e + RS_B_VALID] = s[e + RS_WRITES_FIRST] = 1
    elif is_compute(funct):
        n_rows = columns(a) if s[STATION_A_TRANSPOSED] else rows(a)
        set_range(s, m, e + RS_A, local_address(a), n_rows * s[STATION_A_STRIDE])
        set_range(s, m, e + RS_B, local_address(b), rows(b))
        s[e + RS_A_VALID] = s[e + RS_B_VALID] = 1


@stage
def without_pixels(m: GemminiMachine, start: int, pixels: int) -> int:
    """Return the first scratchpad row to which an MVIN with repeated pixels can write.

    Repetitions of a pixel are written to the rows before `start`, within the same half of the
    scratchpad.

    Args:
        m: the machine.
        start: local address of the MVIN.
        pixels: number of repetitions of each pixel, without the pixel itself.

    Returns:
        Local address of the first row.
    """
    row, middle = start & m.address_mask, m.scratchpad_rows // 2
    floor = middle if row > middle else 0
    row = floor if row < floor + pixels else row - pixels
    return (start & ~m.address_mask) | row


@stage
def set_waits(s: UnitState, m: GemminiMachine, e: int, part: int) -> None:
    """Record for which other commands a new command in the reservation station waits.

    These commands are in the other two parts of the station (load, execute, store) and access
    overlapping rows.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
        e: position of the new command's entry in the state.
        part: part of the new entry.
    """
    if s[e + RS_CONFIG] == 1:
        return
    for other in range(PARTS):
        if other == part or s[STATION_COUNT + other] == 0:
            continue
        valid, waits = s[STATION_VALID + other], 0
        for n in range(part_entries(m, other)):
            if valid >> n & 1 and depends_on(s, e, part, station_entry(other, n), other):
                waits |= 1 << n
        s[e + RS_WAITS + other] = waits


@stage
def depends_on(s: UnitState, e: int, part: int, k: int, other: int) -> bool:
    """Return whether a new entry of the station must wait for an entry of another part.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        e: position of the new entry in the state.
        part: part of the new entry.
        k: position of the other entry in the state.
        other: part of the other entry.
    """
    if part == LOAD_PART and other == EXECUTE_PART:
        return (s[k + RS_A_VALID] == 1 and overlap(s, e + RS_A, k + RS_A)) or (
            s[k + RS_B_VALID] == 1 and overlap(s, e + RS_A, k + RS_B)
        )
    if not s[k + RS_A_VALID]:
        return False
    if part == EXECUTE_PART and other == LOAD_PART:
        return overlap(s, e + RS_A, k + RS_A) or overlap(s, e + RS_B, k + RS_A)
    if part == EXECUTE_PART and not s[e + RS_WRITES_FIRST]:
        return False
    if part == STORE_PART and other == EXECUTE_PART and not s[k + RS_WRITES_FIRST]:
        return False
    return overlap(s, e + RS_A, k + RS_A)


@stage
def overlap(s: UnitState, one: int, two: int) -> bool:
    """Return whether two ranges share rows of the same memory.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        one: position of the first range in the state.
        two: position of the second range in the state.
    """
    memory, a, b = s[one], s[one + 1], s[two + 1]
    if memory != s[two] or memory == NOWHERE:
        return False
    if b <= a and (a < s[two + 2] or s[two + 3] == 1):
        return True
    return a <= b and (b < s[one + 2] or s[one + 3] == 1)


@stage
def is_idle(s: UnitState) -> bool:
    """Return whether the accelerator is idle at the start of a cycle.

    It is idle if no hardware loop is configured, no command or block of data is queued, no memory
    request is in progress and the reservation station is empty. A single PRELOAD in the station is
    ignored, because it cannot complete before its COMPUTE arrives.

    Args:
        s: state of all units, shape (STATE_WORDS,).
    """
    if s[LW_CONFIGURED] + s[LW_CONFIGURED + 1] > 0:
        return False
    queued = s[PORT_Q + COUNT] + s[CONV_Q + COUNT] + s[LOOP_Q + COUNT] + s[LAST_Q + COUNT]
    entries = s[STATION_COUNT] + s[STATION_COUNT + 1] + s[STATION_COUNT + 2]
    stored = s[DISPATCH_Q + COUNT] + s[NORM_Q + COUNT] + s[SCALE_Q + COUNT] + s[ISSUE_Q + COUNT]
    if queued + stored + s[XACT_COUNT] + s[WR_STATE] + s[WR_XACTS_BUSY] + s[MEMORY_Q + COUNT] > 0:
        return False
    return entries == 0 or (entries == 1 and s[SOLITARY_PRELOAD] == 1)


@stage
def step_front_end(s: UnitState, m: GemminiMachine, c: Commands, end: int, idle: bool) -> None:
    """Simulate one cycle: advance commands by one queue, and accept a command at the port.

    A fence is accepted when the accelerator is idle.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        end: number of commands in the stream.
        idle: whether the accelerator is idle.
    """
    step_loops(s, m, c, end)
    move_command(s, CONV_Q, LOOP_Q)
    move_command(s, PORT_Q, CONV_Q)
    n = s[NEXT_COMMAND]
    if n == end or s[NOW] < s[WAIT_UNTIL]:
        return
    if c[FUNCT, n] == FENCE:
        if not idle:
            return
        s[WAIT_UNTIL] = s[NOW] + 1
    else:
        if not has_room(s, PORT_Q, FRONT_ENTRIES):
            return
        s[new_entry(s, PORT_Q, FRONT_ENTRIES, 1)] = n
    c[ACCEPT, n] = s[NOW]
    s[NEXT_COMMAND] = n + 1
    s[PROGRESS_AT] = s[NOW]


@stage
def move_command(s: UnitState, source: int, target: int) -> None:
    """Move the oldest command of a queue to the next queue, if the next queue has room.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        source: position of the queue.
        target: position of the next queue.
    """
    if s[source + COUNT] > 0 and has_room(s, target, FRONT_ENTRIES):
        command = s[entry_at(s, source, FRONT_ENTRIES, 1, 0)]
        s[new_entry(s, target, FRONT_ENTRIES, 1)] = command
        remove(s, source, FRONT_ENTRIES)
