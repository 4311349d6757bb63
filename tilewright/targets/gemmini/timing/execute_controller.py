"""Timing of the execute controller, which chooses the next step and feeds operands row by row.

A step is a PRELOAD, a COMPUTE, or a COMPUTE together with the PRELOAD after it. During a step, the
controller reads the rows of up to three operands, A, B and D, from the local memories. In each
cycle of a step, it also appends an entry to the control queue, which tells the array which rows to
expect. If the control queue is full, the step pauses.

The sources are ExecuteController.scala and TransposePreloadUnroller.scala. `s` is the state of all
units, shape (STATE_WORDS,).
"""

from __future__ import annotations

from tilewright.targets.gemmini.isa import (
    COMPUTE_ACCUMULATED,
    COMPUTE_PRELOADED,
    CONFIG,
    GARBAGE,
    OUTPUT_STATIONARY,
    PRELOAD,
    WEIGHT_STATIONARY,
    bits,
    columns,
    in_accumulator,
    is_compute,
    is_garbage,
    local_address,
    rows,
)
from tilewright.targets.gemmini.numba_decorators import stage
from tilewright.targets.gemmini.spec import DIM, GemminiMachine
from tilewright.targets.gemmini.timing.local_memory import FROM_ARRAY, accumulator_ready, bank_ready
from tilewright.targets.gemmini.timing.state import (
    ACC_EX_READS,
    ACC_NEXT,
    BANK_NEXT,
    CN_ADDRESS,
    CN_C_ROWS,
    CN_DATAFLOW,
    CN_ENTRY,
    CN_FIELDS,
    CN_FIRES,
    CN_FIRST,
    CN_NEEDS,
    CN_OPERANDS,
    CN_ROWS,
    CN_SOURCE,
    CONTROL_ENTRIES,
    CONTROL_Q,
    COUNT,
    EX_A_OFFSET,
    EX_A_STRIDE,
    EX_A_TRANSPOSED,
    EX_B_TRANSPOSED,
    EX_C_STRIDE,
    EX_COMPLETES,
    EX_COUNTER,
    EX_DATAFLOW,
    EX_PENDING,
    EX_PERFORMS,
    EX_Q,
    EX_READS,
    EX_STARTED,
    EX_STATE,
    MESH_COMPLETES,
    MESH_REQ_FIRES,
    MESH_REQ_READY,
    MOST_ACC_BANKS,
    MOST_BANKS,
    OPERAND_FIELDS,
    UN_ENTRIES,
    UN_Q,
    UN_STATE,
    UN_TRANSPOSES,
    UnitState,
    entry_at,
    has_room_pipe,
    new_entry,
    remove,
)
from tilewright.targets.gemmini.timing.systolic_array import FLUSH_STATE, has_products, writes_to

CHOOSES, FEEDS, FLUSHES, WAITS_FOR_FLUSH = 0, 1, FLUSH_STATE, 3
NO_STEP, PRELOADS, MULTIPLIES, BOTH = 0, 1, 2, 3
A, B, D = 0, 1, 2
OPERANDS = 3
# A step takes at least four cycles, even if its operands have fewer rows. A step that loads weights
# takes 16.
FEWEST_ROWS = 4
UN_IDLE, UN_FIRST_COMPUTE, UN_SECOND_PRELOAD = 0, 1, 2
EX_FIELDS = 4
FUNCT, RS1, RS2, ENTRY = 0, 1, 2, 3


