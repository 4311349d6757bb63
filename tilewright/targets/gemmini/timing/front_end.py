"""Simulates the way of commands from the port to the reservation station: four short queues.

The registers of all units are `s` (STATE_WORDS,), the stream's commands `c` (COMMAND_ROWS, n).
"""

from __future__ import annotations

from tilewright.targets.gemmini.compiled import stage
from tilewright.targets.gemmini.isa import FENCE
from tilewright.targets.gemmini.spec import GemminiMachine
from tilewright.targets.gemmini.timing.commands import ACCEPT, FUNCT, Commands
from tilewright.targets.gemmini.timing.loop_unit import step_loops
from tilewright.targets.gemmini.timing.state import (
    CONV_Q,
    COUNT,
    DISPATCH_Q,
    FRONT_ENTRIES,
    ISSUE_Q,
    LAST_Q,
    LOOP_Q,
    LW_CONFIGURED,
    MEMORY_Q,
    NEXT_COMMAND,
    NORM_Q,
    NOW,
    PORT_Q,
    PROGRESS_AT,
    SCALE_Q,
    SOLITARY_PRELOAD,
    STATION_COUNT,
    WAIT_UNTIL,
    WR_STATE,
    WR_XACTS_BUSY,
    XACT_COUNT,
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)


@stage
def is_idle(s: UnitState) -> bool:
    """Whether the accelerator is not busy and memory owes no response, as a cycle begins."""
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
    """One cycle: commands move on by a queue, and the port accepts one."""
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
    """The oldest command of a queue to the next one, if that has room."""
    if s[source + COUNT] > 0 and has_room(s, target, FRONT_ENTRIES):
        command = s[entry_at(s, source, FRONT_ENTRIES, 1, 0)]
        s[new_entry(s, target, FRONT_ENTRIES, 1)] = command
        remove(s, source, FRONT_ENTRIES)
