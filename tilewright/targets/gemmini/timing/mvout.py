"""Timing of MVOUT: the store controller and the data path to the DMA writer.

The controller splits MVOUTs into rows, blocks of 16 columns and pooling windows. A block passes
through four queues: dispatch, norm, scale and issue. Between the dispatch and the norm queue, its
row is read from its bank; rows of the accumulator then pass through the scaler. From the issue
queue, the writer in `dma` takes the block (Scratchpad.scala).

`s` is the state of all units, shape (STATE_WORDS,). `c` is the table of commands, shape
(COMMAND_ROWS, n).
"""

from __future__ import annotations

from tilewright.targets.gemmini.isa import (
    ADDRESS_BITS,
    CONFIG,
    CONFIG_ST,
    bits,
    in_accumulator,
    is_full_width,
    is_garbage,
    local_address,
    move_columns,
    rows,
)
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import DIM, GemminiMachine
from tilewright.targets.gemmini.timing.dma import take_row
from tilewright.targets.gemmini.timing.local_memory import (
    FROM_STORE,
    LAST_STAGE,
    accumulator_output,
    accumulator_ready,
    bank_ready,
)
from tilewright.targets.gemmini.timing.state import (
    ACC_EX_READS,
    ACC_NEXT,
    ACC_OUT_READY,
    ACC_RESPONSE_READY,
    ACC_SCALER,
    ACC_SCALER_ROWS,
    ACC_SCALER_STAGES,
    BANK_NEXT,
    COUNT,
    DISPATCH_ENTRIES,
    DISPATCH_Q,
    DMA_PIPE,
    DMA_PIPE_READY,
    EX_READS,
    FUNCT,
    ISSUE_ENTRIES,
    ISSUE_Q,
    KIND_ACCUMULATOR,
    KIND_GARBAGE,
    KIND_SCRATCHPAD,
    MOST_ACC_BANKS,
    MOST_BANKS,
    NORM_DATA_Q,
    NORM_ENTRIES,
    NORM_Q,
    POOLS,
    RS1,
    RS2,
    SCALE_ENTRIES,
    SCALE_Q,
    SENDS_ROWS,
    SQ_ADDRESS,
    SQ_BANK,
    SQ_BLOCK,
    SQ_BYTES,
    SQ_ENDS,
    SQ_FIELDS,
    SQ_KIND,
    SQ_ROW,
    SQ_SLOT,
    ST_BLOCK,
    ST_IN_COLUMNS,
    ST_IN_ROWS,
    ST_LEFT_PAD,
    ST_POOL_COLUMN,
    ST_POOL_COLUMNS,
    ST_POOL_OUT,
    ST_POOL_ROW,
    ST_POOL_ROWS,
    ST_POOL_SIZE,
    ST_POOL_STRIDE,
    ST_Q,
    ST_RETURNED,
    ST_ROW,
    ST_SLOT,
    ST_SLOT_ENTRY,
    ST_SLOT_LEFT,
    ST_SLOT_VALID,
    ST_STATE,
    ST_STRIDE,
    ST_UPPER_PAD,
    ST_WINDOW_COLUMN,
    ST_WINDOW_ROW,
    WAITS_FOR_COMMAND,
    WAITS_FOR_ROOM,
    Commands,
    UnitState,
    entry_at,
    has_room,
    has_room_pipe,
    new_entry,
    remove,
)

# The store controller tracks 16 / 16 + 1 commands (StoreController.scala).
SLOTS = 2


