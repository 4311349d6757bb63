"""Simulates the DMA writer: collects the blocks of a row and sends them beat by beat.

Each beat needs a free transaction number; a beat of an unknown page goes back (DMA.scala,
StreamWriter).

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.spec import BUS_BYTES, DIM
from tilewright.targets.gemmini.timing.reader import request_log
from tilewright.targets.gemmini.timing.state import (
    BEAT_FIELDS,
    BUFFER_ENTRIES,
    COUNT,
    ISSUE_ENTRIES,
    ISSUE_Q,
    SQ_ADDRESS,
    SQ_BLOCK,
    SQ_BYTES,
    SQ_ENDS,
    SQ_FIELDS,
    TLB_MISS,
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
    XACTS,
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)
from tilewright.targets.gemmini.timing.translation import PAGE_BITS, ask_translation

IDLE, NEW_REQUEST, MORE_BEATS = 0, 1, 2
ALL_XACTS = (1 << XACTS) - 1


@stage
def copy_beat(s: UnitState, to: int, source: int) -> None:
    """Copy a beat's fields."""
    for field in range(BEAT_FIELDS):
        s[to + field] = s[source + field]


@stage
def step_writer(s: UnitState) -> bool:
    """One cycle, from the crossbar's buffer back; whether it takes another row."""
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
        # What went back takes the place of what waits, which steps aside.
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
    """Make the next beat of a row; whether it was the row's last."""
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
        # The fields of the first beat still stand where the last one put them.
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
    """Take the oldest row or block of the issue queue."""
    at = entry_at(s, ISSUE_Q, ISSUE_ENTRIES, SQ_FIELDS, 0)
    s[WR_ADDRESS] = s[at + SQ_ADDRESS]
    s[WR_LENGTH] = s[at + SQ_BLOCK] * DIM + s[at + SQ_BYTES]
    s[WR_SENT] = 0
    s[WR_STATE] = NEW_REQUEST if s[at + SQ_ENDS] else IDLE
    remove(s, ISSUE_Q, ISSUE_ENTRIES)
