"""Simulates the way of stored rows: bank, four queues, scaler, writer (Scratchpad.scala).

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.timing.banks import (
    FROM_STORE,
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
    SCALE_ENTRIES,
    SCALE_Q,
    SQ_BANK,
    SQ_FIELDS,
    SQ_KIND,
    SQ_ROW,
    SQ_SLOT,
    ST_RETURNED,
    UnitState,
    entry_at,
    has_room,
    has_room_pipe,
    new_entry,
    remove,
)
from tilewright.targets.gemmini.timing.writer import take_row

LAST_STAGE = 1 << 3


@stage
def move_entry(s: UnitState, source: int, source_entries: int, target: int, entries: int) -> None:
    """The oldest entry of one queue to the next one."""
    at = entry_at(s, source, source_entries, SQ_FIELDS, 0)
    to = new_entry(s, target, entries, SQ_FIELDS)
    for field in range(SQ_FIELDS):
        s[to + field] = s[at + field]
    remove(s, source, source_entries)


@stage
def feed_writer(s: UnitState, writer_ready: bool) -> None:
    """Hand the oldest row to the writer if its data are there; let the data pipes move on.

    What the pipes see is the oldest place of the issue queue even if that is empty, as in the
    hardware.
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
    """From the scale queue to the issue queue; of the accumulator together with the scaler."""
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
        # `moves_on`: this stage is free in the next cycle.
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
    """From the norm queue to the scale queue; of the accumulator together with the bank's row."""
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
    """Read the next row of a store from its bank, unless the array reads there."""
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
