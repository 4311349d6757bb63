"""Simulates the reservation station: who waits for whom, who is issued, who completes.

ReservationStation.scala. Each of the three parts issues its commands in order. A command waits for
commands of the other two parts whose local rows overlap with its own.

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

import numba as nb

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.isa import (
    CONFIG,
    CONFIG_EX,
    CONFIG_LD,
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
from tilewright.targets.gemmini.spec import DIM, MOST_ENTRIES, GemminiMachine
from tilewright.targets.gemmini.timing.commands import ALLOC, COMPLETE, ISSUE, Commands
from tilewright.targets.gemmini.timing.state import (
    COMPLETED,
    COUNT,
    EX_COMPLETES,
    EXECUTE_PART,
    FRONT_ENTRIES,
    ISSUES,
    LAST_Q,
    LD_Q,
    LD_RETURNED,
    LD_RETURNED_BYTES,
    LD_SLOT_TABLE,
    LD_SLOTS,
    LOAD_PART,
    NOW,
    PROGRESS_AT,
    RS_A_END,
    RS_A_START,
    RS_A_VALID,
    RS_A_WRAPS,
    RS_B_VALID,
    RS_COMMAND,
    RS_CONFIG,
    RS_FIELDS,
    RS_ISSUED,
    RS_VALID,
    RS_WAITS_EXECUTE,
    RS_WAITS_LOAD,
    RS_WAITS_STORE,
    RS_WRITES_FIRST,
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
    STORE_PART,
    UN_ENTRIES,
    UN_Q,
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)
from tilewright.targets.gemmini.timing.translation import forget_pages

PARTS = 3


@stage
def station_entry(part: int, n: int) -> int:
    """The position of entry n of a part."""
    return STATION + (part * MOST_ENTRIES + n) * RS_FIELDS


@stage
def part_entries(m: GemminiMachine, part: int) -> int:
    """Entries of a part."""
    if part == LOAD_PART:
        return m.load_entries
    return m.execute_entries if part == EXECUTE_PART else m.store_entries


@stage
def step_station(s: UnitState, m: GemminiMachine, c: Commands) -> None:
    """One cycle: choose who is issued and who completes, take in a command, then apply both."""
    for part in range(PARTS):
        s[ISSUES + part] = -1
        if s[STATION_COUNT + part] > 0:
            choose_issue(s, m, part)
    s[COMPLETED] = completed_entry(s)
    if s[LAST_Q + COUNT] > 0:
        command = s[entry_at(s, LAST_Q, FRONT_ENTRIES, 1, 0)]
        if c.funct[command] == FLUSH:
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
def choose_issue(s: UnitState, m: GemminiMachine, part: int) -> None:
    """The first entry that waits for nothing, if its controller's queue has room."""
    for n in range(part_entries(m, part)):
        e = station_entry(part, n)
        waits = s[e + RS_WAITS_LOAD] | s[e + RS_WAITS_EXECUTE] | s[e + RS_WAITS_STORE]
        if s[e + RS_VALID] and not s[e + RS_ISSUED] and waits == 0:
            room = has_room(s, UN_Q, UN_ENTRIES)
            if part == LOAD_PART:
                room = has_room(s, LD_Q, m.load_queue)
            elif part == STORE_PART:
                room = has_room(s, ST_Q, m.store_queue)
            if room:
                s[ISSUES + part] = n
            return


@stage
def completed_entry(s: UnitState) -> int:
    """Who completes: the array's command first, then a load, then a store; -1 if nobody."""
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
    """Count what arrived in this cycle; a command completes in the next cycle at the earliest."""
    if s[LD_RETURNED] > 0:
        slot = LD_SLOT_TABLE + (s[LD_RETURNED] - 1) * SLOT_FIELDS
        s[slot + SLOT_LEFT] -= s[LD_RETURNED_BYTES]
        s[LD_RETURNED] = 0
    if s[ST_RETURNED] > 0:
        s[ST_SLOT_LEFT + s[ST_RETURNED] - 1] -= 1
        s[ST_RETURNED] = 0


