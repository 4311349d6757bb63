"""Simulates the DMA reader: cuts rows into requests and sends them, each with a number of its own.

A request that meets a full buffer or an unknown page goes back to the end of a queue of two. It
blocks a new one meanwhile (DMA.scala, StreamReaderCore).

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.spec import DIM
from tilewright.targets.gemmini.timing.state import (
    BUFFER_ENTRIES,
    COUNT,
    LD_SLOT_TABLE,
    RD_ADDRESS,
    RD_BUFFER,
    RD_BUSY,
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
    TLB_MISS,
    TLB_READER,
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
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)
from tilewright.targets.gemmini.timing.translation import PAGE_BITS, ask_translation

SMALLEST_LOG, LARGEST_LOG = 4, 6
ROW_MASK = 0x3FFF


@stage
def request_log(address: int, left: int) -> int:
    """log2 of the size of the request that covers most of the next `left` bytes; the smallest."""
    best, most = SMALLEST_LOG, 0
    for log in range(SMALLEST_LOG, LARGEST_LOG + 1):
        covered = min((1 << log) - (address & ((1 << log) - 1)), left)
        if covered > most:
            best, most = log, covered
    return best


@stage
def step_reader(s: UnitState) -> None:
    """One cycle, from the crossbar's buffer back to the queue of rows."""
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
    """Make the next request of a row; whether it was its last."""
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
