"""Simulates the way between the two DMA units and memory: buffers, crossbar, port, latency.

Requests of reader and writer meet in a crossbar, which serves them in turn (Arbiter.scala of
rocket-chip, `roundRobin`). A write keeps it until its last beat. Memory accepts one beat a cycle
and answers in order. A response leaves `memory_latency_cycles` after its request's last beat at the
earliest, one beat in each cycle that `cycles_per_beat` divides.

The registers of all units are `s` (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.spec import BUS_BYTES, GemminiMachine
from tilewright.targets.gemmini.timing.state import (
    BUFFER_ENTRIES,
    COUNT,
    D_BUFFER,
    MEMORY_ENTRIES,
    MEMORY_Q,
    NOW,
    PORT_BEATS,
    PORT_BUFFER,
    RD_BUFFER,
    RD_D_BUFFER,
    WR_BUFFER,
    WR_D_BUFFER,
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

READER, WRITER = 0, 1
NOBODY = -1


@stage
def move_responses(s: UnitState, m: GemminiMachine) -> None:
    """One beat from the port's response buffer to its unit's, and one from memory to the port."""
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
    """One beat from the port to memory, and one from the crossbar to the port.

    The request whose first beat was at the port, as xact + 64 * bytes, or NOBODY.
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
    """The crossbar's choice and its beat."""
    reads, writes = s[RD_BUFFER + COUNT] > 0, s[WR_BUFFER + COUNT] > 0
    room = has_room(s, PORT_BUFFER, BUFFER_ENTRIES)
    if s[XB_BEATS_LEFT] == 0:
        owner = NOBODY
        # The mask is 3 after the reader's turn, 2 after the writer's.
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
