"""Simulates the load controller: turns MVINs into rows, two commands at a time.

The registers of all units are `s` (STATE_WORDS,), the stream's commands `c` (COMMAND_ROWS, n).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.isa import (
    CONFIG,
    SCALE_ONE,
    accumulates,
    bits,
    in_accumulator,
    load_state,
    local_address,
    move_columns,
    rows,
)
from tilewright.targets.gemmini.spec import GemminiMachine
from tilewright.targets.gemmini.timing.commands import FUNCT, RS1, RS2, Commands
from tilewright.targets.gemmini.timing.reader import ROW_MASK
from tilewright.targets.gemmini.timing.state import (
    COUNT,
    LD_BLOCK_STRIDE,
    LD_IDENTITY,
    LD_PIXEL_REPEATS,
    LD_Q,
    LD_ROW,
    LD_SHRINK,
    LD_SLOT,
    LD_SLOT_TABLE,
    LD_SLOTS,
    LD_STATE,
    LD_STRIDE,
    READ_ENTRIES,
    READ_Q,
    SENDS_ROWS,
    SLOT_ACCUMULATES,
    SLOT_BLOCK_STRIDE,
    SLOT_COLUMNS,
    SLOT_ENTRY,
    SLOT_FIELDS,
    SLOT_IDENTITY,
    SLOT_IN_ACC,
    SLOT_LEFT,
    SLOT_PIXELS,
    SLOT_REPEATS,
    SLOT_VALID,
    SLOT_WIDE,
    WAITS_FOR_COMMAND,
    WAITS_FOR_ROOM,
    ZERO_ADDRESS,
    ZERO_COLUMN,
    ZERO_SLOT,
    ZERO_VALID,
    UnitState,
    entry_at,
    has_room_pipe,
    new_entry,
    remove,
)

ADDRESS_BITS = 40


@stage
def step_load(s: UnitState, m: GemminiMachine, c: Commands, zero_ready: bool) -> None:
    """One cycle of the controller."""
    if s[LD_STATE] == WAITS_FOR_COMMAND:
        if s[LD_Q + COUNT] == 0:
            return
        at = entry_at(s, LD_Q, m.load_queue, 2, 0)
        n = s[at]
        if c[FUNCT, n] == CONFIG:
            configure_load(s, c[RS1, n], c[RS2, n])
            remove(s, LD_Q, m.load_queue)
        elif take_slot(s, c, n, s[at + 1]):
            sent = send_row(s, m, c, n, zero_ready)
            s[LD_STATE] = SENDS_ROWS if sent else WAITS_FOR_ROOM
        return
    n = s[entry_at(s, LD_Q, m.load_queue, 2, 0)]
    if s[LD_STATE] == WAITS_FOR_ROOM:
        if send_row(s, m, c, n, zero_ready):
            s[LD_STATE] = SENDS_ROWS
        return
    row = s[LD_ROW]
    if row == 0 or (send_row(s, m, c, n, zero_ready) and s[LD_ROW] == 0):
        s[LD_STATE] = WAITS_FOR_COMMAND
        remove(s, LD_Q, m.load_queue)


@stage
def configure_load(s: UnitState, a: int, b: int) -> None:
    """CONFIG_LD."""
    state = bits(a, 3, 2)
    if state < 3:
        s[LD_STRIDE + state] = bits(b, 0, ADDRESS_BITS)
        s[LD_IDENTITY + state] = 1 if bits(a, 32, 32) == SCALE_ONE else 0
        s[LD_SHRINK + state] = bits(a, 2, 1)
        s[LD_BLOCK_STRIDE + state] = bits(a, 16, 16)
        s[LD_PIXEL_REPEATS + state] = max(bits(a, 8, 5), 1)


@stage
def take_slot(s: UnitState, c: Commands, n: int, entry: int) -> bool:
    """Track a command in one of two slots; whether one was free."""
    number = 0
    while number < LD_SLOTS and s[LD_SLOT_TABLE + number * SLOT_FIELDS + SLOT_VALID]:
        number += 1
    if number == LD_SLOTS:
        return False
    state, rs2 = load_state(c[FUNCT, n]), c[RS2, n]
    address, n_columns = local_address(rs2), move_columns(rs2)
    repeats = bits(c[RS1, n], 0, ADDRESS_BITS) != 0 and s[LD_STRIDE + state] == 0
    wide = in_accumulator(address) and s[LD_SHRINK + state] == 0
    slot = LD_SLOT_TABLE + number * SLOT_FIELDS
    s[LD_SLOT] = number
    s[slot + SLOT_VALID], s[slot + SLOT_ENTRY] = 1, entry
    s[slot + SLOT_LEFT] = n_columns * (1 if repeats else rows(rs2)) * (4 if wide else 1)
    s[slot + SLOT_IN_ACC] = 1 if in_accumulator(address) else 0
    s[slot + SLOT_ACCUMULATES] = 1 if accumulates(address) else 0
    s[slot + SLOT_WIDE] = 1 if wide else 0
    s[slot + SLOT_COLUMNS] = n_columns
    s[slot + SLOT_REPEATS] = rows(rs2) - 1 if repeats else 0
    s[slot + SLOT_BLOCK_STRIDE] = s[LD_BLOCK_STRIDE + state]
    s[slot + SLOT_IDENTITY] = s[LD_IDENTITY + state]
    s[slot + SLOT_PIXELS] = max(s[LD_PIXEL_REPEATS + state], 1) - 1
    return True


@stage
def send_row(s: UnitState, m: GemminiMachine, c: Commands, n: int, zero_ready: bool) -> bool:
    """Send the next row of a command to the reader or to the zero writer; whether there was
    room."""
    rs1, rs2 = c[RS1, n], c[RS2, n]
    address, row = local_address(rs2), s[LD_ROW]
    memory_address = bits(rs1, 0, ADDRESS_BITS)
    local_row = (address + row) & ROW_MASK
    stride = s[LD_STRIDE + load_state(c[FUNCT, n])]
    if memory_address == 0:
        if not zero_ready:
            return False
        s[ZERO_VALID], s[ZERO_SLOT], s[ZERO_ADDRESS], s[ZERO_COLUMN] = 1, s[LD_SLOT], local_row, 0
    else:
        if not has_room_pipe(s, READ_Q, READ_ENTRIES):
            return False
        if in_accumulator(address):
            local_row &= m.accumulator_rows - 1
        to = new_entry(s, READ_Q, READ_ENTRIES, 3)
        s[to], s[to + 1], s[to + 2] = s[LD_SLOT], memory_address + row * stride, local_row
    last = 1 if stride == 0 and memory_address != 0 else rows(rs2)
    s[LD_ROW] = 0 if row + 1 >= last else row + 1
    return True