@stage
def step_store(s: UnitState, m: GemminiMachine, c: Commands) -> None:
    """Simulate one cycle of the store controller: start an MVOUT, or send one of its blocks.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
    """
    if s[ST_STATE] == WAITS_FOR_COMMAND:
        if s[ST_Q + COUNT] == 0:
            return
        at = entry_at(s, ST_Q, m.store_queue, 2, 0)
        n = s[at]
        if c[FUNCT, n] == CONFIG:
            if bits(c[RS1, n], 0, 2) == CONFIG_ST:
                configure_store(s, c[RS1, n], c[RS2, n])
            remove(s, ST_Q, m.store_queue)
        elif take_store_slot(s, c, n, s[at + 1]):
            sent = send_block(s, m, c, n)
            s[ST_STATE] = sending_state(s) if sent else WAITS_FOR_ROOM
        return
    n = s[entry_at(s, ST_Q, m.store_queue, 2, 0)]
    if s[ST_STATE] == WAITS_FOR_ROOM:
        if send_block(s, m, c, n):
            s[ST_STATE] = sending_state(s)
        return
    if at_start(s) or (send_block(s, m, c, n) and at_start(s)):
        s[ST_STATE] = WAITS_FOR_COMMAND
        remove(s, ST_Q, m.store_queue)


@stage
def sending_state(s: UnitState) -> int:
    """Return the state that the store controller enters after the first block of an MVOUT.

    It is `POOLS` if the MVOUT applies a max-pool, else `SENDS_ROWS`.

    Args:
        s: state of all units, shape (STATE_WORDS,).
    """
    return POOLS if s[ST_POOL_STRIDE] != 0 else SENDS_ROWS


@stage
def at_start(s: UnitState) -> bool:
    """Return whether the store controller is at the first block of an MVOUT.

    This is the case before the first block is sent, and again after the last one.

    Args:
        s: state of all units, shape (STATE_WORDS,).
    """
    if s[ST_STATE] == POOLS or (s[ST_STATE] == WAITS_FOR_COMMAND and s[ST_POOL_STRIDE] != 0):
        window = s[ST_WINDOW_ROW] + s[ST_WINDOW_COLUMN]
        return window + s[ST_POOL_ROW] + s[ST_POOL_COLUMN] == 0
    return s[ST_ROW] == 0 and s[ST_BLOCK] == 0


@stage
def configure_store(s: UnitState, a: int, b: int) -> None:
    """Store the settings of a CONFIG_ST command in the store controller.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        a: first operand of the command.
        b: second operand of the command.
    """
    s[ST_STRIDE] = bits(b, 0, 32)
    stride, size = bits(a, 4, 2), bits(a, 6, 2)
    s[ST_POOL_STRIDE], s[ST_POOL_SIZE] = stride, size
    if stride != 0:
        s[ST_POOL_ROWS], s[ST_POOL_COLUMNS] = bits(a, 32, 8), bits(a, 40, 8)
        s[ST_UPPER_PAD], s[ST_LEFT_PAD] = bits(a, 8, 2), bits(a, 10, 2)
    if stride != 0 or size != 0:
        s[ST_POOL_OUT] = bits(a, 24, 8)
        s[ST_IN_ROWS], s[ST_IN_COLUMNS] = bits(a, 48, 8), bits(a, 56, 8)


@stage
def flat(s: UnitState) -> bool:
    """Return whether MVOUTs store a two-dimensional grid of pixels without pooling.

    Args:
        s: state of all units, shape (STATE_WORDS,).
    """
    return s[ST_POOL_STRIDE] == 0 and s[ST_POOL_SIZE] != 0


@stage
def take_store_slot(s: UnitState, c: Commands, n: int, entry: int) -> bool:
    """Start to track an MVOUT in one of the store controller's two slots.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        c: table of commands, shape (COMMAND_ROWS, n).
        n: index of the command.
        entry: entry of the command in the store part of the reservation station.

    Returns:
        Whether a slot was free.
    """
    number = 0
    while number < SLOTS and s[ST_SLOT_VALID + number]:
        number += 1
    if number == SLOTS:
        return False
    s[ST_SLOT] = number
    s[ST_SLOT_VALID + number], s[ST_SLOT_ENTRY + number] = 1, entry
    blocks = (move_columns(c[RS2, n]) + DIM - 1) // DIM
    total = rows(c[RS2, n]) * blocks
    if s[ST_POOL_STRIDE] != 0:
        total = s[ST_POOL_ROWS] * s[ST_POOL_COLUMNS] * s[ST_POOL_SIZE] * s[ST_POOL_SIZE]
    elif flat(s):
        total = s[ST_IN_ROWS] * s[ST_IN_COLUMNS]
    s[ST_SLOT_LEFT + number] = total
    return True