@stage
def issue(s: UnitState, m: GemminiMachine, c: Commands, part: int, n: int) -> None:
    """Hand a command to its controller; a CONFIG of load or store is thereby complete."""
    e = station_entry(part, n)
    command = s[e + RS_COMMAND]
    s[e + RS_ISSUED] = 1
    c.times[ISSUE, command] = s[NOW]
    s[PROGRESS_AT] = s[NOW]
    if part == EXECUTE_PART:
        to = new_entry(s, UN_Q, UN_ENTRIES, 4)
        s[to] = c.funct[command]
        s[to + 1], s[to + 2] = nb.int64(c.rs1[command]), nb.int64(c.rs2[command])
        s[to + 3] = n
    elif part == LOAD_PART:
        to = new_entry(s, LD_Q, m.load_queue, 2)
        s[to], s[to + 1] = command, n
    else:
        to = new_entry(s, ST_Q, m.store_queue, 2)
        s[to], s[to + 1] = command, n
    done = s[e + RS_CONFIG] == 1 and part != EXECUTE_PART
    for other in range(PARTS):
        if other == part or done:
            release(s, m, other, part, n)
    if done:
        s[e + RS_VALID] = 0
        s[STATION_COUNT + part] -= 1
        c.times[COMPLETE, command] = s[NOW]


@stage
def complete(s: UnitState, m: GemminiMachine, c: Commands, part: int, n: int) -> None:
    """Free an entry and those that wait for it."""
    e = station_entry(part, n)
    s[e + RS_VALID] = 0
    s[STATION_COUNT + part] -= 1
    c.times[COMPLETE, s[e + RS_COMMAND]] = s[NOW]
    s[PROGRESS_AT] = s[NOW]
    for other in range(PARTS):
        release(s, m, other, part, n)


@stage
def release(s: UnitState, m: GemminiMachine, waiting: int, part: int, n: int) -> None:
    """No entry of part `waiting` waits for entry n of `part` any more."""
    for k in range(part_entries(m, waiting)):
        s[station_entry(waiting, k) + RS_WAITS_LOAD + part] &= ~(1 << n)


@stage
def allocate(s: UnitState, m: GemminiMachine, c: Commands, command: int) -> bool:
    """Take a command into the station; whether its part had a free entry."""
    funct, a, b = c.funct[command], c.rs1[command], c.rs2[command]
    unit = bits(a, 0, 2)
    part = EXECUTE_PART
    if is_mvin(funct) or (funct == CONFIG and unit == CONFIG_LD):
        part = LOAD_PART
    elif funct == MVOUT or (funct == CONFIG and unit != CONFIG_EX):
        part = STORE_PART
    n = 0
    while n < part_entries(m, part) and s[station_entry(part, n) + RS_VALID]:
        n += 1
    if n == part_entries(m, part):
        return False
    e = station_entry(part, n)
    for field in range(RS_FIELDS):
        s[e + field] = 0
    s[e + RS_COMMAND], s[e + RS_CONFIG] = command, 1 if funct == CONFIG else 0
    set_ranges(s, m, e, funct, a, b)
    set_waits(s, m, e, part)
    s[e + RS_VALID] = 1
    s[STATION_COUNT + part] += 1
    configure_station(s, funct, part, a, b)
    c.times[ALLOC, command] = s[NOW]
    s[PROGRESS_AT] = s[NOW]
    return True


@stage
def configure_station(s: UnitState, funct: int, part: int, a: int, b: int) -> None:
    """Remember the strides that later commands' ranges depend on."""
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
    """Write a range of local rows: valid, start, end, whether it wraps around."""
    row = start & m.address_mask
    size = m.accumulator_rows if in_accumulator(start) else m.scratchpad_rows
    s[at] = 1
    s[at + 1] = start
    s[at + 2] = (start & ~m.address_mask) | ((row + n_rows) & m.address_mask)
    s[at + 3] = 1 if (row + n_rows) & size else 0


