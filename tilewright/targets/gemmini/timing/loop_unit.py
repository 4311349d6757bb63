"""Timing of the hardware loop LOOP_WS: five command generators that work on up to two loops.

One generator each loads A, B and the bias D; one generator multiplies, and one stores the result C.
Each of them works on one loop at a time, and can begin with the next loop while other generators
still work on the current one.

If several generators have a command, stores have the highest priority, then products, then biases,
then A or B, whichever is behind. A generator waits while its part of the reservation station is
full of generated commands. The sources are LoopMatmul.scala and WeightedArbiter.scala.

`s` is the state of all units, shape (STATE_WORDS,). `c` is the table of commands, shape
(COMMAND_ROWS, n). The settings of a loop are `loop`, shape (LOOP_SETTINGS,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.gemmini.isa import LOOP_STRIDES_DC, LOOP_WS
from tilewright.targets.gemmini.loop_unrolling import (
    A_ADDRESS,
    A_IS_TRANSPOSED,
    B_ADDRESS,
    B_IS_TRANSPOSED,
    BLOCKS_PER_REQUEST,
    C_ADDRESS,
    C_BASE,
    D_ADDRESS,
    IS_RESADD,
    LOOP_ID,
    LOOP_SETTINGS,
    LOOPS,
    MAX_I,
    MAX_J,
    MAX_K,
    blocks_at,
    c_blocks,
    d_blocks,
    load_a,
    load_b,
    load_d,
    loop_compute,
    loop_preload,
    set_loop,
    store_c,
)
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import MOST_ENTRIES, GemminiMachine
from tilewright.targets.gemmini.timing.state import (
    COMPLETED,
    COUNT,
    EXECUTE_PART,
    FRONT_ENTRIES,
    FUNCT,
    GEN_A,
    GEN_B,
    GEN_C,
    GEN_D,
    GEN_EX,
    GENERATORS,
    LAST_Q,
    LG_I,
    LG_J,
    LG_K,
    LG_LOOP,
    LG_STATE,
    LOAD_PART,
    LOOP_Q,
    LW_BASE,
    LW_COMPLETED,
    LW_CONFIGURED,
    LW_HEAD,
    LW_IN_STATION,
    LW_LOOPS,
    LW_MADE,
    LW_RUNNING,
    LW_SETTLED,
    LW_STARTED,
    NOW,
    PROGRESS_AT,
    RS1,
    RS2,
    RS_COMMAND,
    RS_FIELDS,
    STATION,
    STORE_PART,
    Commands,
    UnitState,
    entry_at,
    has_room,
    new_entry,
    remove,
)

IDLE, WORKS, MULTIPLIES = 0, 1, 2
"""States of a command generator of the loop unit. The generator of products alternates between two
active states: it generates a PRELOAD in state `WORKS` and a COMPUTE in state `MULTIPLIES`."""
ALL_COMPLETED = (1 << GENERATORS) - 1
NOBODY = -1


@stage
def settings_at(loop: int) -> int:
    """Return the position of a loop's settings in the state.

    Kernels are compiled without reference counting, so they cannot return a view of the settings.
    """
    return LW_LOOPS + loop * LOOP_SETTINGS


@stage
def step_loops(s: UnitState, m: GemminiMachine, c: Commands, end: int) -> None:
    """Simulate one cycle of the loop unit.

    The unit passes on a command that does not concern loops, or executes a command that configures
    a loop. At the same time, it can generate a command of a running loop.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        end: number of commands in the stream. Generated commands have larger indices.
    """
    run_loops(s, m, c)
    count_completed(s, end)


@stage
def run_loops(s: UnitState, m: GemminiMachine, c: Commands) -> None:
    """Simulate one cycle of the loop unit: generate commands and start or end loops.

    Commands that leave the reservation station are not counted here but in `count_completed`, so
    that they take effect in the next cycle.
    """
    configured = s[LW_CONFIGURED] + s[LW_CONFIGURED + 1] > 0
    room = has_room(s, LAST_Q, FRONT_ENTRIES)
    command, is_loop = -1, False
    if s[LOOP_Q + COUNT] > 0:
        command = s[entry_at(s, LOOP_Q, FRONT_ENTRIES, 1, 0)]
        is_loop = c[FUNCT, command] >= LOOP_WS and c[FUNCT, command] <= LOOP_STRIDES_DC
    if not configured:
        if command >= 0 and not is_loop and room:
            s[new_entry(s, LAST_Q, FRONT_ENTRIES, 1)] = command
            remove(s, LOOP_Q, FRONT_ENTRIES)
        elif is_loop:
            configure_loop(s, m, c, command, s[LW_HEAD])
        return
    head = s[LW_HEAD]
    if s[LW_SETTLED] and not room and not is_loop:
        return
    free = 1 - head if s[LW_CONFIGURED + head] else head
    takes = is_loop and not s[LW_CONFIGURED + free]
    head_ends = s[LW_RUNNING + head] == 1 and s[LW_COMPLETED + head] == ALL_COMPLETED
    mark_completed_after = completed_now(s)
    chosen = choose_generator(s, m) if room else NOBODY
    starting = starts(s)
    settled = starting == 0 and chosen == NOBODY and not takes and not head_ends
    for generator in range(GENERATORS):
        if s[LG_STATE + generator] != IDLE and is_skipped(s, generator):
            s[LG_STATE + generator] = IDLE
            settled = False
    if chosen != NOBODY:
        emit(s, m, c, chosen)
    for generator in range(GENERATORS):
        if starting & (1 << generator):
            start(s, generator)
    for loop in range(LOOPS):
        marks = s[LW_COMPLETED + loop] | (mark_completed_after >> (8 * loop) & ALL_COMPLETED)
        settled = settled and marks == s[LW_COMPLETED + loop]
        s[LW_COMPLETED + loop] = marks
    s[LW_SETTLED] = 1 if settled else 0
    if takes:
        configure_loop(s, m, c, command, free)
    if head_ends:
        s[LW_CONFIGURED + head], s[LW_RUNNING + head] = 0, 0
        s[LW_STARTED + head], s[LW_COMPLETED + head] = 0, 0
        s[LW_HEAD] = 1 - head


@stage
def count_completed(s: UnitState, end: int) -> None:
    """Count generated commands that left the reservation station, which makes room for new ones.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        end: number of commands in the stream. Generated commands have larger indices.
    """
    if s[COMPLETED] >= 0:
        command = s[STATION + s[COMPLETED] * RS_FIELDS + RS_COMMAND]
        if command >= end:
            s[LW_IN_STATION + s[COMPLETED] // MOST_ENTRIES] -= 1


@stage
def configure_loop(s: UnitState, m: GemminiMachine, c: Commands, command: int, loop: int) -> None:
    """Execute a LOOP_WS_CONFIG command, or the LOOP_WS command that completes the configuration.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n).
        command: index of the command.
        loop: which of the two loops the command configures, 0 or 1.
    """
    first = settings_at(loop)
    settings = s[first : first + LOOP_SETTINGS]
    set_loop(settings, c[FUNCT, command], c[RS1, command], c[RS2, command])
    if c[FUNCT, command] == LOOP_WS:
        s[LW_CONFIGURED + loop] = 1
        settings[LOOP_ID], settings[C_BASE] = loop, s[LW_BASE]
        s[settings_at(1 - loop) + IS_RESADD] = settings[IS_RESADD]
        if settings[C_ADDRESS] != 0:
            s[LW_BASE] = (s[LW_BASE] + m.accumulator_rows // LOOPS) % m.accumulator_rows
    remove(s, LOOP_Q, FRONT_ENTRIES)
    s[LW_SETTLED] = 0
    s[PROGRESS_AT] = s[NOW]


@stage
def completed_now(s: UnitState) -> int:
    """Return a bit mask of the generators that have finished their loop.

    Bit 8 · loop + generator is set if the generator started with the loop and is idle.
    """
    marks = 0
    for generator in range(GENERATORS):
        loop = s[LG_LOOP + generator]
        begun = s[LW_RUNNING + loop] and s[LW_STARTED + loop] & (1 << generator)
        if s[LG_STATE + generator] == IDLE and begun:
            marks |= 1 << (8 * loop + generator)
    return marks


@stage
def starts(s: UnitState) -> int:
    """Return a bit mask of the generators that start to work on their next loop in this cycle.

    The generator of products starts once those of A, B and D have started with the loop. The
    generator of stores starts once that of products has started; in an addition, it starts at once.
    """
    starting = 0
    for generator in range(GENERATORS):
        if s[LG_STATE + generator] != IDLE:
            continue
        loop = next_loop(s, generator)
        started = s[LW_STARTED + loop]
        if not s[LW_CONFIGURED + loop] or started & (1 << generator):
            continue
        loads = (1 << GEN_A) | (1 << GEN_B) | (1 << GEN_D)
        if generator == GEN_EX and started & loads != loads:
            continue
        if generator == GEN_C and not (started & (1 << GEN_EX) or s[LW_LOOPS + IS_RESADD]):
            continue
        starting |= 1 << generator
    return starting


@stage
def next_loop(s: UnitState, generator: int) -> int:
    """Return the loop that a generator would start with next, 0 or 1.

    It is the older loop, unless the generator has already started with it.
    """
    head = s[LW_HEAD]
    return 1 - head if s[LW_STARTED + head] & (1 << generator) else head


@stage
def start(s: UnitState, generator: int) -> None:
    """Start a generator with its next loop."""
    loop = next_loop(s, generator)
    s[LG_STATE + generator], s[LG_LOOP + generator] = WORKS, loop
    s[LG_I + generator], s[LG_J + generator], s[LG_K + generator] = 0, 0, 0
    s[LW_RUNNING + loop] = 1
    s[LW_STARTED + loop] |= 1 << generator


@stage
def is_skipped(s: UnitState, generator: int) -> bool:
    """Return whether a generator has no commands to generate in its current loop."""
    first = settings_at(s[LG_LOOP + generator])
    loop = s[first : first + LOOP_SETTINGS]
    if generator == GEN_A:
        return loop[A_ADDRESS] == 0
    if generator == GEN_B:
        return loop[B_ADDRESS] == 0
    if generator == GEN_D:
        return loop[D_ADDRESS] == 0
    if generator == GEN_EX:
        return loop[IS_RESADD] == 1
    return loop[C_ADDRESS] == 0


@stage
def has_command(s: UnitState, m: GemminiMachine, generator: int) -> bool:
    """Return whether a generator has a command that it can issue in this cycle.

    Its part of the reservation station must have room. A product also needs that the loads of its
    operands were issued, and a store that its products were issued.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        generator: the generator.
    """
    if s[LG_STATE + generator] == IDLE or is_skipped(s, generator):
        return False
    if generator == GEN_C:
        full = s[LW_IN_STATION + STORE_PART] >= m.store_entries
    elif generator == GEN_EX:
        full = s[LW_IN_STATION + EXECUTE_PART] >= m.execute_entries
    else:
        full = s[LW_IN_STATION + LOAD_PART] >= m.load_entries
    if full:
        return False
    if generator == GEN_EX:
        return operands_are_ahead(s)
    if generator == GEN_C:
        return results_are_ahead(s)
    return True


@stage
def ended_for(s: UnitState, generator: int, other: int) -> bool:
    """Return whether a generator no longer works on the loop that another generator works on.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        generator: the generator that may have finished.
        other: the generator that works on the loop.
    """
    return s[LG_STATE + generator] == IDLE or s[LG_LOOP + generator] != s[LG_LOOP + other]


@stage
def operands_are_ahead(s: UnitState) -> bool:
    """Return whether the loads of A, B and the bias for the next product have been issued.

    The test is that of the hardware, which is not exact for B.
    """
    i, j, k = s[LG_I + GEN_EX], s[LG_J + GEN_EX], s[LG_K + GEN_EX]
    a_k, b_k = s[LG_K + GEN_A], s[LG_K + GEN_B]
    a_ahead = ended_for(s, GEN_A, GEN_EX) or a_k > k or (a_k == k and s[LG_I + GEN_A] > i)
    # The hardware compares the position of A along K here, too.
    b_ahead = ended_for(s, GEN_B, GEN_EX) or b_k > k or (a_k == k and s[LG_J + GEN_B] > j)
    return a_ahead and b_ahead and ended_for(s, GEN_D, GEN_EX)


@stage
def results_are_ahead(s: UnitState) -> bool:
    """Return whether the results that the next store needs are complete or on their way.

    They are if all products that contribute to them were issued; in an addition, all loads.
    """
    first = settings_at(s[LG_LOOP + GEN_C])
    loop = s[first : first + LOOP_SETTINGS]
    i, j = s[LG_I + GEN_C], s[LG_J + GEN_C]
    blocks = blocks_at(j, loop[MAX_J], c_blocks(loop))
    if loop[IS_RESADD]:
        if ended_for(s, GEN_A, GEN_C) and ended_for(s, GEN_B, GEN_C):
            return True
        row = s[LG_K + GEN_B]
        return row > i or (row == i and s[LG_J + GEN_B] >= j + blocks)
    if ended_for(s, GEN_EX, GEN_C):
        return True
    if s[LG_K + GEN_EX] != loop[MAX_K] - 1:
        return False
    at = s[LG_J + GEN_EX]
    return at >= j + blocks or (at == j + blocks - 1 and s[LG_I + GEN_EX] > i)


@stage
def choose_generator(s: UnitState, m: GemminiMachine) -> int:
    """Return the generator whose command is issued next, or `NOBODY`."""
    if has_command(s, m, GEN_C):
        return GEN_C
    if has_command(s, m, GEN_EX):
        return GEN_EX
    if has_command(s, m, GEN_D):
        return GEN_D
    a_or_b = choose_operand(s)
    return a_or_b if has_command(s, m, a_or_b) else NOBODY


@stage
def choose_operand(s: UnitState) -> int:
    """Return the generator, `GEN_A` or `GEN_B`, that has priority in this cycle.

    If the generators work on different loops, it is the generator that works on the older loop. If
    they work on the same loop, an idle generator gives way: the result is B if A is idle, else A if
    B is idle. If both are busy, it is B at the start of B's work. After that, it is the generator
    that is behind in the dimension k, or A if neither is behind.

    An addition in loop slot 0 changes these rules. On the same loop, A has priority unless it is
    idle. On different loops, B has priority if its loop is older or A is idle; otherwise, the rules
    for the same loop apply.
    """
    same = s[LG_LOOP + GEN_A] == s[LG_LOOP + GEN_B]
    a_idle, b_idle = s[LG_STATE + GEN_A] == IDLE, s[LG_STATE + GEN_B] == IDLE
    a_forced = not same and s[LG_LOOP + GEN_A] == s[LW_HEAD]
    b_forced = not same and s[LG_LOOP + GEN_B] == s[LW_HEAD]
    if s[LW_LOOPS + IS_RESADD]:
        a_forced, b_forced = same and not a_idle, b_forced or a_idle
    if a_forced:
        return GEN_A
    if b_forced or a_idle:
        return GEN_B
    if b_idle:
        return GEN_A
    b_first = s[LG_K + GEN_B] == 0 and s[LG_J + GEN_B] == 0
    return GEN_B if s[LG_K + GEN_A] > s[LG_K + GEN_B] or b_first else GEN_A


@stage
def emit(s: UnitState, m: GemminiMachine, c: Commands, generator: int) -> None:
    """Issue the next command of a generator, and advance its counters.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        c: table of commands, shape (COMMAND_ROWS, n); the command is appended to it.
        generator: the generator.
    """
    first = settings_at(s[LG_LOOP + generator])
    loop = s[first : first + LOOP_SETTINGS]
    i, j, k = s[LG_I + generator], s[LG_J + generator], s[LG_K + generator]
    part = LOAD_PART
    if generator == GEN_A:
        made = load_a(m, loop, i, k)
    elif generator == GEN_B:
        made = load_b(m, loop, k, j)
    elif generator == GEN_D:
        made = load_d(m, loop, i, j)
    elif generator == GEN_C:
        made = store_c(m, loop, i, j)
        part = STORE_PART
    else:
        part = EXECUTE_PART
        if s[LG_STATE + GEN_EX] == WORKS:
            made = loop_preload(m, loop, i, j, k)
        else:
            made = loop_compute(m, loop, i, j, k)
    n = s[LW_MADE]
    s[LW_MADE] = n + 1
    c[FUNCT, n], c[RS1, n], c[RS2, n] = made
    s[new_entry(s, LAST_Q, FRONT_ENTRIES, 1)] = n
    s[LW_IN_STATION + part] += 1
    s[PROGRESS_AT] = s[NOW]
    if generator == GEN_EX and s[LG_STATE + GEN_EX] == WORKS:
        s[LG_STATE + GEN_EX] = MULTIPLIES
        return
    if advance(s, loop, generator):
        s[LG_STATE + generator] = IDLE
    elif generator == GEN_EX:
        s[LG_STATE + GEN_EX] = WORKS


@stage
def step_of(blocks: int, end: int) -> int:
    """Return by how many blocks a counter advances: `blocks`, but at most `end`."""
    return min(blocks, end)


@stage
def advance(s: UnitState, loop: NDArray[np.int64], generator: int) -> bool:
    """Advance the block counters of a generator after it has issued a command.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        loop: settings of the generator's loop, shape (LOOP_SETTINGS,).
        generator: the generator.

    Returns:
        Whether the generator has finished its loop.
    """
    max_i, max_j, max_k = loop[MAX_I], loop[MAX_J], loop[MAX_K]
    inner, outer, last = LG_I, LG_J, LG_K
    inner_end, outer_end, last_end = max_i, max_j, 1
    inner_step, outer_step = 1, 1
    if generator == GEN_A:
        outer, outer_end = LG_K, max_j if loop[IS_RESADD] else max_k
        last = LG_J
        if loop[A_IS_TRANSPOSED]:
            inner_step = step_of(BLOCKS_PER_REQUEST, max_i)
        else:
            outer_step = step_of(BLOCKS_PER_REQUEST, outer_end)
    elif generator == GEN_B:
        inner, inner_end = LG_J, max_j
        outer, outer_end = LG_K, max_i if loop[IS_RESADD] else max_k
        last = LG_I
        if loop[B_IS_TRANSPOSED]:
            outer_step = step_of(BLOCKS_PER_REQUEST, outer_end)
        else:
            inner_step = step_of(BLOCKS_PER_REQUEST, max_j)
    elif generator == GEN_D:
        outer_step = step_of(d_blocks(loop), max_j)
    elif generator == GEN_C:
        outer_step = step_of(c_blocks(loop), max_j)
    else:
        last_end = max_k
    s[inner + generator] += inner_step
    if s[inner + generator] < inner_end:
        return False
    s[inner + generator] = 0
    s[outer + generator] += outer_step
    if s[outer + generator] < outer_end:
        return False
    s[outer + generator] = 0
    s[last + generator] += 1
    if s[last + generator] < last_end:
        return False
    s[last + generator] = 0
    return True