@stage
def send_block(s: UnitState, m: GemminiMachine, c: Commands, n: int) -> bool:
    """Send the next block of 16 columns of an MVOUT to the dispatch queue.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        n: index of the command.

    Returns:
        Whether there was room for the block.
    """
    if not has_room(s, DISPATCH_Q, DISPATCH_ENTRIES):
        return False
    rs2 = c[RS2, n]
    address, n_columns = local_address(rs2), move_columns(rs2)
    blocks = (n_columns + DIM - 1) // DIM
    offset, line, ends, garbage = s[ST_BLOCK] * DIM + s[ST_ROW], s[ST_ROW], True, False
    if s[ST_POOL_STRIDE] != 0:
        y = s[ST_POOL_ROW] * s[ST_POOL_STRIDE] + s[ST_WINDOW_ROW] - s[ST_UPPER_PAD]
        x = s[ST_POOL_COLUMN] * s[ST_POOL_STRIDE] + s[ST_WINDOW_COLUMN] - s[ST_LEFT_PAD]
        offset = y * s[ST_IN_COLUMNS] + x
        garbage = y < 0 or x < 0 or y >= s[ST_IN_ROWS] or x >= s[ST_IN_COLUMNS]
        line = s[ST_POOL_ROW] * s[ST_POOL_OUT] + s[ST_POOL_COLUMN]
        last = s[ST_POOL_SIZE] - 1
        ends = s[ST_WINDOW_ROW] == last and s[ST_WINDOW_COLUMN] == last
    else:
        ends = s[ST_BLOCK] == blocks - 1
        if flat(s):
            line = s[ST_POOL_ROW] * s[ST_POOL_OUT] + s[ST_POOL_COLUMN]
    length = (n_columns - 1) % DIM + 1 if s[ST_BLOCK] == blocks - 1 else DIM
    to = new_entry(s, DISPATCH_Q, DISPATCH_ENTRIES, SQ_FIELDS)
    s[to + SQ_ADDRESS] = bits(c[RS1, n], 0, ADDRESS_BITS) + line * s[ST_STRIDE]
    s[to + SQ_BYTES], s[to + SQ_BLOCK] = length, s[ST_BLOCK]
    s[to + SQ_ENDS], s[to + SQ_SLOT] = 1 if ends else 0, s[ST_SLOT]
    place(s, m, to, address, offset, garbage)
    advance(s, rows(rs2), blocks)
    return True


@stage
def place(
    s: UnitState, m: GemminiMachine, to: int, address: int, offset: int, garbage: bool
) -> None:
    """Write the location of a stored block, its bank and its row, into its queue entry.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
        to: position of the entry in `s`.
        address: local address of the command.
        offset: number of rows after this address.
        garbage: whether the block is a pixel in the padding of a pool, for which no row is read.
    """
    at = (address + offset) & m.address_mask
    if garbage or is_garbage(m, (address & ~m.address_mask) | at):
        s[to + SQ_KIND], s[to + SQ_BANK], s[to + SQ_ROW] = KIND_GARBAGE, 0, 0
    elif in_accumulator(address):
        at &= m.accumulator_rows - 1
        s[to + SQ_KIND] = KIND_ACCUMULATOR
        s[to + SQ_BANK], s[to + SQ_ROW] = (
            at >> m.accumulator_bank_bits, at & (m.accumulator_bank_rows - 1)
        )  # fmt: skip
        if is_full_width(address):
            s[to + SQ_BYTES] *= 4
    else:
        at &= m.scratchpad_rows - 1
        s[to + SQ_KIND] = KIND_SCRATCHPAD
        s[to + SQ_BANK], s[to + SQ_ROW] = (
            at >> m.scratchpad_bank_bits, at & (m.scratchpad_bank_rows - 1)
        )  # fmt: skip