@stage
def set_ranges(s: UnitState, m: GemminiMachine, e: int, funct: int, a: int, b: int) -> None:
    """The local rows a command reads and writes."""
    if is_mvin(funct):
        state = load_state(funct)
        start, n_columns = local_address(b), move_columns(b)
        blocks = (n_columns + DIM - 1) // DIM
        if not in_accumulator(start):
            start = without_pixels(m, start, s[STATION_PIXEL_REPEATS + state])
        total = (blocks - 1) * s[STATION_BLOCK_STRIDE + state] + rows(b)
        set_range(s, m, e + RS_A_VALID, start, total)
        s[e + RS_WRITES_FIRST] = 1
    elif funct == MVOUT:
        start = local_address(b)
        if s[STATION_POOLS]:
            bank = (start & (m.accumulator_rows - 1)) // m.accumulator_bank_rows + 1
            s[e + RS_A_VALID], s[e + RS_A_START] = 1, start
            s[e + RS_A_END] = (1 << 31) | (bank * m.accumulator_bank_rows & m.address_mask)
            s[e + RS_A_WRAPS] = 1 if bank * m.accumulator_bank_rows >= m.accumulator_rows else 0
        else:
            blocks = (move_columns(b) + DIM - 1) // DIM
            set_range(s, m, e + RS_A_VALID, start, (blocks - 1) * DIM + rows(b))
    elif funct == PRELOAD:
        set_range(s, m, e + RS_A_VALID, local_address(b), rows(b) * s[STATION_C_STRIDE])
        set_range(s, m, e + RS_B_VALID, local_address(a), rows(a))
        s[e + RS_WRITES_FIRST] = 1
    elif is_compute(funct):
        n_rows = columns(a) if s[STATION_A_TRANSPOSED] else rows(a)
        set_range(s, m, e + RS_A_VALID, local_address(a), n_rows * s[STATION_A_STRIDE])
        set_range(s, m, e + RS_B_VALID, local_address(b), rows(b))


@stage
def without_pixels(m: GemminiMachine, start: int, pixels: int) -> int:
    """The first row that repeated pixels reach, within a half of the scratchpad."""
    row, middle = start & m.address_mask, m.scratchpad_rows // 2
    floor = middle if row > middle else 0
    row = floor if row < floor + pixels else row - pixels
    return (start & ~m.address_mask) | row


@stage
def set_waits(s: UnitState, m: GemminiMachine, e: int, part: int) -> None:
    """Which entries a new one waits for."""
    config = s[e + RS_CONFIG] == 1
    for other in range(PARTS):
        waits = 0
        for n in range(part_entries(m, other)):
            k = station_entry(other, n)
            if not s[k + RS_VALID]:
                continue
            if other == part:
                depends = not s[k + RS_ISSUED]
            else:
                depends = not config and depends_on(s, m, e, part, k, other)
            if depends:
                waits |= 1 << n
        s[e + RS_WAITS_LOAD + other] = waits


@stage
def depends_on(s: UnitState, m: GemminiMachine, e: int, part: int, k: int, other: int) -> bool:
    """Whether new entry e waits for entry k of another part."""
    if part == LOAD_PART and other == EXECUTE_PART:
        return (s[k + RS_A_VALID] == 1 and overlap(s, m, e + RS_A_VALID, k + RS_A_VALID)) or (
            s[k + RS_B_VALID] == 1 and overlap(s, m, e + RS_A_VALID, k + RS_B_VALID)
        )
    if not s[k + RS_A_VALID]:
        return False
    if part == EXECUTE_PART and other == LOAD_PART:
        return overlap(s, m, e + RS_A_VALID, k + RS_A_VALID) or overlap(
            s, m, e + RS_B_VALID, k + RS_A_VALID
        )
    if part == EXECUTE_PART and not s[e + RS_WRITES_FIRST]:
        return False
    if part == STORE_PART and other == EXECUTE_PART and not s[k + RS_WRITES_FIRST]:
        return False
    return overlap(s, m, e + RS_A_VALID, k + RS_A_VALID)


@stage
def local_row(m: GemminiMachine, address: int) -> int:
    """The row of a local address within its memory."""
    size = m.accumulator_rows if in_accumulator(address) else m.scratchpad_rows
    return address & m.address_mask & (size - 1)


@stage
def overlap(s: UnitState, m: GemminiMachine, one: int, two: int) -> bool:
    """Whether two ranges share rows of one memory."""
    start, end, wraps = s[one + 1], s[one + 2], s[one + 3]
    other_start, other_end, other_wraps = s[two + 1], s[two + 2], s[two + 3]
    if in_accumulator(start) != in_accumulator(other_start):
        return False
    if is_garbage(m, start) or is_garbage(m, other_start):
        return False
    a, b = local_row(m, start), local_row(m, other_start)
    if b <= a and (is_before(m, start, other_end) or other_wraps == 1):
        return True
    return a <= b and (is_before(m, other_start, end) or wraps == 1)


@stage
def is_before(m: GemminiMachine, address: int, end: int) -> bool:
    """Whether a local address lies before another one of the same memory."""
    same = in_accumulator(address) == in_accumulator(end)
    return same and local_row(m, address) < local_row(m, end)
