"""Timing of MVIN: the load controller and the data path to the local memories.

The controller splits MVINs into rows and sends the rows to the DMA reader in `dma`. It works on up
to two commands at a time, which it tracks in two slots. The beats of the responses are merged into
rows, which are then scaled. If an MVIN reads from address 0, the zero writer generates its rows
instead. The sources are BeatMerger.scala, VectorScalarMultiplier.scala, PixelRepeater.scala and
ZeroWriter.scala.

`s` is the state of all units, shape (STATE_WORDS,). `c` is the table of commands, shape
(COMMAND_ROWS, n).
"""

from __future__ import annotations

from tilewright.targets.gemmini.isa import (
    ADDRESS_BITS,
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
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import BUS_BYTES, DIM, GemminiMachine
from tilewright.targets.gemmini.timing.dma import ROW_MASK
from tilewright.targets.gemmini.timing.local_memory import slot_field
from tilewright.targets.gemmini.timing.state import (
    BUFFER_ENTRIES,
    COUNT,
    FUNCT,
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
    MG_BYTES,
    MG_OFFSET,
    MG_READ,
    MG_ROW,
    MG_SENT,
    MG_SHIFT,
    MG_SIZE,
    MG_SLOT,
    MG_VALID,
    NOW,
    PR_BYTES,
    PR_LAST,
    PR_PIXELS,
    PR_READY,
    PR_ROW,
    PR_SLOT,
    PR_VALID,
    RD_D_BUFFER,
    READ_ENTRIES,
    READ_Q,
    RS1,
    RS2,
    SCALER_ENTRIES,
    SE_BYTES,
    SE_DONE,
    SE_FIELDS,
    SE_HEAD,
    SE_LAST,
    SE_LAST_GRANT,
    SE_PIPE,
    SE_ROW,
    SE_SLOT,
    SE_TABLE,
    SE_TAIL,
    SE_TAKEN,
    SE_UNTAKEN,
    SE_VALID,
    SENDS_ROWS,
    SI_BYTES,
    SI_LAST,
    SI_READY,
    SI_REPEATS,
    SI_ROW,
    SI_SLOT,
    SI_VALID,
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
    WI_BYTES,
    WI_LAST,
    WI_READY,
    WI_REPEATS,
    WI_ROW,
    WI_SLOT,
    WI_VALID,
    XACT_BYTES,
    XACT_FIELDS,
    XACT_FREED,
    XACT_OFFSET,
    XACT_ROW,
    XACT_SHIFT,
    XACT_SIZE,
    XACT_SLOT,
    XACT_TABLE,
    XACTS,
    ZERO_ADDRESS,
    ZERO_COLUMN,
    ZERO_SLOT,
    ZERO_VALID,
    ZR_ADDRESS,
    ZR_LAST,
    ZR_PIXELS,
    ZR_READY,
    ZR_SLOT,
    ZR_VALID,
    Commands,
    UnitState,
    entry_at,
    has_room_pipe,
    new_entry,
    remove,
)

ALL_ELEMENTS = 15
"""Bit mask of the four elements of a row that pass through the same multiplier."""
# Four multipliers scale a row of 16 elements. All four behave alike, so only one of them is
# simulated.
LANE_ELEMENTS = 4
LANE_INPUTS = SCALER_ENTRIES * LANE_ELEMENTS
# The latency of a multiplier is 4 cycles (VectorScalarMultiplier.scala); its result is visible one
# cycle later.
MULTIPLIER_CYCLES = 5


@stage
def step_load(s: UnitState, m: GemminiMachine, c: Commands, zero_ready: bool) -> None:
    """Simulate one cycle of the load controller: start a command, or send a row of the current one.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        zero_ready: whether the zero writer accepts a row in this cycle.
    """
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
    """Store the settings of a CONFIG_LD command in the load controller.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        a: first operand of the command.
        b: second operand of the command.
    """
    state = bits(a, 3, 2)
    if state < 3:
        s[LD_STRIDE + state] = bits(b, 0, ADDRESS_BITS)
        s[LD_IDENTITY + state] = 1 if bits(a, 32, 32) == SCALE_ONE else 0
        s[LD_SHRINK + state] = bits(a, 2, 1)
        s[LD_BLOCK_STRIDE + state] = bits(a, 16, 16)
        s[LD_PIXEL_REPEATS + state] = max(bits(a, 8, 5), 1)


@stage
def take_slot(s: UnitState, c: Commands, n: int, entry: int) -> bool:
    """Start to track an MVIN in one of the load controller's two slots.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        c: table of commands, shape (COMMAND_ROWS, n).
        n: index of the command.
        entry: entry of the command in the load part of the reservation station.

    Returns:
        Whether a slot was free.
    """
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
    """Send the next row of an MVIN to the DMA reader, or to the zero writer if the address is 0.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        n: index of the command.
        zero_ready: whether the zero writer accepts a row in this cycle.

    Returns:
        Whether there was room for the row.
    """
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


@stage
def step_scaler(s: UnitState) -> None:
    """Simulate one cycle of the scaler, which multiplies int8 rows by the scale of their MVIN.

    Rows pass from the input register through one of three entries to the pixel repeater. They are
    simulated in the opposite order.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    head = SE_TABLE + s[SE_HEAD] * SE_FIELDS
    tail = SE_TABLE + s[SE_TAIL] * SE_FIELDS
    accepts = s[SI_VALID] == 1 and s[tail + SE_VALID] == 0
    finished = s[head + SE_VALID] == 1 and s[head + SE_DONE] == ALL_ELEMENTS
    multiply_row(s)
    if finished and s[PR_READY]:
        s[PR_VALID], s[PR_SLOT], s[PR_LAST] = 1, s[head + SE_SLOT], s[head + SE_LAST]
        s[PR_ROW], s[PR_BYTES] = s[head + SE_ROW], s[head + SE_BYTES]
        s[PR_PIXELS] = slot_field(s, s[head + SE_SLOT], SLOT_PIXELS)
        s[head + SE_VALID] = 0
        s[SE_HEAD] = (s[SE_HEAD] + 1) % SCALER_ENTRIES
    s[SI_READY] = 1 if s[SI_VALID] == 0 or (accepts and s[SI_REPEATS] == 0) else 0
    if accepts:
        s[tail + SE_VALID], s[tail + SE_SLOT] = 1, s[SI_SLOT]
        s[tail + SE_ROW] = (s[SI_ROW] + s[SI_REPEATS]) & ROW_MASK
        s[tail + SE_LAST] = 1 if s[SI_LAST] and s[SI_REPEATS] == 0 else 0
        s[tail + SE_BYTES] = s[SI_BYTES]
        done = ALL_ELEMENTS if slot_field(s, s[SI_SLOT], SLOT_IDENTITY) else 0
        s[tail + SE_TAKEN], s[tail + SE_DONE] = done, done
        s[SE_UNTAKEN] += 0 if done else LANE_ELEMENTS
        s[SE_TAIL] = (s[SE_TAIL] + 1) % SCALER_ENTRIES
        if s[SI_REPEATS] == 0:
            s[SI_VALID] = 0
        else:
            s[SI_REPEATS] -= 1


@stage
def multiply_row(s: UnitState) -> None:
    """Simulate one cycle of a multiplier: take one element, and return one finished element.

    All four multipliers do the same in the same cycle, so only one of them is simulated. Elements
    are taken from the three entries in round-robin order, starting after the element that was taken
    last.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    for step in range(1, LANE_INPUTS + 1 if s[SE_UNTAKEN] > 0 else 1):
        n = (s[SE_LAST_GRANT] + step) % LANE_INPUTS
        entry = SE_TABLE + (n // LANE_ELEMENTS) * SE_FIELDS
        bit = 1 << (n % LANE_ELEMENTS)
        if s[entry + SE_VALID] and not s[entry + SE_TAKEN] & bit:
            s[entry + SE_TAKEN] |= bit
            s[SE_UNTAKEN] -= 1
            s[SE_LAST_GRANT] = n
            s[SE_PIPE + ((s[NOW] + MULTIPLIER_CYCLES) & 7)] = 1 + n
            break
    leaving = s[SE_PIPE + (s[NOW] & 7)]
    if leaving:
        s[SE_PIPE + (s[NOW] & 7)] = 0
        entry = SE_TABLE + ((leaving - 1) // LANE_ELEMENTS) * SE_FIELDS
        s[entry + SE_DONE] |= 1 << ((leaving - 1) % LANE_ELEMENTS)


@stage
def step_merger(s: UnitState) -> None:
    """Simulate one cycle of the beat merger, which combines response beats into rows.

    In one cycle, it can emit a row and accept a beat.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    valid, n_bytes = s[MG_VALID] == 1, s[MG_BYTES]
    length, read, sent = 1 << s[MG_SIZE], s[MG_READ], s[MG_SENT]
    next_ready = not valid
    if valid:
        wide = slot_field(s, s[MG_SLOT], SLOT_WIDE) == 1
        row_bytes = 4 * DIM if wide else DIM
        useful = min(max(read - s[MG_SHIFT], 0), n_bytes)
        if read == length and sent == n_bytes:
            s[MG_VALID] = 0
        ready = s[WI_READY] if wide else s[SI_READY]
        if ready and useful > sent and (useful - sent >= row_bytes or useful == n_bytes):
            offset = s[MG_OFFSET] if sent == 0 else 0
            after = min(sent + row_bytes - offset, n_bytes)
            hand_on(s, wide, row_bytes, after == n_bytes)
            s[MG_SENT] = after
            if after == n_bytes and read == length:
                s[MG_VALID] = 0
                next_ready = True
    if s[RD_D_BUFFER + COUNT] == 0 or not (next_ready or (valid and read != length)):
        return
    at = entry_at(s, RD_D_BUFFER, BUFFER_ENTRIES, 2, 0)
    number = s[at] - XACTS
    if s[at + 1]:
        s[XACT_FREED] = 1 + number
    remove(s, RD_D_BUFFER, BUFFER_ENTRIES)
    if next_ready:
        xact = XACT_TABLE + number * XACT_FIELDS
        s[MG_VALID], s[MG_SLOT], s[MG_ROW] = 1, s[xact + XACT_SLOT], s[xact + XACT_ROW]
        s[MG_SHIFT], s[MG_BYTES] = s[xact + XACT_SHIFT], s[xact + XACT_BYTES]
        s[MG_OFFSET], s[MG_SIZE] = s[xact + XACT_OFFSET], s[xact + XACT_SIZE]
        s[MG_SENT] = 0
        s[MG_READ] = min(BUS_BYTES, 1 << s[MG_SIZE])
        return
    if sent == n_bytes and length - read <= BUS_BYTES:
        s[MG_VALID] = 0
    s[MG_READ] = min(read + BUS_BYTES, length)


@stage
def hand_on(s: UnitState, wide: bool, row_bytes: int, last: bool) -> None:
    """Move a loaded row to the next register on its path to the local memories.

    An int32 row goes to the register in front of the accumulator. An int8 row goes to the input
    register of the scaler.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        wide: whether the row consists of int32 values.
        row_bytes: size of a row of 16 values in bytes.
        last: whether it is the last row of the request.
    """
    slot = s[MG_SLOT]
    block = (s[MG_OFFSET] + s[MG_SENT]) // row_bytes
    row = (s[MG_ROW] + slot_field(s, slot, SLOT_BLOCK_STRIDE) * block) & ROW_MASK
    repeats = slot_field(s, slot, SLOT_REPEATS)
    if wide:
        s[WI_VALID], s[WI_SLOT], s[WI_ROW], s[WI_BYTES] = 1, slot, row, s[MG_BYTES]
        s[WI_LAST], s[WI_REPEATS] = 1 if last else 0, repeats
    else:
        s[SI_VALID], s[SI_SLOT], s[SI_ROW], s[SI_BYTES] = 1, slot, row, s[MG_BYTES]
        s[SI_LAST], s[SI_REPEATS] = 1 if last else 0, repeats


@stage
def step_zeros(s: UnitState) -> bool:
    """Simulate one cycle of the zero writer, which splits a row of zeros into blocks of 16 columns.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.

    Returns:
        Whether the zero writer accepts another row.
    """
    if s[ZERO_VALID] == 0:
        return True
    if s[ZR_READY] == 0:
        return False
    slot = s[ZERO_SLOT]
    n_columns, column = slot_field(s, slot, SLOT_COLUMNS), s[ZERO_COLUMN]
    offset = slot_field(s, slot, SLOT_BLOCK_STRIDE) * (column // DIM)
    s[ZR_VALID], s[ZR_SLOT], s[ZR_PIXELS] = 1, slot, slot_field(s, slot, SLOT_PIXELS)
    s[ZR_ADDRESS] = (s[ZERO_ADDRESS] + offset) & ROW_MASK
    s[ZR_LAST] = 1 if column + DIM >= n_columns else 0
    s[ZERO_COLUMN] = column + DIM
    if s[ZR_LAST]:
        s[ZERO_VALID] = 0
        return True
    return False