@stage
def advance(s: UnitState, n_rows: int, blocks: int) -> None:
    """Advance the store controller's counters to the next block, row or pixel of a pooling window.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        n_rows: number of rows of the MVOUT.
        blocks: number of blocks of 16 columns of the MVOUT.
    """
    if s[ST_POOL_STRIDE] != 0:
        for counter, end in (
            (ST_WINDOW_COLUMN, ST_POOL_SIZE), (ST_WINDOW_ROW, ST_POOL_SIZE),
            (ST_POOL_COLUMN, ST_POOL_COLUMNS), (ST_POOL_ROW, ST_POOL_ROWS),
        ):  # fmt: skip
            s[counter] = (s[counter] + 1) % max(s[end], 1)
            if s[counter] != 0:
                return
        return
    s[ST_BLOCK] = 0 if s[ST_BLOCK] + 1 >= blocks else s[ST_BLOCK] + 1
    if flat(s):
        s[ST_POOL_COLUMN] = (s[ST_POOL_COLUMN] + 1) % max(s[ST_IN_COLUMNS], 1)
        if s[ST_POOL_COLUMN] == 0:
            s[ST_POOL_ROW] = (s[ST_POOL_ROW] + 1) % max(s[ST_IN_ROWS], 1)
        total = s[ST_IN_ROWS] * s[ST_IN_COLUMNS]
        s[ST_ROW] = 0 if s[ST_ROW] + 1 >= total else s[ST_ROW] + 1
    elif s[ST_BLOCK] == 0:
        s[ST_ROW] = 0 if s[ST_ROW] + 1 >= n_rows else s[ST_ROW] + 1


@stage
def move_entry(s: UnitState, source: int, source_entries: int, target: int, entries: int) -> None:
    """Move the oldest entry of one queue to the end of another queue.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        source: position of the queue that loses the entry.
        source_entries: capacity of the queue `source`.
        target: position of the queue that gets the entry.
        entries: capacity of the queue `target`.
    """
    at = entry_at(s, source, source_entries, SQ_FIELDS, 0)
    to = new_entry(s, target, entries, SQ_FIELDS)
    for field in range(SQ_FIELDS):
        s[to + field] = s[at + field]
    remove(s, source, source_entries)


@stage
def feed_writer(s: UnitState, writer_ready: bool) -> None:
    """Pass the oldest block to the DMA writer if its data have arrived, and advance the pipelines.

    As in the hardware, the oldest position of the issue queue decides which data pipeline advances,
    even if the queue is empty. The position then holds an old entry.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        writer_ready: whether the writer accepts a block in this cycle.
    """
    for n in range(MOST_BANKS):
        s[DMA_PIPE_READY + n] = 0
    for n in range(MOST_ACC_BANKS):
        s[ACC_OUT_READY + n] = 0
    queued = s[ISSUE_Q + COUNT] + s[SCALE_Q + COUNT] + s[NORM_Q + COUNT]
    if queued + s[ACC_SCALER_ROWS] + s[NORM_DATA_Q + COUNT] == 0:
        return
    head = entry_at(s, ISSUE_Q, ISSUE_ENTRIES, SQ_FIELDS, 0)
    kind, bank = s[head + SQ_KIND], s[head + SQ_BANK]
    data = kind == KIND_GARBAGE
    leaving = s[ACC_SCALER + ACC_SCALER_STAGES - 1]
    scaler_ready = False
    if leaving == FROM_STORE:
        scaler_ready = writer_ready and kind == KIND_ACCUMULATOR
        data = data or scaler_ready
    elif leaving > FROM_STORE:
        scaler_ready = s[ACC_RESPONSE_READY + leaving - 2] == 1
    if writer_ready and kind == KIND_SCRATCHPAD:
        s[DMA_PIPE_READY + bank] = 1
        data = data or (s[DMA_PIPE + bank] & LAST_STAGE) != 0
    if writer_ready and data and s[ISSUE_Q + COUNT] > 0:
        take_row(s)
    issue_room = has_room_pipe(s, ISSUE_Q, ISSUE_ENTRIES)
    move_to_issue(s, scaler_ready, issue_room)
    move_to_scale(s)


