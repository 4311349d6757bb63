"""Timing of the memory side: DMA reader and writer, address translation, memory port and latency.

The reader (DMA.scala, StreamReaderCore) splits rows into requests and sends them, each with its own
transaction number. A request that meets a full buffer or an untranslated page returns to the end of
a queue of two entries, where it blocks new requests.

The writer (StreamWriter) collects the blocks of a row and sends them beat by beat; a beat is the
data that the port transfers in one cycle. Only the first beat of a request takes a transaction
number, but every beat waits until a number is free. A beat for an untranslated page returns to the
queue.

Addresses are translated without page tables: each DMA unit remembers the last page that it
translated. For another page, it asks the shared translation buffer (FrontendTLB.scala). The buffer
answers only one of the two units per cycle, and alternates if both ask. A unit without an answer
must ask again.

Requests of the reader and the writer meet in a crossbar, which serves them alternately
(Arbiter.scala of rocket-chip, `roundRobin`). A write keeps the crossbar until its last beat. The
memory accepts one beat per cycle and answers in order. A response leaves at least
`memory_latency_cycles` after the last beat of its request. Beats of responses leave only in cycles
that are a multiple of `cycles_per_beat`.

`s` is the state of all units, shape (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import BUS_BYTES, DIM, GemminiMachine
from tilewright.targets.gemmini.timing.state import (
    BEAT_FIELDS,
    BUFFER_ENTRIES,
    COUNT,
    D_BUFFER,
    ISSUE_ENTRIES,
    ISSUE_Q,
    LD_SLOT_TABLE,
    MEMORY_ENTRIES,
    MEMORY_Q,
    NOW,
    PORT_BEATS,
    PORT_BUFFER,
    RD_ADDRESS,
    RD_BUFFER,
    RD_BUSY,
    RD_D_BUFFER,
    RD_OUT_PAGE,
    RD_OUT_VALID,
    RD_OUT_XACT,
    RD_REQUESTED,
    RD_ROW,
    RD_SLOT,
    RD_TLB_PAGE,
    RD_TLB_VALID,
    RD_TLB_XACT,
    READ_ENTRIES,
    READ_Q,
    SLOT_BLOCK_STRIDE,
    SLOT_COLUMNS,
    SLOT_FIELDS,
    SLOT_WIDE,
    SQ_ADDRESS,
    SQ_BLOCK,
    SQ_BYTES,
    SQ_ENDS,
    SQ_FIELDS,
    TLB_ASKED_PAGE,
    TLB_ASKS,
    TLB_GRANTED,
    TLB_HIT,
    TLB_KNOWN,
    TLB_LAST_GRANT,
    TLB_MISS,
    TLB_PAGE,
    TLB_READER,
    TLB_WRITER,
    WR_ADDRESS,
    WR_BEATS,
    WR_BEATS_LEFT,
    WR_BUFFER,
    WR_D_BUFFER,
    WR_FREED,
    WR_LENGTH,
    WR_OUT_BEAT,
    WR_OUT_VALID,
    WR_SENT,
    WR_SHADOW_BEAT,
    WR_SHADOW_VALID,
    WR_SHIFT,
    WR_STATE,
    WR_TLB_BEAT,
    WR_TLB_VALID,
    WR_TOTAL,
    WR_XACT,
    WR_XACTS_BUSY,
    XACT_BYTES,
    XACT_COUNT,
    XACT_FIELDS,
    XACT_FREED,
    XACT_OFFSET,
    XACT_ROW,
    XACT_SHIFT,
    XACT_SIZE,
    XACT_SLOT,
    XACT_TABLE,
    XACT_VALID,
    XACTS,
    XB_BEATS_LEFT,
    XB_MASK,
    XB_OWNER,
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)

# log2 of the sizes of memory requests, which are 16, 32 or 64 bytes.
SMALLEST_LOG, LARGEST_LOG = 4, 6
# The bits of a row in a local address of the largest machine that a specification may describe.
# The RTL's field has as many bits as the machine needs. Banks and rows are taken from the sum
# modulo the machine's number of rows, a power of two, so more bits give the same row.
ROW_MASK = (1 << 20) - 1
IDLE, NEW_REQUEST, MORE_BEATS = 0, 1, 2
ALL_XACTS = (1 << XACTS) - 1
# Pages for address translation have 4 KiB.
PAGE_BITS = 12
READER, WRITER = 0, 1
NOBODY = -1


@stage
def request_log(address: int, left: int) -> int:
    """Choose the size of the next memory request: the size that covers most of the data.

    A request begins at a multiple of its size, so a larger request can begin further before
    `address`. If several sizes cover the same number of bytes, the smallest is chosen.

    Args:
        address: address of the next byte.
        left: number of bytes that are still to be transferred.

    Returns:
        Base-2 logarithm of the size in bytes.
    """
    best, most = SMALLEST_LOG, 0
    for log in range(SMALLEST_LOG, LARGEST_LOG + 1):
        covered = min((1 << log) - (address & ((1 << log) - 1)), left)
        if covered > most:
            best, most = log, covered
    return best


@stage
def step_reader(s: UnitState) -> None:
    """Simulate one cycle of the DMA reader, from its buffer at the crossbar back to its queue.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    retries = False
    retried_xact, retried_page = s[RD_OUT_XACT], s[RD_OUT_PAGE]
    if s[RD_OUT_VALID]:
        room = has_room(s, RD_BUFFER, BUFFER_ENTRIES)
        if room and not s[TLB_MISS + TLB_READER]:
            to = new_entry(s, RD_BUFFER, BUFFER_ENTRIES, 2)
            s[to] = s[RD_OUT_XACT]
            s[to + 1] = 1 << s[XACT_TABLE + s[RD_OUT_XACT] * XACT_FIELDS + XACT_SIZE]
        else:
            retries = True
    ask_translation(s, TLB_READER, s[RD_TLB_VALID], s[RD_TLB_PAGE])
    s[RD_OUT_VALID] = s[RD_TLB_VALID]
    s[RD_OUT_XACT], s[RD_OUT_PAGE] = s[RD_TLB_XACT], s[RD_TLB_PAGE]
    s[RD_TLB_VALID] = 0
    ready = s[RD_BUSY] == 0
    if retries:
        s[RD_TLB_VALID] = 1
        s[RD_TLB_XACT], s[RD_TLB_PAGE] = retried_xact, retried_page
    elif s[RD_BUSY] and s[XACT_COUNT] < XACTS:
        ready = request(s)
    if s[XACT_FREED]:
        s[XACT_TABLE + (s[XACT_FREED] - 1) * XACT_FIELDS + XACT_VALID] = 0
        s[XACT_COUNT] -= 1
        s[XACT_FREED] = 0
    if ready and s[READ_Q + COUNT] > 0:
        at = entry_at(s, READ_Q, READ_ENTRIES, 3, 0)
        s[RD_BUSY], s[RD_REQUESTED] = 1, 0
        s[RD_SLOT], s[RD_ADDRESS], s[RD_ROW] = s[at], s[at + 1], s[at + 2]
        remove(s, READ_Q, READ_ENTRIES)