@stage
def step_execute(s: UnitState, m: GemminiMachine) -> None:
    """Simulate one cycle: choose a step, feed rows, and report which command completes.

    At most one command completes per cycle. Commands whose results leave the array have priority
    over commands that wait in `EX_PENDING`.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    for bank in range(MOST_BANKS):
        s[EX_READS + bank] = 0
    for bank in range(MOST_ACC_BANKS):
        s[ACC_EX_READS + bank] = 0
    s[EX_COMPLETES] = s[MESH_COMPLETES]
    room = s[EX_Q + COUNT] < m.execute_queue
    pending, second = s[EX_PENDING], s[EX_PENDING + 1]
    if s[EX_STATE] == CHOOSES:
        choose_step(s, m)
    elif s[EX_STATE] == FLUSHES:
        if s[MESH_REQ_FIRES]:
            s[EX_STATE] = WAITS_FOR_FLUSH
    elif s[EX_STATE] == WAITS_FOR_FLUSH and s[MESH_REQ_READY]:
        s[EX_STATE] = CHOOSES
    if s[EX_STATE] == FEEDS:
        feed(s, m)
    else:
        for operand in range(OPERANDS):
            s[EX_COUNTER + operand] = 0
        s[EX_A_OFFSET] = 0
    if s[MESH_COMPLETES] < 0:
        if pending:
            s[EX_COMPLETES] = pending - 1
            s[EX_PENDING] = 0
        elif second:
            s[EX_COMPLETES] = second - 1
            s[EX_PENDING + 1] = 0
    if room:
        unroll_transposed(s, m)


@stage
def head(s: UnitState, m: GemminiMachine, n: int) -> int:
    """Return the position of the n-th oldest command in the execute controller's queue.

    If the queue is shorter, the position holds an old command.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        n: index of the command; the oldest command is number 0.

    Returns:
        Index into `s`.
    """
    return entry_at(s, EX_Q, m.execute_queue, EX_FIELDS, n)


@stage
def choose_step(s: UnitState, m: GemminiMachine) -> None:
    """Start the next step if its conditions hold, or begin to flush the array.

    - A CONFIG is executed at once if no product and no completion is pending.
    - A PRELOAD starts if its COMPUTE is in the queue and no product in progress writes their
      operands.
    - A COMPUTE always starts. The PRELOAD after it joins the step under the same conditions.
    - The array is flushed if results would otherwise stay in it.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    count = s[EX_Q + COUNT]
    products = has_products(s)
    s[EX_PERFORMS] = NO_STEP
    if count == 0:
        if products and s[EX_DATAFLOW] == OUTPUT_STATIONARY:
            s[EX_STATE] = FLUSHES
        return
    first, second, third = head(s, m, 0), head(s, m, 1), head(s, m, 2)
    config = s[first + FUNCT] == CONFIG
    if config and not products and s[EX_PENDING] + s[EX_PENDING + 1] == 0:
        configure_array(s, s[first + RS1], s[first + RS2])
        s[EX_COMPLETES] = s[first + ENTRY]
        remove(s, EX_Q, m.execute_queue)
    elif (
        s[first + FUNCT] == PRELOAD
        and count > 1
        and not writes_to(s, m, s[first + RS1])
        and not writes_to(s, m, s[second + RS1])
        and not writes_to(s, m, s[second + RS2])
    ):
        s[EX_PERFORMS], s[EX_STATE] = PRELOADS, FEEDS
    elif is_compute(s[first + FUNCT]):
        overlaps = (
            count > 2
            and s[second + FUNCT] == PRELOAD
            and not writes_to(s, m, s[second + RS1])
            and not writes_to(s, m, s[third + RS1])
            and not writes_to(s, m, s[third + RS2])
        )
        s[EX_PERFORMS], s[EX_STATE] = BOTH if overlaps else MULTIPLIES, FEEDS
    elif products and (config or s[EX_DATAFLOW] == OUTPUT_STATIONARY):
        s[EX_STATE] = FLUSHES


@stage
def configure_array(s: UnitState, a: int, b: int) -> None:
    """Apply a CONFIG_EX command to the execute controller.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        a: first operand of the command.
        b: second operand of the command.
    """
    s[EX_A_STRIDE], s[EX_C_STRIDE] = bits(a, 16, 16), bits(b, 48, 16)
    if bits(a, 7, 1) == 0:
        s[EX_DATAFLOW] = bits(a, 2, 1)
        s[EX_A_TRANSPOSED], s[EX_B_TRANSPOSED] = bits(a, 8, 1), bits(a, 9, 1)