@stage
def move_to_issue(s: UnitState, scaler_ready: bool, issue_room: bool) -> None:
    """Advance the accumulator's scaler, and move an entry from the scale queue to the issue queue.

    An entry whose row comes from the accumulator moves when its row enters the scaler. Other
    entries move at once.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        scaler_ready: whether the row in the last stage of the scaler is taken in this cycle.
        issue_room: whether the issue queue has room.
    """
    enters = 0
    head = entry_at(s, SCALE_Q, SCALE_ENTRIES, SQ_FIELDS, 0)
    waits = s[SCALE_Q + COUNT] > 0 and issue_room
    if waits and s[head + SQ_KIND] != KIND_ACCUMULATOR:
        move_entry(s, SCALE_Q, SCALE_ENTRIES, ISSUE_Q, ISSUE_ENTRIES)
        waits = False
    if s[ACC_SCALER_ROWS] == 0 and s[NORM_DATA_Q + COUNT] == 0:
        return
    stalls = s[ACC_SCALER + ACC_SCALER_STAGES - 1] != 0 and not scaler_ready
    moves_on = not stalls
    if moves_on and s[ACC_SCALER + ACC_SCALER_STAGES - 1] != 0:
        s[ACC_SCALER_ROWS] -= 1
    for back in range(1, ACC_SCALER_STAGES + 1):
        place = ACC_SCALER_STAGES - back
        # `moves_on` says that this stage will be free in the next cycle.
        if moves_on:
            before = s[ACC_SCALER + place - 1] if place > 0 else 0
            s[ACC_SCALER + place] = before
            if place > 0:
                s[ACC_SCALER + place - 1] = 0
        else:
            moves_on = place > 0 and s[ACC_SCALER + place - 1] == 0
            continue
    if s[ACC_SCALER] == 0 and waits and s[NORM_DATA_Q + COUNT] > 0:
        enters = s[entry_at(s, NORM_DATA_Q, 2, 1, 0)]
        remove(s, NORM_DATA_Q, 2)
        s[ACC_SCALER] = enters
        s[ACC_SCALER_ROWS] += 1
        move_entry(s, SCALE_Q, SCALE_ENTRIES, ISSUE_Q, ISSUE_ENTRIES)


@stage
def move_to_scale(s: UnitState) -> None:
    """Move an entry from the norm queue to the scale queue.

    An entry whose row comes from the accumulator moves together with the row at the output of its
    bank.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    if s[NORM_Q + COUNT] == 0 or not has_room(s, SCALE_Q, SCALE_ENTRIES):
        return
    head = entry_at(s, NORM_Q, NORM_ENTRIES, SQ_FIELDS, 0)
    if s[head + SQ_KIND] == KIND_ACCUMULATOR:
        bank = s[head + SQ_BANK]
        origin = accumulator_output(s, bank)
        if origin == 0 or not has_room(s, NORM_DATA_Q, 2):
            return
        s[ACC_OUT_READY + bank] = 1
        s[new_entry(s, NORM_DATA_Q, 2, 1)] = origin
    move_entry(s, NORM_Q, NORM_ENTRIES, SCALE_Q, SCALE_ENTRIES)


@stage
def dispatch_read(s: UnitState) -> None:
    """Read the row of the next block from its bank, unless the array reads from that bank.

    The entry of the block moves from the dispatch queue to the norm queue.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    if s[DISPATCH_Q + COUNT] == 0 or not has_room(s, NORM_Q, NORM_ENTRIES):
        return
    head = entry_at(s, DISPATCH_Q, DISPATCH_ENTRIES, SQ_FIELDS, 0)
    kind, bank = s[head + SQ_KIND], s[head + SQ_BANK]
    if kind == KIND_SCRATCHPAD:
        if s[EX_READS + bank] or not bank_ready(s, bank):
            return
        s[BANK_NEXT + bank] = FROM_STORE
    elif kind == KIND_ACCUMULATOR:
        if s[ACC_EX_READS + bank] or not accumulator_ready(s, bank, s[head + SQ_ROW]):
            return
        s[ACC_NEXT + bank] = FROM_STORE
    s[ST_RETURNED] = 1 + s[head + SQ_SLOT]
    move_entry(s, DISPATCH_Q, DISPATCH_ENTRIES, NORM_Q, NORM_ENTRIES)