@stage
def request(s: UnitState) -> bool:
    """Create the next memory request for the row that the DMA reader works on.

    The request takes a free transaction number.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.

    Returns:
        Whether it is the last request of the row.
    """
    slot = LD_SLOT_TABLE + s[RD_SLOT] * SLOT_FIELDS
    width = 4 * DIM if s[slot + SLOT_WIDE] else DIM
    left = s[slot + SLOT_COLUMNS] * (width // DIM) - s[RD_REQUESTED]
    address = s[RD_ADDRESS]
    log = request_log(address, left)
    shift = address & ((1 << log) - 1)
    covered = min((1 << log) - shift, left)
    number = 0
    while s[XACT_TABLE + number * XACT_FIELDS + XACT_VALID]:
        number += 1
    xact = XACT_TABLE + number * XACT_FIELDS
    s[xact + XACT_VALID] = 1
    s[XACT_COUNT] += 1
    s[xact + XACT_SLOT], s[xact + XACT_SHIFT], s[xact + XACT_BYTES] = s[RD_SLOT], shift, covered
    block = s[RD_REQUESTED] // width
    s[xact + XACT_ROW] = (s[RD_ROW] + s[slot + SLOT_BLOCK_STRIDE] * block) & ROW_MASK
    s[xact + XACT_OFFSET] = s[RD_REQUESTED] % width
    s[xact + XACT_SIZE] = log
    s[RD_TLB_VALID], s[RD_TLB_XACT] = 1, number
    s[RD_TLB_PAGE] = (address - shift) >> PAGE_BITS
    s[RD_ADDRESS] += covered
    s[RD_REQUESTED] += covered
    if covered >= left:
        s[RD_BUSY] = 0
        return True
    return False


@stage
def copy_beat(s: UnitState, to: int, source: int) -> None:
    """Copy one beat, the data that the memory port transfers in a cycle, within the state.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        to: position of the destination.
        source: position of the beat.
    """
    for field in range(BEAT_FIELDS):
        s[to + field] = s[source + field]


@stage
def step_writer(s: UnitState) -> bool:
    """Simulate one cycle of the DMA writer, from its buffer at the crossbar back to its row.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.

    Returns:
        Whether the writer accepts another row.
    """
    s[WR_FREED] = 0
    if s[WR_D_BUFFER + COUNT] > 0 and s[WR_XACTS_BUSY]:
        s[WR_FREED] = 1 << s[entry_at(s, WR_D_BUFFER, BUFFER_ENTRIES, 2, 0)]
        remove(s, WR_D_BUFFER, BUFFER_ENTRIES)
    sent = leave = False
    misses = s[WR_OUT_VALID] == 1 and s[TLB_MISS + TLB_WRITER] == 1
    room = has_room(s, WR_BUFFER, BUFFER_ENTRIES)
    if s[WR_OUT_VALID] and not misses and room:
        to = new_entry(s, WR_BUFFER, BUFFER_ENTRIES, 2)
        s[to], s[to + 1] = s[WR_OUT_BEAT + 1], s[WR_OUT_BEAT + 2]
    leave = room or misses
    advances = s[WR_OUT_VALID] == 0 or leave
    fires = s[WR_TLB_VALID] == 1 and advances
    ask_translation(s, TLB_WRITER, 1 if fires else 0, s[WR_TLB_BEAT])
    accepts = s[WR_TLB_VALID] == 0 or advances
    shadowed = s[WR_SHADOW_VALID] == 1
    if misses:
        # The request that returns takes the place of the waiting request, which moves to the second
        # entry.
        if fires:
            s[WR_SHADOW_VALID] = 1
            copy_beat(s, WR_SHADOW_BEAT, WR_TLB_BEAT)
        s[WR_TLB_VALID] = 1
        copy_beat(s, WR_TLB_BEAT, WR_OUT_BEAT)
        s[WR_OUT_VALID] = 0
    else:
        if advances:
            s[WR_OUT_VALID] = s[WR_TLB_VALID]
            copy_beat(s, WR_OUT_BEAT, WR_TLB_BEAT)
            s[WR_TLB_VALID] = 0
        if accepts and shadowed:
            s[WR_TLB_VALID] = 1
            copy_beat(s, WR_TLB_BEAT, WR_SHADOW_BEAT)
            s[WR_SHADOW_VALID] = 0
        elif accepts and s[WR_STATE] != IDLE and s[WR_XACTS_BUSY] != ALL_XACTS:
            sent = send_beat(s)
    s[WR_XACTS_BUSY] &= ~s[WR_FREED]
    return s[WR_STATE] == IDLE or sent


@stage
def send_beat(s: UnitState) -> bool:
    """Create the next beat of the row that the DMA writer works on.

    A beat is the data that the memory port transfers in a cycle. The first beat of a request takes
    a transaction number.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.

    Returns:
        Whether it is the last beat of the row.
    """
    if s[WR_STATE] == NEW_REQUEST:
        left = s[WR_LENGTH] - s[WR_SENT]
        log = request_log(s[WR_ADDRESS], left)
        s[WR_SHIFT] = s[WR_ADDRESS] & ((1 << log) - 1)
        s[WR_TOTAL] = left
        s[WR_BEATS] = (1 << log) // BUS_BYTES
        number = 0
        while s[WR_XACTS_BUSY] >> number & 1:
            number += 1
        s[WR_XACT] = number
        s[WR_XACTS_BUSY] |= 1 << number
        beat = 0
        address = s[WR_ADDRESS] - s[WR_SHIFT]
        s[WR_ADDRESS] += min((1 << log) - s[WR_SHIFT], left)
        s[WR_TLB_BEAT] = address >> PAGE_BITS
        s[WR_TLB_BEAT + 2] = 1 << log
        s[WR_BEATS_LEFT] = s[WR_BEATS] - 1
    else:
        # The fields still have the values that the last first beat stored there.
        beat = s[WR_BEATS] - s[WR_BEATS_LEFT]
        s[WR_TLB_BEAT] = (s[WR_ADDRESS] - 1) >> PAGE_BITS
        s[WR_TLB_BEAT + 2] = s[WR_BEATS] * BUS_BYTES
        s[WR_BEATS_LEFT] -= 1
    s[WR_TLB_VALID] = 1
    s[WR_TLB_BEAT + 1] = s[WR_XACT]
    first, last = beat * BUS_BYTES, (beat + 1) * BUS_BYTES
    covered = max(min(last, s[WR_SHIFT] + s[WR_TOTAL]) - max(first, s[WR_SHIFT]), 0)
    left = s[WR_LENGTH] - s[WR_SENT]
    s[WR_SENT] += covered
    if s[WR_BEATS_LEFT] > 0:
        s[WR_STATE] = MORE_BEATS
        return False
    if covered >= left:
        s[WR_STATE] = IDLE
        return True
    s[WR_STATE] = NEW_REQUEST
    return False


@stage
def take_row(s: UnitState) -> None:
    """Move the oldest block of 16 columns from the store path's issue queue to the DMA writer.

    The writer collects the blocks of a row, and begins to send the row when its last block arrives.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    at = entry_at(s, ISSUE_Q, ISSUE_ENTRIES, SQ_FIELDS, 0)
    s[WR_ADDRESS] = s[at + SQ_ADDRESS]
    s[WR_LENGTH] = s[at + SQ_BLOCK] * DIM + s[at + SQ_BYTES]
    s[WR_SENT] = 0
    s[WR_STATE] = NEW_REQUEST if s[at + SQ_ENDS] else IDLE
    remove(s, ISSUE_Q, ISSUE_ENTRIES)


@stage
def answer_translation(s: UnitState) -> None:
    """Answer the address translations that the DMA units requested in the previous cycle.

    Only one of the two units, reader and writer, can be answered per cycle. `TLB_MISS` records for
    each unit whether its request remains without an answer.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    granted = -1
    if s[TLB_ASKS + TLB_WRITER]:
        granted = TLB_WRITER
        if s[TLB_ASKS + TLB_READER] and s[TLB_LAST_GRANT] == TLB_WRITER:
            granted = TLB_READER
    elif s[TLB_ASKS + TLB_READER]:
        granted = TLB_READER
    s[TLB_GRANTED] = granted
    if granted >= 0:
        s[TLB_LAST_GRANT] = granted
    for client in range(2):
        s[TLB_MISS + client] = 0 if client == granted or s[TLB_HIT + client] else 1


@stage
def ask_translation(s: UnitState, client: int, valid: int, page: int) -> None:
    """Let a DMA unit request the translation of a page, and store the answer to its last request.

    Nothing is requested if the page is the last page that the unit translated.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        client: the unit, `TLB_READER` or `TLB_WRITER`.
        valid: 1 if the unit needs a translation in this cycle, otherwise 0.
        page: number of the page.
    """
    hit = 1 if s[TLB_KNOWN + client] and s[TLB_PAGE + client] == page else 0
    if s[TLB_GRANTED] == client:
        s[TLB_KNOWN + client] = 1
        s[TLB_PAGE + client] = s[TLB_ASKED_PAGE + client]
    s[TLB_HIT + client] = hit
    s[TLB_ASKS + client] = 1 if valid and not hit else 0
    s[TLB_ASKED_PAGE + client] = page


@stage
def forget_pages(s: UnitState) -> None:
    """Execute a FLUSH: the reader and the writer forget the page that they translated last.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    s[TLB_KNOWN + TLB_WRITER] = 0
    s[TLB_KNOWN + TLB_READER] = 0


@stage
def move_responses(s: UnitState, m: GemminiMachine) -> None:
    """Move one beat of a response from the port to its DMA unit, and one from memory to the port.

    A beat is the data that the memory port transfers in a cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    if s[D_BUFFER + COUNT] > 0:
        at = entry_at(s, D_BUFFER, BUFFER_ENTRIES, 2, 0)
        target = RD_D_BUFFER if s[at] >= XACTS else WR_D_BUFFER
        if has_room(s, target, BUFFER_ENTRIES):
            to = new_entry(s, target, BUFFER_ENTRIES, 2)
            s[to], s[to + 1] = s[at], s[at + 1]
            remove(s, D_BUFFER, BUFFER_ENTRIES)
    if s[MEMORY_Q + COUNT] == 0:
        return
    at = entry_at(s, MEMORY_Q, MEMORY_ENTRIES, 3, 0)
    if s[at + 2] > s[NOW] or s[NOW] % m.cycles_per_beat != 0:
        return
    if has_room(s, D_BUFFER, BUFFER_ENTRIES):
        s[at + 1] -= 1
        to = new_entry(s, D_BUFFER, BUFFER_ENTRIES, 2)
        s[to], s[to + 1] = s[at], 1 if s[at + 1] == 0 else 0
        if s[at + 1] == 0:
            remove(s, MEMORY_Q, MEMORY_ENTRIES)


@stage
def move_requests(s: UnitState, m: GemminiMachine) -> int:
    """Move one beat of a request from the port to memory, and one from the crossbar to the port.

    A beat is the data that the memory port transfers in a cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.

    Returns:
        The request whose first beat left the port, encoded as transaction + 64 · bytes, or
        `NOBODY`.
    """
    seen = NOBODY
    if s[PORT_BUFFER + COUNT] > 0:
        at = entry_at(s, PORT_BUFFER, BUFFER_ENTRIES, 2, 0)
        xact, n_bytes = s[at], s[at + 1]
        remove(s, PORT_BUFFER, BUFFER_ENTRIES)
        if s[PORT_BEATS] == 0:
            seen = xact + 64 * n_bytes
        s[PORT_BEATS] += 1
        beats = n_bytes // BUS_BYTES
        if xact >= XACTS or s[PORT_BEATS] == beats:
            s[PORT_BEATS] = 0
            to = new_entry(s, MEMORY_Q, MEMORY_ENTRIES, 3)
            s[to] = xact
            s[to + 1] = beats if xact >= XACTS else 1
            s[to + 2] = s[NOW] + m.memory_latency_cycles
    if s[RD_BUFFER + COUNT] + s[WR_BUFFER + COUNT] > 0 or s[XB_BEATS_LEFT] > 0:
        cross(s)
    return seen


@stage
def cross(s: UnitState) -> None:
    """Transfer one beat of the DMA reader or writer through the crossbar to the memory port.

    A beat is the data that the port transfers in a cycle. The crossbar serves the two units
    alternately; a write keeps the crossbar until its last beat. Nothing happens if the port has no
    room.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
    """
    reads, writes = s[RD_BUFFER + COUNT] > 0, s[WR_BUFFER + COUNT] > 0
    room = has_room(s, PORT_BUFFER, BUFFER_ENTRIES)
    if s[XB_BEATS_LEFT] == 0:
        owner = NOBODY
        # The mask of the round-robin arbiter is 3 after the reader's turn and 2 after the writer's.
        if reads and (not writes or s[XB_MASK] == 2):
            owner = READER
        elif writes:
            owner = WRITER
        s[XB_OWNER] = owner
        if not room or owner == NOBODY:
            return
        s[XB_MASK] = 3 if owner == READER else 2
        if owner == WRITER:
            at = entry_at(s, WR_BUFFER, BUFFER_ENTRIES, 2, 0)
            s[XB_BEATS_LEFT] = s[at + 1] // BUS_BYTES - 1
    else:
        owner = s[XB_OWNER]
        if not room or not (writes if owner == WRITER else reads):
            return
        s[XB_BEATS_LEFT] -= 1
    source = RD_BUFFER if owner == READER else WR_BUFFER
    at = entry_at(s, source, BUFFER_ENTRIES, 2, 0)
    to = new_entry(s, PORT_BUFFER, BUFFER_ENTRIES, 2)
    s[to] = s[at] + (XACTS if owner == READER else 0)
    s[to + 1] = s[at + 1]
    remove(s, source, BUFFER_ENTRIES)
