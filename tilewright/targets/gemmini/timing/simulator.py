"""Main loop of the cycle simulator: one compiled call per stream, which releases the GIL.

`s` is the state of all units, shape (STATE_WORDS,). `c` is the table of commands, shape
(COMMAND_ROWS, n).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.isa import FENCE
from tilewright.targets.gemmini.numba_decorators import compiled, stage
from tilewright.targets.gemmini.spec import GemminiMachine
from tilewright.targets.gemmini.timing.dma import (
    NOBODY,
    answer_translation,
    move_requests,
    move_responses,
    step_reader,
    step_writer,
)
from tilewright.targets.gemmini.timing.execute_controller import step_execute
from tilewright.targets.gemmini.timing.local_memory import (
    drain_banks,
    latch_reads,
    move_writes,
    write_local,
)
from tilewright.targets.gemmini.timing.mvin import step_load, step_merger, step_scaler, step_zeros
from tilewright.targets.gemmini.timing.mvout import dispatch_read, feed_writer, step_store
from tilewright.targets.gemmini.timing.reservation_station import (
    is_idle,
    step_front_end,
    step_station,
)
from tilewright.targets.gemmini.timing.state import (
    ACCEPT,
    COUNT,
    FUNCT,
    LD_Q,
    LD_STATE,
    LW_MADE,
    NEXT_COMMAND,
    NOW,
    PROGRESS_AT,
    ST_Q,
    ST_STATE,
    WAIT_UNTIL,
    WAITS_FOR_COMMAND,
    Commands,
    UnitState,
)
from tilewright.targets.gemmini.timing.systolic_array import drop_tags, step_array, step_results

HANGS = -1
PATIENCE = 20_000
"""Number of cycles without progress of any command after which the program is considered to hang. A
multiple of the memory latency is added."""


@stage
def all_accepted(s: UnitState, c: Commands, end: int) -> bool:
    """Return whether all commands were accepted. A final fence is accepted here.

    The caller must ensure that the accelerator is idle, which is what a fence waits for.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        c: table of commands, shape (COMMAND_ROWS, n); changed in place.
        end: number of commands in the stream.
    """
    n = s[NEXT_COMMAND]
    if n == end - 1 and c[FUNCT, n] == FENCE and s[NOW] >= s[WAIT_UNTIL]:
        c[ACCEPT, n] = s[NOW]
        s[NEXT_COMMAND] = end
    return s[NEXT_COMMAND] == end


@compiled
def simulate_stream(
    s: UnitState, m: GemminiMachine, c: Commands, end: int, requests: NDArray[np.int64]
) -> int:
    """Simulate a stream until all commands are done and the accelerator is idle.

    Args:
        s: a blank state.
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n). The cycles of their events are filled in.
        end: number of commands in the stream. The columns of `c` after them are space for the
            commands that hardware loops generate.
        requests: filled with cycle, transaction and bytes of each request at the memory port, shape
            (maximum number of requests, 3).

    Returns:
        The number of cycles, or `HANGS` if no command made progress for a long time.
    """
    seen_requests = 0
    s[LW_MADE] = end
    while True:
        # Whether the accelerator is idle only matters at the end and at a fence.
        n = s[NEXT_COMMAND]
        idle = (n == end or c[FUNCT, n] == FENCE) and is_idle(s)
        if idle and all_accepted(s, c, end):
            return s[NOW]
        if s[NOW] - s[PROGRESS_AT] > PATIENCE + 64 * m.memory_latency_cycles:
            return HANGS
        answer_translation(s)
        latch_reads(s)
        step_results(s, m)
        write_local(s, m)
        step_scaler(s)
        step_merger(s)
        zero_ready = step_zeros(s)
        seen = move_requests(s, m)
        if seen != NOBODY and seen_requests < requests.shape[0]:
            requests[seen_requests, 0] = s[NOW]
            requests[seen_requests, 1] = seen % 64
            requests[seen_requests, 2] = seen // 64
            seen_requests += 1
        step_reader(s)
        writer_ready = step_writer(s)
        move_responses(s, m)
        step_array(s)
        feed_writer(s, writer_ready)
        drain_banks(s)
        step_execute(s, m)
        dispatch_read(s)
        if s[ST_STATE] != WAITS_FOR_COMMAND or s[ST_Q + COUNT] > 0:
            step_store(s, m, c)
        if s[LD_STATE] != WAITS_FOR_COMMAND or s[LD_Q + COUNT] > 0:
            step_load(s, m, c, zero_ready)
        step_station(s, m, c)
        step_front_end(s, m, c, end, idle)
        drop_tags(s)
        move_writes(s)
        s[NOW] += 1