@stage
def feed(s: UnitState, m: GemminiMachine) -> None:
    """Simulate one cycle of a PRELOAD or COMPUTE: read the next row of each operand, if possible.

    An operand waits if it is one row ahead of another operand, if its bank is busy, or if another
    operand reads from the same bank in this cycle. Nothing advances if the control queue, which
    tells the array which rows to expect, is full.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    performs = s[EX_PERFORMS]
    stationary = s[EX_DATAFLOW] == WEIGHT_STATIONARY
    transposed_a, transposed_b = s[EX_A_TRANSPOSED] == 1, s[EX_B_TRANSPOSED] == 1
    a_transposes = transposed_a if stationary else not transposed_a
    b_transposes = not stationary and transposed_b
    d_transposes = stationary and transposed_b
    first_is_preload = s[head(s, m, 0) + FUNCT] == PRELOAD
    place = 0 if first_is_preload else 1
    a_place = 1 if first_is_preload else (2 if a_transposes else 0)
    b_place = 1 if first_is_preload else (2 if b_transposes else 0)
    preload = head(s, m, place)
    a_word, b_word = s[head(s, m, a_place) + RS1], s[head(s, m, b_place) + RS2]
    d_word, c_word = s[preload + RS1], s[preload + RS2]
    if performs == PRELOADS:
        takes_a, takes_b, takes_d = a_transposes, b_transposes, True
    elif performs == MULTIPLIES:
        takes_a, takes_b, takes_d = not a_transposes, not b_transposes, False
    else:
        takes_a = takes_b = takes_d = True
    a_base, b_base, d_base = local_address(a_word), local_address(b_word), local_address(d_word)
    a_absent = is_garbage(m, a_base)
    b_absent = is_garbage(m, b_base)
    d_absent = is_garbage(m, d_base)
    a_rows, a_columns = (columns(a_word), rows(a_word)) if transposed_a else (
        rows(a_word), columns(a_word)
    )  # fmt: skip
    b_rows, b_columns = (columns(b_word), rows(b_word)) if b_transposes else (
        rows(b_word), columns(b_word)
    )  # fmt: skip
    d_rows, d_columns = (columns(d_word), rows(d_word)) if d_transposes else (
        rows(d_word), columns(d_word)
    )  # fmt: skip
    total = DIM
    no_weights = d_absent or not takes_d
    if stationary and no_weights and not (a_transposes or b_transposes or d_transposes):
        most_a = 1 if a_absent or not takes_a else a_rows
        most_b = 1 if b_absent or not takes_b else b_rows
        total = max(most_a, most_b, FEWEST_ROWS)
    a_count, b_count, d_count = s[EX_COUNTER], s[EX_COUNTER + 1], s[EX_COUNTER + 2]
    a_begun, b_begun, d_begun = s[EX_STARTED], s[EX_STARTED + 1], s[EX_STARTED + 2]
    a_bank = source_of(m, a_base, s[EX_A_OFFSET])
    b_bank = source_of(m, b_base, b_count)
    d_bank = source_of(m, d_base, DIM - 1 - d_count)
    a_uses, b_uses, d_uses = (
        takes_a and not a_absent, takes_b and not b_absent, takes_d and not d_absent
    )  # fmt: skip
    ab = a_uses and b_uses and collide(a_bank, b_bank)
    ad = a_uses and d_uses and collide(a_bank, d_bank)
    bd = b_uses and d_uses and collide(b_bank, d_bank)
    a_goes = not (
        is_ahead(a_begun, a_count, b_count, total) or is_ahead(a_begun, a_count, d_count, total)
    )
    b_goes = not (
        is_ahead(b_begun, b_count, a_count, total)
        or is_ahead(b_begun, b_count, d_count, total)
        or (ab and a_begun == b_begun and a_count == b_count)
    )
    d_goes = not (
        is_ahead(d_begun, d_count, a_count, total)
        or is_ahead(d_begun, d_count, b_count, total)
        or (ad and a_begun == d_begun and a_count == d_count)
        or (bd and b_begun == d_begun and b_count == d_count)
    )
    a_filled, b_filled, d_filled = a_count < a_rows, b_count < b_rows, DIM - 1 - d_count < d_rows
    ready = has_room_pipe(s, CONTROL_Q, CONTROL_ENTRIES)
    a_reads, b_reads, d_reads = (
        a_goes and a_uses and a_filled, b_goes and b_uses and b_filled,
        d_goes and d_uses and d_filled,
    )  # fmt: skip
    a_fires = a_goes and (not a_reads or can_read(s, m, a_bank, a_base, s[EX_A_OFFSET]))
    b_fires = b_goes and (not b_reads or can_read(s, m, b_bank, b_base, b_count))
    d_fires = d_goes and (not d_reads or can_read(s, m, d_bank, d_base, DIM - 1 - d_count))
    if a_reads:
        read_row(s, a_bank, a_fires, ready)
    if b_reads:
        read_row(s, b_bank, b_fires, ready)
    if d_reads:
        read_row(s, d_bank, d_fires, ready)
    if not ready:
        return
    c_absent = is_garbage(m, local_address(c_word))
    to = new_entry(s, CONTROL_Q, CONTROL_ENTRIES, CN_FIELDS)
    s[to + CN_FIRST] = 1 if a_begun + b_begun + d_begun == 0 else 0
    s[to + CN_ROWS], s[to + CN_C_ROWS] = total, rows(c_word)
    # A COMPUTE without PRELOAD has no result address.
    s[to + CN_ADDRESS] = GARBAGE if performs == MULTIPLIES else local_address(c_word)
    s[to + CN_ENTRY] = -1 if performs == MULTIPLIES or c_absent else s[preload + ENTRY]
    s[to + CN_DATAFLOW] = s[EX_DATAFLOW]
    put_operand(s, to, A, a_fires, a_bank, a_uses and a_filled and a_columns > 0)
    put_operand(s, to, B, b_fires, b_bank, b_uses and b_filled and b_columns > 0)
    put_operand(s, to, D, d_fires, d_bank, d_uses and d_filled and d_columns > 0)
    ends = (
        ((a_count == total - 1 and a_fires) or a_count == 0)
        and ((b_count == total - 1 and b_fires) or b_count == 0)
        and ((d_count == total - 1 and d_fires) or d_count == 0)
        and a_begun + b_begun + d_begun > 0
    )
    if a_fires:
        s[EX_COUNTER] = 0 if a_count == total - 1 else a_count + 1
        s[EX_A_OFFSET] = 0 if a_count == total - 1 else s[EX_A_OFFSET] + s[EX_A_STRIDE]
        s[EX_STARTED] = 1
    if b_fires:
        s[EX_COUNTER + 1] = 0 if b_count == total - 1 else b_count + 1
        s[EX_STARTED + 1] = 1
    if d_fires:
        s[EX_COUNTER + 2] = 0 if d_count == total - 1 else d_count + 1
        s[EX_STARTED + 2] = 1
    if ends:
        for operand in range(OPERANDS):
            s[EX_STARTED + operand] = 0
        end_step(s, m, performs, c_absent)


@stage
def end_step(s: UnitState, m: GemminiMachine, performs: int, c_absent: bool) -> None:
    """Remove the commands of a finished step from the controller's queue.

    A PRELOAD with a destination completes later, when the array writes its result. All other
    commands of the step are recorded in `EX_PENDING`, so that they complete in one of the next
    cycles.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        performs: type of the step: `PRELOADS`, `MULTIPLIES` or `BOTH`.
        c_absent: whether the PRELOAD has no destination for the result.
    """
    first, second = s[head(s, m, 0) + ENTRY], s[head(s, m, 1) + ENTRY]
    s[EX_STATE] = CHOOSES
    if performs == PRELOADS:
        s[EX_PENDING] = 1 + first if c_absent and first >= 0 else 0
    else:
        s[EX_PENDING] = 1 + first if first >= 0 else 0
    remove(s, EX_Q, m.execute_queue)
    if performs == BOTH:
        s[EX_PENDING + 1] = 1 + second if c_absent and second >= 0 else 0
        remove(s, EX_Q, m.execute_queue)


@stage
def source_of(m: GemminiMachine, address: int, offset: int) -> int:
    """Return the number of the bank that holds a row of an operand.

    Accumulator banks are numbered from `MOST_BANKS`, after the scratchpad banks.

    Args:
        m: the machine.
        address: local address of the operand.
        offset: number of the row within the operand.
    """
    at = (address + offset) & m.address_mask
    if in_accumulator(address):
        return MOST_BANKS + ((at & (m.accumulator_rows - 1)) >> m.accumulator_bank_bits)
    return (at & (m.scratchpad_rows - 1)) >> m.scratchpad_bank_bits


@stage
def collide(one: int, two: int) -> bool:
    """Return whether two operands cannot be read in the same cycle because they share a bank.

    The whole accumulator counts as one bank.

    Args:
        one: bank number of the first operand.
        two: bank number of the second operand.
    """
    return one == two or (one >= MOST_BANKS and two >= MOST_BANKS)


@stage
def is_ahead(begun: int, count: int, other: int, total: int) -> bool:
    """Return whether one operand has been read exactly one row further than another operand.

    Args:
        begun: 1 if the first operand has been read at least once in this step.
        count: row counter of the first operand, which wraps around after `total` rows.
        other: row counter of the other operand.
        total: number of rows to read.
    """
    return begun == 1 and count == (0 if other == total - 1 else other + 1)


@stage
def can_read(s: UnitState, m: GemminiMachine, source: int, address: int, offset: int) -> bool:
    """Return whether a bank can deliver a row of an operand in this cycle.

    Args:
        s: state of all units, shape (STATE_WORDS,).
        m: the machine.
        source: the bank; accumulator banks are numbered after scratchpad banks.
        address: local address of the operand.
        offset: number of the row within the operand.
    """
    if source < MOST_BANKS:
        return bank_ready(s, source)
    at = (address + offset) & m.address_mask & (m.accumulator_rows - 1)
    return accumulator_ready(s, source - MOST_BANKS, at & (m.accumulator_bank_rows - 1))


@stage
def read_row(s: UnitState, source: int, fires: bool, ready: bool) -> None:
    """Request a row of an operand from a bank of a local memory.

    A scratchpad bank is requested only if the control queue has room. An accumulator bank is
    requested in any case.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        source: number of the bank; accumulator banks are numbered after scratchpad banks.
        fires: whether the bank can deliver the row in this cycle.
        ready: whether the control queue has room.
    """
    if source < MOST_BANKS:
        if ready:
            s[EX_READS + source] = 1
            if fires:
                s[BANK_NEXT + source] = FROM_ARRAY
    else:
        s[ACC_EX_READS + source - MOST_BANKS] = 1
        if fires:
            s[ACC_NEXT + source - MOST_BANKS] = FROM_ARRAY + source - MOST_BANKS


@stage
def put_operand(s: UnitState, to: int, operand: int, fires: bool, source: int, needs: bool) -> None:
    """Record in an entry of the control queue which row the array receives for an operand.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        to: position of the entry in `s`.
        operand: the operand: 0 for A, 1 for B, 2 for D.
        fires: whether the operand advances by a row in this cycle.
        source: number of the bank that the row is read from.
        needs: whether a row is read at all.
    """
    field = to + CN_OPERANDS + operand * OPERAND_FIELDS
    s[field + CN_FIRES] = 1 if fires else 0
    s[field + CN_SOURCE] = source
    s[field + CN_NEEDS] = 1 if needs else 0


@stage
def unroll_transposed(s: UnitState, m: GemminiMachine) -> None:
    """Move one command into the controller's queue, and expand a PRELOAD of transposed weights.

    The transposer needs an additional step to bring transposed weights into the array. A PRELOAD of
    such weights with its COMPUTE therefore becomes four commands: a PRELOAD of the weights without
    destination, a COMPUTE, a PRELOAD of the destination without weights, and the original COMPUTE.

    Args:
        s: state of all units, shape (STATE_WORDS,); changed in place.
        m: the machine.
    """
    count = s[UN_Q + COUNT]
    if count == 0:
        return
    first = entry_at(s, UN_Q, UN_ENTRIES, EX_FIELDS, 0)
    second = entry_at(s, UN_Q, UN_ENTRIES, EX_FIELDS, 1)
    state = s[UN_STATE]
    funct = s[first + FUNCT]
    preloads = funct == PRELOAD and state == UN_IDLE
    unrolls = preloads and s[UN_TRANSPOSES] == 1
    if unrolls and count < 2:
        return
    unrolls = unrolls and s[second + FUNCT] == COMPUTE_PRELOADED
    to = new_entry(s, EX_Q, m.execute_queue, EX_FIELDS)
    source = second if state == UN_FIRST_COMPUTE else first
    for field in range(EX_FIELDS):
        s[to + field] = s[source + field]
    if unrolls:
        s[to + RS2] |= GARBAGE
        s[to + ENTRY] = -1
        s[UN_STATE] = UN_FIRST_COMPUTE
        return
    if state == UN_FIRST_COMPUTE:
        s[to + FUNCT], s[to + ENTRY] = COMPUTE_ACCUMULATED, -1
        s[UN_STATE] = UN_SECOND_PRELOAD
        return
    if state == UN_SECOND_PRELOAD:
        s[to + RS1] |= GARBAGE
        s[UN_STATE] = UN_IDLE
    elif funct == CONFIG and bits(s[first + RS1], 7, 1) == 0:
        stationary = bits(s[first + RS1], 2, 1) == WEIGHT_STATIONARY
        s[UN_TRANSPOSES] = 1 if stationary and bits(s[first + RS1], 9, 1) else 0
    remove(s, UN_Q, UN_ENTRIES)
